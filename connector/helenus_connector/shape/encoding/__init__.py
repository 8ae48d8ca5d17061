"""What the shapes share: bytes of keys and values, what a change's cells say, where it was read, and the registry.

Others use `forms` (Avro or JSON), `avro_bytes` (pieces of it), `parsed_cells` (what the cells of a change say of its
row), `change_source` (an envelope's `source`) and `registry` (schemas in a Confluent-compatible registry).
"""
