"""Reads rows from Cassandra: in few statements, and at a rate that the cluster sustains.

Others use `row_reader` (the current rows of many keys), `row_images` (images from rows), `cell_reader` (rows as cells
with write times and TTLs), `raw_rows` (rows as the server's bytes), `clustering_bounds` (whether a row is in a range),
`budget` (the rate limit, in rows per second) and `table_definition` (a table's definition as the nodes have it).
"""
