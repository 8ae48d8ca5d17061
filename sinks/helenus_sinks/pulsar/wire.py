"""Pulsar's binary protocol: its frames, and the messages of PulsarApi.proto that producers and
readers need.

The messages are made at run time from the table below, which holds the fields that we use, by their numbers in
PulsarApi.proto of Pulsar 4.0. Protobuf skips the other fields that a broker sends.
"""

from __future__ import annotations

import json
import struct
from binascii import b2a_base64
from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google_crc32c import value as crc32c

from helenus_sinks.log import DeclaredSchemas, Headers
from helenus_sinks.pulsar._entries import text_of

PROTOCOL_VERSION = 19  # with AUTH_CHALLENGE, broker metadata and null values
FRAME_MAX = 5 * 1024 * 1024 + 10 * 1024
"""Bytes of the largest frame where the broker does not say otherwise: Pulsar's default, and room for its metadata."""
SHARED, EXCLUSIVE_WITH_FENCING = 0, 3
"""How a producer may share its topic."""
KEY_VALUE = 15
"""The type of a schema of keys and values."""
_TYPE = {"JSON": 2, "AVRO": 4}
MAGIC = b"\x0e\x01"
"""Says that a checksum follows: CRC32C, of all that comes after it."""
_FIELDS = """
KeyValue: key=1 string, value=2 string
Schema: name=1 string, schema_data=3 bytes, type=4 int32, properties=5 *KeyValue
MessageIdData: ledgerId=1 uint64, entryId=2 uint64, partition=3 int32, batch_index=4 int32
MessageMetadata: producer_name=1 string, sequence_id=2 uint64, publish_time=3 uint64, properties=4 *KeyValue,
 partition_key=6 string, compression=8 int32, uncompressed_size=9 uint32, num_messages_in_batch=11 int32,
 encryption_algo=14 string, schema_version=16 bytes, partition_key_b64_encoded=17 bool,
 highest_sequence_id=24 uint64, null_value=25 bool, num_chunks_from_msg=27 int32, null_partition_key=30 bool
SingleMessageMetadata: properties=1 *KeyValue, partition_key=2 string, payload_size=3 int32,
 partition_key_b64_encoded=6 bool, null_value=9 bool, null_partition_key=10 bool
FeatureFlags: supports_auth_refresh=1 bool, supports_get_partitioned_metadata_without_auto_creation=5 bool
AuthData: auth_method_name=1 string, auth_data=2 bytes
Connect: client_version=1 string, auth_data=3 bytes, protocol_version=4 int32, auth_method_name=5 string,
 proxy_to_broker_url=6 string, feature_flags=10 FeatureFlags
Connected: server_version=1 string, protocol_version=2 int32, max_message_size=3 int32
AuthChallenge: challenge=2 AuthData
AuthResponse: client_version=1 string, response=2 AuthData, protocol_version=3 int32
PartitionedMetadata: topic=1 string, request_id=2 uint64, metadata_auto_creation_enabled=6 bool
PartitionedMetadataResponse: partitions=1 uint32, request_id=2 uint64, response=3 int32, error=4 int32, message=5 string
Lookup: topic=1 string, request_id=2 uint64, authoritative=3 bool
LookupResponse: brokerServiceUrl=1 string, brokerServiceUrlTls=2 string, response=3 int32, request_id=4 uint64,
 authoritative=5 bool, error=6 int32, message=7 string, proxy_through_service_url=8 bool
Producer: topic=1 string, producer_id=2 uint64, request_id=3 uint64, producer_name=4 string, schema=7 Schema,
 epoch=8 uint64, user_provided_producer_name=9 bool, producer_access_mode=10 int32, topic_epoch=11 uint64
ProducerSuccess: request_id=1 uint64, producer_name=2 string, last_sequence_id=3 int64, schema_version=4 bytes,
 topic_epoch=5 uint64, producer_ready=6 bool
Send: producer_id=1 uint64, sequence_id=2 uint64, num_messages=3 int32, highest_sequence_id=6 uint64
SendReceipt: producer_id=1 uint64, sequence_id=2 uint64, message_id=3 MessageIdData, highest_sequence_id=4 uint64
SendError: producer_id=1 uint64, sequence_id=2 uint64, error=3 int32, message=4 string
CloseProducer: producer_id=1 uint64, request_id=2 uint64
Success: request_id=1 uint64
Error: request_id=1 uint64, error=2 int32, message=3 string
Ping:
Pong:
GetTopicsOfNamespace: request_id=1 uint64, namespace=2 string, mode=3 int32
GetTopicsOfNamespaceResponse: request_id=1 uint64, topics=2 *string
GetSchema: request_id=1 uint64, topic=2 string, schema_version=3 bytes
GetSchemaResponse: request_id=1 uint64, error_code=2 int32, error_message=3 string, schema=4 Schema
GetOrCreateSchema: request_id=1 uint64, topic=2 string, schema=3 Schema
GetOrCreateSchemaResponse: request_id=1 uint64, error_code=2 int32, error_message=3 string, schema_version=4 bytes
Subscribe: topic=1 string, subscription=2 string, subType=3 int32, consumer_id=4 uint64, request_id=5 uint64,
 durable=8 bool, start_message_id=9 MessageIdData, initialPosition=13 int32
Message: consumer_id=1 uint64, message_id=2 MessageIdData
Flow: consumer_id=1 uint64, messagePermits=2 uint32
CloseConsumer: consumer_id=1 uint64, request_id=2 uint64
Ack: consumer_id=1 uint64, ack_type=2 int32, message_id=3 *MessageIdData, request_id=8 uint64
AckResponse: consumer_id=1 uint64, error=4 int32, message=5 string, request_id=6 uint64
GetLastMessageId: consumer_id=1 uint64, request_id=2 uint64
GetLastMessageIdResponse: last_message_id=1 MessageIdData, request_id=2 uint64,
 consumer_mark_delete_position=3 MessageIdData
BaseCommand: type=1 int32, connect=2 Connect, connected=3 Connected, subscribe=4 Subscribe, producer=5 Producer,
 send=6 Send, send_receipt=7 SendReceipt, send_error=8 SendError, message=9 Message, ack=10 Ack, flow=11 Flow,
 success=13 Success, error=14 Error, close_producer=15 CloseProducer, close_consumer=16 CloseConsumer,
 producer_success=17 ProducerSuccess, ping=18 Ping, pong=19 Pong, partitioned_metadata=21 PartitionedMetadata,
 partitioned_metadata_response=22 PartitionedMetadataResponse, lookup=23 Lookup, lookup_response=24 LookupResponse,
 last_id=29 GetLastMessageId, last_id_response=30 GetLastMessageIdResponse, get_topics=32 GetTopicsOfNamespace,
 get_topics_response=33 GetTopicsOfNamespaceResponse, get_schema=34 GetSchema,
 get_schema_response=35 GetSchemaResponse, auth_challenge=36 AuthChallenge, auth_response=37 AuthResponse,
 ack_response=38 AckResponse, schema=39 GetOrCreateSchema, schema_response=40 GetOrCreateSchemaResponse
"""


