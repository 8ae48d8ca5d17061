"""Another Cassandra as a sink: what `helenus-connector replicate` and `compare` do.

- `replicator`: follow the events topics, and copy the rows of before
- `comparison`: compare two tables, cell by cell
"""
