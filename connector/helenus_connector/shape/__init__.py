"""What a record looks like, and the schemas it is registered with.

Others use `row` (`RowShape`: key, full row, null for a delete), `envelope` (`Envelope`: Debezium's), `forms` and
`registry`.
"""

from helenus_schemas.pure import use_plain

use_plain("helenus_connector.shape._direct", __file__)
