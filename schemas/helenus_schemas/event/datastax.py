"""DataStax's form of events on Pulsar, so that a topic may have their agents' events and ours under one schema version.

A value begins with their three fields as Java's reflection sorts them, and a key is an Avro record; both schemas are
here byte for byte as their agents register them. Our further fields follow the three: a reader that goes by this schema
stops before them.
"""

from __future__ import annotations

from helenus_schemas.avro import build as avro
from helenus_schemas.cql.table import Table
from helenus_schemas.event.wire import THREE_FIELDS

VALUE = (
    '{"type":"record","name":"MutationValue","namespace":"com.datastax.oss.cdc","fields":['
    '{"name":"columns","type":["null",{"type":"array","items":"string","java-class":"[Ljava.lang.String;"}],'
    '"default":null},{"name":"md5Digest","type":["null","string"],"default":null},{"name":"nodeId",'
    '"type":["null",{"type":"string","logicalType":"uuid"}],"default":null}]}'
)
"""As Pulsar's Java client makes it of their class."""
VALUE_PROPERTIES = (("__alwaysAllowNull", "true"), ("__jsr310ConversionEnabled", "false"))
_NO_NODE = 36  # bytes of the three fields with a digest alone


def key_schema(table: Table) -> str:
    """Return the schema of a table's keys, as JSON. It is theirs, except where only ours is exact, as for a `time`.

    Raises Unmappable, naming the column.
    """
    record = avro.key_schema(table)
    fields = [{name: part for name, part in field.items() if name != "default"} for field in record["fields"]]
    return avro.text({**record, "doc": f"Primary key schema for table {table.full_name}", "fields": fields})


def sorted_value(value: bytes) -> bytes:
    """Return an event's value, as our agent makes it with a digest, and a node or none, with the columns first."""
    width = THREE_FIELDS if value[34] else _NO_NODE
    return b"\0%b%b" % (value[: width - 1], value[width:])


def unsorted_value(value: bytes) -> bytes:
    """Undo `sorted_value`; any other value is returned as it is."""
    if len(value) < _NO_NODE or value[:3] != b"\0\2@" or not (value[35] == 0 or value[35:37] == b"\2H"):
        return value
    width = THREE_FIELDS if value[35] else _NO_NODE
    return b"%b\0%b" % (value[1:width], value[width:]) if len(value) > width else value
