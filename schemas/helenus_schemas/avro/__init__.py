"""Avro schemas of tables."""
