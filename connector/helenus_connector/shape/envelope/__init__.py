"""What the envelopes share: which records a change has, what its cells say of a row, where it was read.

Others use `envelope_shape` (the records of a change, of which each shape makes its own envelopes), `parsed_cells` (what
the cells of a change say of its row), `change_source` (where it was read) and `avro_bytes` (pieces of Avro).
"""
