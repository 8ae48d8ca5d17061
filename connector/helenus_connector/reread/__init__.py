"""What a key's row is now: it is read again from Cassandra, until a read confirms what is published.

Others use `resolver` (`Reread`), `unconfirmed` (a key that waits), `unconfirmed_keys` (all of a query's, in the driver)
and `unconfirmed_files`, `definition` (a table as the nodes have it), `rows` (rows as bytes), `cells` (rows
as change events with cells), `reader` and `budget`.
"""
