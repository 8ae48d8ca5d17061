"""The bytes of the commit log: how a segment's file is laid out, and which change events its mutations are.

For others: `segment` (a file as sections that can be read), `segment_header`, `segment_name`, `segment_source` (where
its bytes come from), `entries` and `decoder` (entries to events).
"""

from helenus_schemas.pure import use_plain

use_plain("helenus_agent.commitlog.decoder", __file__)
