"""CQL's types, values and table definitions.

- `types`: `CqlType`, parsed from `system_schema`.
- `values`: the parts of a collection's, tuple's or UDT's bytes.
- `text`: scalars as text. `order`: which of two values comes first.
- `table`: `Table` and `Column`, read from `system_schema`.
"""
