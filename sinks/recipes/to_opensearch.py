"""Fills an index of OpenSearch from a data topic: python to_opensearch.py BROKERS REGISTRY TOPIC URL INDEX

URL is http(s)://host:port, with target.http_auth and target.ca_certs in --config. A document has the row's key as its
id and the record's offset as its version, so a batch that comes again, in whole or in part, changes nothing: the server
refuses what is older than what it has. The offsets are in the index's mapping. Elasticsearch has the same requests.

Needs opensearch-py, opensearch_json.py beside it, and what batches.py needs.
"""

from __future__ import annotations

import json
import logging
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
from batches import OFFSET, Change, partition_column, run
from opensearch_json import from_json, make_encoder, make_identifier, mapping_of, merge_properties
from opensearchpy import ConnectionError as Unreachable
from opensearchpy import NotFoundError, OpenSearch, OpenSearchException, RequestError, SSLError, TransportError
from records import Failure, Limits, Row, to_rows
from settings import Notes, Settings, without_login

PARTITION_KEY = "_partition_key"
"""A field of every document: its partition key, written as ids are, by which markers find their rows."""
# Names that OpenSearch and Elasticsearch keep for themselves in a document, besides ours.
RESERVED = {
    *("_id", "_index", "_source", "_routing", "_type", "_version", "_seq_no", "_primary_term", "_field_names"),
    *("_ignored", "_nested_path", "_doc_count", "_tier", "_size", "_feature", "_data_stream_timestamp", PARTITION_KEY),
}
_REQUEST_BYTES = 5_000_000  # servers take 10 MB on small machines of some clouds, else 100; 5 to 15 MB are the advice
_PAGE = 1_000
_SCROLL = "5m"  # how long the server keeps a search between two pages
_TIMEOUT_S = 60
_PATIENCE_S = 30.0  # with --once, of a server that is overloaded or away
_BACKOFF_MAX_S = 30.0
_CONFLICT, _TOO_LARGE = 409, 413
_MAY_PASS = (429, 502, 503, 504)
_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
notes = Notes()
Result = TypeVar("Result")


