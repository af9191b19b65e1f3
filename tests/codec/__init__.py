"""The codec: what comes back, what is refused, and what strangers may write."""
