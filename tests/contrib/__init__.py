"""What joins outlast to other frameworks."""
