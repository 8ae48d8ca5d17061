"""What the shapes share: bytes of keys and values, and the registry of their schemas.

Others use `forms` (Avro or JSON), `frames` (what names the schema in front of Avro), `record_schemas` (the interface)
and `registry` (schemas in a Confluent-compatible registry).
"""
