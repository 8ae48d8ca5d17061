"""Records as Kafka Connect has them between a source and a converter: values with their schemas, and their forms.

Others use `record` (`ConnectRecord`, `ConnectHeader`) and `schema` (`ConnectSchema`, `SchemaField`, logical types);
`converter` (`RecordConverter`, and Kafka's own), `from_avro` and `to_avro` (as Confluent's AvroConverter); and of what
Java makes of values `java_numbers`, `java_dates`, `java_text` and `times`.
"""
