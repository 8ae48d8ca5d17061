"""The shapes `debezium` and `debezium-cassandra`: envelopes as Debezium's connectors publish them.

Others use `envelope`, `cassandra` (the records of Debezium's connector for Cassandra) and `cassandra_schemas`.
"""
