"""CQL's types, values and table definitions."""
