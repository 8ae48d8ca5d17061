"""What the agent and the connector share.

- `cql`: types, values and table definitions.
- `codec`: from CQL bytes to Avro and JSON, and back.
- `avro`: Avro schemas of a table's records.
- `event`: the change event and its bytes.
- `settings`: properties files.
- `service`: logs, health, durable files, a Cassandra session.
- `names`: of topics, and in Avro. `errors`: every error, what happens on it, and advice.
"""

__version__ = "0.1.0"
