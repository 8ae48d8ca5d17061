"""What the envelopes share: which records a change has, what its cells say of a row, where it was read.

Others use `envelope_shape` (the records of a change, of which each shape makes its own envelopes), `parsed_cells` (what
the cells of a change say of its row), `change_source` (where it was read), `avro_bytes` (pieces of Avro), and for the
most frequent changes `direct_records` (records straight from the bytes of cells), `record_layout` (what these consist
of) and `value_writer` (their values).
"""

from helenus_schemas.pure import use_plain

use_plain("helenus_connector.shape.envelope.value_writer", __file__)
use_plain("helenus_connector.shape.envelope._changed_row", __file__)
use_plain("helenus_connector.shape.envelope.direct_records", __file__)
