"""A server of OpenSearch in a process of its own, and what its indices hold."""

from __future__ import annotations

import atexit
import json
import socket
import subprocess
import tempfile
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import urllib3
from patience import PATIENCE_S
from schemas.java import Program

HERE = Path(__file__).parent
LOGIN = "helenus:s3cret"
_HEAP = "512m"  # for some indices with one shard each
_INDICES = 10


class OpenSearchNode:
    """A node with its data in a directory, to start, stop and kill. With a keystore it has TLS and wants LOGIN.

    `program` may be ElasticsearchNode, which has neither.
    """

    def __init__(self, directory: Path, keystore: Path | None = None, program: str = "OpenSearchNode") -> None:
        self.port = _free_port()
        self.url = f"{'https' if keystore else 'http'}://localhost:{self.port}"
        self.log = directory / "node.log"
        classes = directory / "classes"
        classes.mkdir()
        lock = HERE / f"{program.removesuffix('Node').lower()}.lock"
        security = [str(keystore), LOGIN] if keystore else []
        arguments = [str(directory / "home"), str(self.port), *security]
        self._command = Program(classes, HERE / f"{program}.java", lock).command(*arguments, options=[f"-Xmx{_HEAP}"])
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers. It ends with this process: its standard input ends."""
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"started\n", self.log.read_text()[-3000:]

    def stop(self) -> None:
        """End it, as an operator does."""
        assert self._process is not None
        self._process.communicate()

    def kill(self) -> None:
        """Kill it, as for lack of memory."""
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request, without the recipe's client. Raises AssertionError if it is refused."""
        answer = urllib3.request(method, f"{self.url}/{path}", json=body, timeout=PATIENCE_S)
        assert answer.status < 400, answer.data.decode()
        return json.loads(answer.data)

    def documents(self, index: str) -> list[dict[str, Any]]:
        """All documents that a search finds after a refresh."""
        self.ask("POST", f"{index}/_refresh")
        page: dict[str, Any] = {"size": 1000, "sort": ["_doc"], "query": {"match_all": {}}}
        answer = self.ask("POST", f"{index}/_search?scroll=1m", page)
        sources: list[dict[str, Any]] = []
        while hits := answer["hits"]["hits"]:
            sources += [hit["_source"] for hit in hits]
            answer = self.ask("POST", "_search/scroll", {"scroll": "1m", "scroll_id": answer["_scroll_id"]})
        self.ask("DELETE", "_search/scroll", {"scroll_id": [answer["_scroll_id"]]})
        assert answer["hits"]["total"]["value"] == len(sources) or len(sources) >= 10_000
        return sources


@contextmanager
def running_node(
    directory: Path, keystore: Path | None = None, program: str = "OpenSearchNode"
) -> Iterator[OpenSearchNode]:
    """Run a node until the end of the block."""
    node = OpenSearchNode(directory, keystore, program)
    node.start()
    try:
        yield node
    finally:
        node.kill()


def rows_of(node: OpenSearchNode, index: str) -> pa.Table:
    """Make rows of an index's documents, by the columns that the recipe noted in its mapping."""
    ((_, answer),) = node.ask("GET", f"{index}/_mapping").items()
    columns = b64decode(answer["mappings"]["_meta"]["recipe"]["columns"])
    schema = pa.schema(
        [f for f in pa.ipc.read_schema(pa.py_buffer(columns)) if f.name not in ("_topic_partition", "_offset")]
    )
    documents = node.documents(index)
    return pa.Table.from_pylist([{f.name: _value(d.get(f.name), f.type) for f in schema} for d in documents], schema)


def _value(value: Any, kind: pa.DataType) -> Any:
    """A value of a document, as Arrow takes it: without the recipe's code."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _value(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_value(part, kind.value_type) for part in value]
    if pa.types.is_map(kind):
        return [(entry["key"], _value(entry.get("value"), kind.item_type)) for entry in value]
    if pa.types.is_binary(kind):
        return b64decode(value)
    if pa.types.is_floating(kind):
        return float(value)
    if pa.types.is_temporal(kind):
        unit, ms = ("D", 86_400_000) if pa.types.is_date(kind) else ("ms", 1)
        if isinstance(value, int):
            return value // ms
        return int(np.datetime64(value.rstrip("Z")).astype(f"datetime64[{unit}]").astype(np.int64))
    return value


class SharedNode:
    """One node for all tests of a process, which the first one starts. Of the indices it keeps the newest."""

    def __init__(self) -> None:
        self._node: OpenSearchNode | None = None
        self._indices: list[str] = []

    def get(self) -> OpenSearchNode:
        """Give the node, started."""
        if self._node is None:
            directory = tempfile.TemporaryDirectory()
            self._node = OpenSearchNode(Path(directory.name))
            self._node.start()
            atexit.register(directory.cleanup)
            atexit.register(self._node.kill)
        return self._node

    def index_for(self, directory: Path) -> str:
        """Name an index by a directory's name, and delete the oldest: each has a shard, which takes memory."""
        if directory.name not in self._indices:
            self._indices.append(directory.name)
            if len(self._indices) > _INDICES:
                self.get().ask("DELETE", f"{self._indices.pop(0)}?ignore_unavailable=true")
        return directory.name


SHARED = SharedNode()


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
