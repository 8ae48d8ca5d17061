"""`/connectors/{name}/snapshots` of the REST API: begin snapshots, see how far they are, pause and stop them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from helenus_connector.control.connectors import UnderWay
from helenus_connector.rest._call import Resources, RestCall, not_found
from helenus_connector.snapshot.request import SnapshotRequest, request_for_key, request_for_tokens
from helenus_connector.snapshot.snapshot_store import Snapshot
from helenus_connector.snapshot.snapshots import Snapshots
from helenus_schemas.errors import HelenusError, Kind

_FIELDS = {"tables", "token_range", "key", "where"}


class SnapshotResources:
    """The snapshots of each connector, the last one of each table."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots

    def resources(self) -> Resources:
        all_ = "/connectors/{name}/snapshots"
        return {
            all_: {"GET": self._list, "POST": self._begin, "DELETE": self._stop},
            f"{all_}/pause": {"PUT": lambda call: self._pause(call, True)},
            f"{all_}/resume": {"PUT": lambda call: self._pause(call, False)},
            f"{all_}/{{table}}": {"GET": self._list, "DELETE": self._stop},
        }

    def _list(self, call: RestCall) -> Response:
        with _request_errors(call):
            return _answer(self._snapshots.last_snapshots(call.name, _tables(call)))

    def _begin(self, call: RestCall) -> Response:
        """Answer 202 with the snapshots; 400 for a wrong request, 409 while another snapshot is running."""
        body = call.body if call.body is not None else {}
        if not isinstance(body, dict) or body.keys() - _FIELDS:
            raise HTTPException(400, f"a JSON object is expected, with any of {', '.join(sorted(_FIELDS))}")
        tables = body.get("tables", [])
        if not isinstance(tables, list) or not all(isinstance(table, str) for table in tables):
            raise HTTPException(400, "tables: a list of names is expected")
        with _request_errors(call):
            try:
                return _answer(self._snapshots.begin(call.name, tables, _read_request(body)), 202)
            except UnderWay as error:
                raise HTTPException(409, str(error)) from None

    def _stop(self, call: RestCall) -> Response:
        with _request_errors(call):
            return _answer(self._snapshots.stop(call.name, _tables(call)))

    def _pause(self, call: RestCall, paused: bool) -> Response:
        with _request_errors(call):
            return _answer(self._snapshots.pause(call.name, paused), 202)


def _read_request(body: dict[str, Any]) -> SnapshotRequest:
    """Return the request in a body. Raises HTTPException, and HelenusError CONFIG."""
    names = [name for name in ("token_range", "key", "where") if body.get(name) is not None]
    if not names:
        return SnapshotRequest()
    if len(names) > 1:
        raise HTTPException(400, f"give one of {' and '.join(names)}, not both")
    (name,) = names
    value = body[name]
    if name == "key":
        if not isinstance(value, dict) or not value:
            raise HTTPException(400, 'key: a JSON object is expected: {"id": 5}')
        return request_for_key(value)
    if not isinstance(value, str) or not value.strip():  # an empty one is a mistake, and not the whole table
        raise HTTPException(400, f"{name}: a text is expected")
    return request_for_tokens(value) if name == "token_range" else SnapshotRequest(where=value)


def _tables(call: RestCall) -> Sequence[str]:
    """Return the table of a path that ends in one."""
    return [call.path["table"]] if "table" in call.path else ()


@contextmanager
def _request_errors(call: RestCall) -> Iterator[None]:
    """Answer 404 for an unknown connector, 400 for what it can't do."""
    try:
        with not_found(f"Connector {call.name} not found"):
            yield
    except HelenusError as error:
        raise HTTPException(400 if error.kind is Kind.CONFIG else 500, str(error)) from None


def _answer(snapshots: Sequence[Snapshot], status: int = 200) -> Response:
    return JSONResponse({"snapshots": [snapshot.shown() for snapshot in snapshots]}, status)
