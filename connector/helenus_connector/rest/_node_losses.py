"""`/connectors/{name}/losses` of the REST API: what may be missing since a node was lost with its disk."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.connectors import Connectors
from helenus_connector.node_loss.gap_events import append_gaps
from helenus_connector.node_loss.loss import LossQuery, find_losses
from helenus_connector.rest._call import Resources, RestCall, not_found
from helenus_schemas.errors import HelenusError, Kind


class NodeLossResources:
    """The losses of a worker's connectors. None is kept: each call reads the ring and the events topics."""

    def __init__(self, worker: WorkerSettings, connectors: Connectors) -> None:
        self._worker = worker
        self._connectors = connectors

    def resources(self) -> Resources:
        return {"/connectors/{name}/losses": {"POST": self._find}}

    def _find(self, call: RestCall) -> Response:
        """Answer with the losses, and have gaps in the events topics, unless `dry_run` is true."""
        body = dict(call.body) if isinstance(call.body, dict) else None
        if body is None:
            raise HTTPException(400, "a JSON object is expected")
        names, is_dry_run = body.pop("tables", []), body.pop("dry_run", False)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise HTTPException(400, "tables: a list of names is expected")
        if not isinstance(is_dry_run, bool):
            raise HTTPException(400, "dry_run: true or false is expected")
        try:
            query = LossQuery.from_words(body)
            tables = self._tables(call, names)
            losses = find_losses(self._worker, tables, query)
            if losses and not is_dry_run:
                append_gaps(self._worker, tables, losses)
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        except HelenusError as error:
            raise HTTPException(400 if error.kind is Kind.CONFIG else 500, str(error)) from None
        return JSONResponse({"losses": [loss.shown() for loss in losses]})

    def _tables(self, call: RestCall, names: list[str]) -> list[ConnectorSettings]:
        """Return the settings of these tables, by default of all. Raises 404, and 400 for a table that is not one."""
        with not_found(f"Connector {call.name} not found"), self._connectors.lock:
            tasks = dict(self._connectors.get(call.name).tasks)
        for name in names:
            if name not in tasks:
                existing = ", ".join(sorted(tasks)) or "none yet"
                raise HTTPException(400, f"the connector has no table {name}: there are {existing}")
        if not tasks:
            raise HTTPException(400, "the connector has no tables yet: wait until it has")
        return [tasks[name].settings for name in dict.fromkeys(names) or tasks]
