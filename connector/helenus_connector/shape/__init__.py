"""What a record looks like, and the schemas it is registered with.

Others use `choice` (the shape that a connector's settings ask for), `schemas` (those of its records), `row`
(`RowShape`: key, full row, null for a delete), `forms` and `registry`.
"""

from helenus_schemas.pure import use_plain

use_plain("helenus_connector.shape._direct", __file__)
