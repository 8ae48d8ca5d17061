"""Records as Kafka Connect has them between a source and a converter: values with their schemas.

Others use `record` (`ConnectRecord`, `ConnectHeader`) and `schema` (`ConnectSchema`, `SchemaField`, logical types).
"""
