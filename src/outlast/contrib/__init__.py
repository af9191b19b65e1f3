"""Outlast in other programs: what it speaks to beside its own stores."""