class Index:
    """An index of a server, or what an alias names."""

    errors = (OpenSearchException,)
    limits: Limits = {}  # what a field can't hold stays in the document, without being indexed

    def __init__(self, settings: Settings) -> None:
        logging.getLogger("opensearch").addHandler(logging.NullHandler())  # what it warns of is said here
        logging.getLogger("opensearch").propagate = False
        url, self._name = settings.target
        self._where, self._topic, self._once = without_login(url), settings.topic, settings.once
        options = {name: _option(value) for name, value in settings.target_client.items()}
        self._client = OpenSearch([url], **{"timeout": _TIMEOUT_S, **options, "max_retries": 0})
        self._mapping: Row | None = None
        """The index's mapping as it was read last, or written since; None if there is no index."""

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def read_offsets(self, partitions: list[int]) -> dict[int, int]:
        self._mapping = self._read_mapping()
        return {int(partition): offset for partition, offset in _noted(self._mapping).get("offsets", {}).items()}

    def read_schema(self) -> pa.Schema | None:
        """Read the columns, and see that nobody else has filled the index, or deleted it, since the last batch."""
        mapping = self._read_mapping()
        if _noted(mapping).get("offsets") != _noted(self._mapping).get("offsets"):
            raise Failure(f"{self._name} was deleted, or another process fills it: run one, and start it again")
        self._mapping = mapping
        columns = _noted(mapping).get("columns")
        return pa.ipc.read_schema(pa.py_buffer(b64decode(columns))) if columns else None

    def read_keys(self, key: pa.Schema, partitions: pa.Table | None, topic_partition: int) -> pa.Table:
        """Search for them, after a refresh: without it the last batches' documents may not be found."""
        if partitions is None:
            query: Row = {"term": {partition_column(self.read_schema()): topic_partition}}
        else:
            identify = make_identifier([(field.name, field.type) for field in partitions.schema])
            query = {"terms": {PARTITION_KEY: [identify(row) for row in to_rows(partitions)]}}
        self._ask(lambda: self._client.indices.refresh(index=self._name))
        sources = self._ask(lambda: list(self._search(query, key.names)))
        rows = [{field.name: from_json(source.get(field.name), field.type) for field in key} for source in sources]
        return pa.Table.from_pylist(rows, key)

    def store(self, change: Change) -> None:
        """Send rows and deletes, then note the offsets: after a kill between the two they come again."""
        self._note(change.schema, _noted(self._mapping).get("offsets", {}))
        types = {field.name: field.type for field in change.schema}
        identify = make_identifier([(name, types[name]) for name in change.key])
        identify_partition = make_identifier([(name, types[name]) for name in change.partition_key])
        encode = make_encoder(pa.struct(list(change.schema)))
        actions = [
            _action("index", identify(row), row[OFFSET], {**encode(row), PARTITION_KEY: identify_partition(row)})
            for row in to_rows(change.rows)
        ]
        actions += [_action("delete", identify(row), row[OFFSET]) for row in to_rows(change.deleted)]
        for request in _requests(actions):
            self._send(request)
        self._note(change.schema, {str(partition): offset for partition, offset in sorted(change.offsets.items())})

    def _send(self, actions: list[bytes]) -> None:
        """Send actions until each has an answer. Those of which a newer version is stored are done."""
        pause, began = 1.0, time.monotonic()
        while actions:
            body = b"".join(actions).decode()
            try:
                answers = self._ask(lambda: self._client.bulk(body=body, index=self._name))["items"]  # noqa: B023
            except TransportError as error:
                if error.status_code != _TOO_LARGE:
                    raise
                if len(actions) == 1:
                    problem = f"{_describe(actions[0])}, has {len(body)} characters"
                    raise Failure(f"{self._where} takes no request of that size: {problem}") from None
                half = len(actions) // 2
                self._send(actions[:half])
                actions = actions[half:]
                continue
            rejected, cause = [], ""
            for action, answer in zip(actions, answers, strict=True):
                ((_, result),) = answer.items()
                if "error" not in result or result["status"] == _CONFLICT:  # to delete what is not there is no error
                    continue
                cause = f"{self._where}: {result['_index']}: {_cause_of(result['error'])}"
                if result["status"] not in _MAY_PASS:
                    raise Failure(
                        f"{cause}: {_describe(action)}: change the mapping, or leave the column out (columns)"
                    )
                rejected.append(action)
            if rejected:
                pause = self._wait(cause, "busy", pause, began)
            actions = rejected

    def _note(self, schema: pa.Schema, offsets: Row) -> None:
        """Give the index the fields that it lacks, and note columns and offsets. Makes it if it isn't there."""
        columns = b64encode(schema.serialize()).decode()
        noted = {"topic": self._topic, "columns": columns, "offsets": offsets}
        if noted == _noted(self._mapping):
            return
        needed = {field.name: mapping_of(field.type) for field in schema}
        if reserved := needed.keys() & RESERVED:
            raise Failure(f"the table has a column {reserved.pop()}, as documents have: leave it out (columns)")
        stored = self._mapping or {}
        mapping = {
            "_meta": {**stored.get("_meta", {}), "recipe": noted},
            "properties": merge_properties(
                stored.get("properties", {}), {**needed, PARTITION_KEY: {"type": "keyword"}}
            ),
        }
        if self._mapping is None:
            self._create({"dynamic": False, **mapping})
        else:
            self._ask(lambda: self._client.indices.put_mapping(index=self._name, body=mapping))
        self._mapping = mapping

    def _create(self, mapping: Row) -> None:
        try:
            self._ask(lambda: self._client.indices.create(index=self._name, body={"mappings": mapping}))
        except RequestError as error:  # the answer to an earlier attempt was lost
            if error.error != "resource_already_exists_exception" or _noted(self._read_mapping()) != _noted(mapping):
                raise

    def _read_mapping(self) -> Row | None:
        """Return the index's mapping, None if there is no index. Raises Failure if it is that of another topic."""
        try:
            answer = self._ask(lambda: self._client.indices.get_mapping(index=self._name))
        except NotFoundError:
            return None
        if len(answer) != 1:
            raise Failure(f"{self._name} names {len(answer)} indices: name one")
        ((_, index),) = answer.items()
        mapping: Row = index["mappings"]
        if (topic := _noted(mapping).get("topic", self._topic)) != self._topic:
            raise Failure(f"{self._name} has the rows of {topic}, whose offsets are others: fill another index")
        return mapping

    def _search(self, query: Row, fields: list[str]) -> Iterator[Row]:
        """Give the fields of all documents that a query finds. Raises TransportError if a part of it can't."""
        body = {"query": query, "_source": fields, "size": _PAGE, "sort": ["_doc"]}
        page = self._client.search(
            index=self._name, body=body, params={"scroll": _SCROLL, "allow_partial_search_results": "false"}
        )
        while True:
            if page["_shards"]["failed"] or page["timed_out"]:
                raise TransportError(503, "a part of the index does not answer", page["_shards"])
            hits = page["hits"]["hits"]
            yield from (hit["_source"] for hit in hits)
            scroll_id = page["_scroll_id"]
            if len(hits) < _PAGE:
                self._client.clear_scroll(body={"scroll_id": [scroll_id]}, params={"ignore": 404})
                return
            page = self._client.scroll(body={"scroll_id": scroll_id, "scroll": _SCROLL})

    def _ask(self, request: Callable[[], Result]) -> Result:
        """Do a request until the server answers it. Raises what will not pass, and with --once Failure after a while.

        A request whose answer was lost is done again: all of them may be done twice.
        """
        pause, began = 1.0, time.monotonic()
        while True:
            try:
                return request()
            except SSLError as error:
                raise Failure(f"{self._where}: {error.info}: --config has target.ca_certs") from None
            except Unreachable as error:
                cause, kind = f"{self._where} can't be reached: {error.info}", "away"
            except TransportError as error:
                if error.status_code in (401, 403):
                    problem = f"{self._where} answers {error.status_code}: {_cause_of(error.info)}"
                    raise Failure(f"{problem}: --config has target.http_auth=user:password") from None
                if error.status_code not in _MAY_PASS:
                    raise
                cause, kind = f"{self._where} answers {error.status_code}: {_cause_of(error.info)}", "busy"
            pause = self._wait(cause, kind, pause, began)

    def _wait(self, cause: str, kind: str, pause: float, began: float) -> float:
        """Wait before another attempt. Returns how long to wait before the next."""
        if self._once and time.monotonic() - began > _PATIENCE_S:
            raise Failure(cause)
        notes.say(f"{cause}; trying again", kind=kind)
        time.sleep(pause)
        return min(pause * 2, _BACKOFF_MAX_S)


