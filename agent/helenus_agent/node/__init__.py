"""What the node reports: its settings, its schema, and the TRUNCATEs and DROPs in it.

For others: `cassandra` (the node's CQL) and `offline` (in its place, from the state directory), `identity` (is it the
node of this cdc_raw?), `tables` (which are followed, and the decoder's plans), `saved_tables` (definitions, kept for
tables that are dropped), `logged_columns` (what the log says of these), `truncations`, `drops`, `transactional` (tables
whose writes are in no commit log).
"""
