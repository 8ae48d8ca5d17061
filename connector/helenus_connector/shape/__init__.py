"""What a record looks like, and the schemas it is registered with."""
