"""From CQL bytes to Avro and JSON, and a key's Avro back to CQL.

- `key`: an event's key, encoded and decoded (`KeyCodec`).
- `to_avro`, `to_json`: compile a type into a function from a value's CQL bytes to its Avro or JSON.
- `from_json`: a value in JSON back to one of Avro's.
- `unpublishable`: which values Cassandra holds that no record can.
- `avro_long`: Avro's numbers. `wire_bytes`: as compiled modules read them.
- `blocks`: compressed blocks, whose content is no longer than somebody said.
"""
