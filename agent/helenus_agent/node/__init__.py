"""What the node says: its tables, truncations and drops."""
