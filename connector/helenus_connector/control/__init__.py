"""Which connectors are wanted, where they stand and how they fare."""
