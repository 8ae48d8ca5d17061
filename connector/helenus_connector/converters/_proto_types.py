"""Protobuf's definitions that a registry knows without references, and messages of the types there.

Source: `google/type/date.proto`, `timeofday.proto`; `confluent/meta.proto`, `type/decimal.proto` of schema-registry 8.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf import descriptor_pool, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from helenus_connector.connect_data.schema import DATE, DECIMAL, TIME, TIMESTAMP, ConnectSchema
from helenus_connector.converters._values import calendar_date, number_of, signed_bytes, unscaled_digits

WRAPPERS = "google/protobuf/wrappers.proto"
_INT32, _UINT32 = FieldDescriptorProto.TYPE_INT32, FieldDescriptorProto.TYPE_UINT32
_DAY_MS = 86_400_000
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # of the years 1 to 9999, as Timestamp has them


class MessageType(NamedTuple):
    """A message that stands for a value of a type: its full name, and the file that has it."""

    name: str
    file: str


LOGICAL = {
    DECIMAL: MessageType("confluent.type.Decimal", "confluent/type/decimal.proto"),
    DATE: MessageType("google.type.Date", "google/type/date.proto"),
    TIME: MessageType("google.type.TimeOfDay", "google/type/timeofday.proto"),
    TIMESTAMP: MessageType("google.protobuf.Timestamp", "google/protobuf/timestamp.proto"),
}
WRAPPED = {
    **{f"int{bits}": MessageType("google.protobuf.Int32Value", WRAPPERS) for bits in (8, 16, 32)},
    "int64": MessageType("google.protobuf.Int64Value", WRAPPERS),
    "float32": MessageType("google.protobuf.FloatValue", WRAPPERS),
    "float64": MessageType("google.protobuf.DoubleValue", WRAPPERS),
    "boolean": MessageType("google.protobuf.BoolValue", WRAPPERS),
    "string": MessageType("google.protobuf.StringValue", WRAPPERS),
    "bytes": MessageType("google.protobuf.BytesValue", WRAPPERS),
}
"""By Connect's type the messages that can be null, where a bare value can't."""


def new_pool() -> descriptor_pool.DescriptorPool:
    """Return a pool with the files above, apart from the process's own pool: names of tables may be in both."""
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for message_type, fields in (
        (LOGICAL[DATE], [("year", _INT32), ("month", _INT32), ("day", _INT32)]),
        (LOGICAL[TIME], [("hours", _INT32), ("minutes", _INT32), ("seconds", _INT32), ("nanos", _INT32)]),
        (
            LOGICAL[DECIMAL],
            [("value", FieldDescriptorProto.TYPE_BYTES), ("precision", _UINT32), ("scale", _INT32)],
        ),
    ):
        package, _, name = message_type.name.rpartition(".")
        file = FileDescriptorProto(name=message_type.file, package=package, syntax="proto3")
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields, 1):
            message.field.add(name=field, number=number, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL)
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def fill_logical(message: Any, schema: ConnectSchema, value: Any) -> None:
    """Set a message of `LOGICAL` to a value. Raises ValueError for one that it can't be."""
    if schema.name == DECIMAL:
        unscaled, message.scale = unscaled_digits(value)
        message.value, message.precision = signed_bytes(unscaled), len(value.as_tuple().digits)
        return
    number = number_of(schema, value)
    if schema.name == DATE:
        message.year, message.month, message.day = calendar_date(number)
    elif schema.name == TIME:
        if not 0 <= number < _DAY_MS:
            raise ValueError(f"a time of {number} ms")
        message.hours, message.minutes = number // 3_600_000, number // 60_000 % 60
        message.seconds, message.nanos = number // 1000 % 60, number % 1000 * 1_000_000
    else:
        if not _FIRST_MS <= number <= _LAST_MS:
            raise ValueError(f"a timestamp of {number} ms, beyond the years 1 to 9999")
        message.seconds, message.nanos = number // 1000, number % 1000 * 1_000_000