def _messages() -> tuple[Any, dict[int, str]]:
    """Return the class of every message by name, as attributes, and a command's field by its type."""
    file = descriptor_pb2.FileDescriptorProto(name="helenus/pulsar.proto", package="helenus.pulsar", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    for line in _FIELDS.replace("\n ", " ").strip().splitlines():
        name, _, fields = line.partition(":")
        message = file.message_type.add(name=name)
        for text in filter(None, map(str.strip, fields.split(","))):
            assignment, kind = text.split()
            field, number = assignment.split("=")
            label = kinds.LABEL_REPEATED if kind.startswith("*") else kinds.LABEL_OPTIONAL
            added = message.field.add(name=field, number=int(number), label=label)
            kind = kind.lstrip("*")
            if kind[0].isupper():
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".helenus.pulsar.{kind}"
            else:
                added.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    described = pool.FindFileByName(file.name)
    classes = {m: message_factory.GetMessageClass(d) for m, d in described.message_types_by_name.items()}
    # A command's type is the number of its field.
    types = {f.number: f.name for f in described.message_types_by_name["BaseCommand"].fields if f.name != "type"}
    return type("Messages", (), classes), types


messages, _TYPES = _messages()
_NUMBERS = {name: number for number, name in _TYPES.items()}


def command(name: str, **fields: Any) -> bytes:
    """Return a frame with a command and its fields, which may be dicts for messages within it."""
    data: bytes = messages.BaseCommand(type=_NUMBERS[name], **{name: fields}).SerializeToString()
    return struct.pack(">II", len(data) + 4, len(data)) + data


def commands(buffer: bytearray) -> Iterator[tuple[str, Any, bytes]]:
    """Yield the commands of all complete frames at the start of the buffer, which are removed from it; each with what
    follows it in its frame. Raises ValueError.
    """
    while len(buffer) >= 8:
        size, inner = struct.unpack_from(">II", buffer)
        if inner > size - 4 or size > FRAME_MAX * 32:
            raise ValueError("this is not Pulsar's protocol")
        if len(buffer) < size + 4:
            return
        try:
            reply = messages.BaseCommand.FromString(bytes(buffer[8 : 8 + inner]))
        except Exception as error:  # protobuf has an error of its own for each of its implementations
            raise ValueError(f"this is not Pulsar's protocol: {error}") from None
        payload = bytes(buffer[8 + inner : size + 4])
        del buffer[: size + 4]
        if reply.type in _TYPES:
            yield _TYPES[reply.type], getattr(reply, _TYPES[reply.type]), payload


def keyed(key: bytes | None, value: bytes | None, headers: Headers, text_key: bool) -> dict[str, Any]:
    """Return the fields of a message's metadata, single or in a batch, that say its key, properties and whether it is
    null.
    """
    fields: dict[str, Any] = {}
    if key is None:
        fields["null_partition_key"] = True
    elif text_key:
        fields["partition_key"] = key.decode()
    else:
        fields |= {"partition_key": b2a_base64(key, newline=False).decode(), "partition_key_b64_encoded": True}
    if value is None:
        fields["null_value"] = True
    if headers:
        fields["properties"] = [{"key": name, "value": text_of(content)} for name, content in headers]
    return fields


def send(producer: int, sequence: int, count: int, metadata: dict[str, Any], payload: bytes) -> bytes:
    """Return the frame of one message, or of a batch of `count` with the numbers from `sequence` on."""
    highest = sequence + count - 1
    data = messages.MessageMetadata(
        sequence_id=sequence, **({"highest_sequence_id": highest} if count > 1 else {}), **metadata
    ).SerializeToString()
    head = messages.BaseCommand(
        type=_NUMBERS["send"],
        send={"producer_id": producer, "sequence_id": sequence, "num_messages": count, "highest_sequence_id": highest},
    ).SerializeToString()
    checked = struct.pack(">I", len(data)) + data + payload
    total = 4 + len(head) + len(MAGIC) + 4 + len(checked)
    return b"".join((struct.pack(">II", total, len(head)), head, MAGIC, struct.pack(">I", crc32c(checked)), checked))


def schema_of(schemas: DeclaredSchemas) -> Any:
    """Return the schema of a topic: with a schema for keys, KeyValue with the encoding SEPARATED, the key as message
    key.

    Byte for byte as Java's: otherwise it would be another version.
    """
    properties = dict(schemas.value_properties)
    if schemas.key is None:
        listed = [{"key": name, "value": content} for name, content in properties.items()]
        return messages.Schema(name="", schema_data=schemas.value.encode(), type=_TYPE[schemas.kind], properties=listed)
    sides = {"key": (schemas.key, {}), "value": (schemas.value, properties)}
    data = b"".join(struct.pack(">I", len(text.encode())) + text.encode() for text, _ in sides.values())
    described = {"kv.encoding.type": "SEPARATED"}
    for side, (_, own) in sides.items():
        own_text = json.dumps(own, separators=(",", ":"))
        described |= {
            f"{side}.schema.name": "",
            f"{side}.schema.properties": own_text,
            f"{side}.schema.type": schemas.kind,
        }
    listed = [{"key": name, "value": content} for name, content in sorted(described.items())]
    return messages.Schema(name="KeyValue", schema_data=data, type=KEY_VALUE, properties=listed)


def texts_of(schema: Any) -> tuple[str | None, str]:
    """Return the schemas of keys and values in a schema of `schema_of`, or of a broker; None if it has none for
    keys.
    """
    data = bytes(schema.schema_data)
    size = int.from_bytes(data[:4], "big")
    if schema.type != KEY_VALUE or len(data) < 8 + size:
        return None, data.decode(errors="replace")
    return data[4 : 4 + size].decode(errors="replace"), data[8 + size :].decode(errors="replace")


def payload_of(schemas: DeclaredSchemas) -> dict[str, Any]:
    """Return the same schema as Pulsar's admin API takes it, and `pulsar-admin schemas upload`."""
    text = schemas.value
    if schemas.key is not None:
        sides = {"key": json.loads(schemas.key), "value": json.loads(schemas.value)}
        text = json.dumps(sides, separators=(",", ":"), ensure_ascii=False)
    properties = {pair.key: pair.value for pair in schema_of(schemas).properties}
    return {"type": schemas.kind if schemas.key is None else "KEY_VALUE", "schema": text, "properties": properties}
