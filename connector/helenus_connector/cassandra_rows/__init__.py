"""Rows of Cassandra: how the connector reads them, in few statements, at the rate that the cluster bears.

Others use `row_reader` (the current rows of many keys), `row_images` (rows that were read as images), `cell_reader`
(rows as change events with cells), `raw_rows` (rows as the server's bytes), `budget` (rows a second) and
`table_definition` (a table as the nodes have it).
"""
