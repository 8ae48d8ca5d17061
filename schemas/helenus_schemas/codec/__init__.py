"""From CQL bytes to Avro and JSON, and back."""