def _noted(mapping: Row | None) -> Row:
    """Give what a recipe noted in a mapping; nothing, if none has."""
    return (mapping or {}).get("_meta", {}).get("recipe", {})  # type: ignore[no-any-return]


def _option(value: str) -> Any:
    """The client wants booleans and numbers where properties have text."""
    return {"true": True, "false": False}.get(value, int(value) if value.isdecimal() else value)


def _action(kind: str, identity: str, version: int, *document: Row) -> bytes:
    """Write an action of a bulk request, with its document if it has one.

    `external_gte` and not `external`: the version that is stored may be sent again, by a process that was killed, or
    after the offsets were taken out of the mapping to have every document written anew.
    """
    head = {kind: {"_id": identity, "version": version, "version_type": "external_gte"}}
    return b"".join(_write(line).encode() + b"\n" for line in (head, *document))


def _describe(action: bytes) -> str:
    """Say of which record an action is."""
    ((_, head),) = json.loads(action.split(b"\n", 1)[0]).items()
    return f"document {head['_id']}, of the record at offset {head['version']}"


def _requests(actions: list[bytes]) -> Iterator[list[bytes]]:
    """Part actions into requests of a size that servers take."""
    request: list[bytes] = []
    size = 0
    for action in actions:
        if request and size + len(action) > _REQUEST_BYTES:
            yield request
            request, size = [], 0
        request.append(action)
        size += len(action)
    if request:
        yield request


def _cause_of(error: Any) -> str:
    """Say the reasons of a server's error, the first cause last."""
    if isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    if not isinstance(error, dict) or "type" not in error:
        return str(error)
    reason = f"{error['type']}: {error.get('reason')}"
    return f"{reason}, {_cause_of(error['caused_by'])}" if error.get("caused_by") else reason


if __name__ == "__main__":
    run(__doc__, ["url", "index"], Index)
