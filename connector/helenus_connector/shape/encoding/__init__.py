"""What the shapes share: bytes of keys and values, and the registry of their schemas.

Others use `forms` (Avro or JSON) and `registry` (schemas in a Confluent-compatible registry).
"""
