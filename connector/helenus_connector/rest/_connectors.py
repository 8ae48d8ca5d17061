"""`/connectors` of the REST API: resources, statuses, bodies and messages are those of a Kafka Connect 4.3.1 worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from helenus_connector.control import offsets
from helenus_connector.control.connectors import Connectors, NotStopped, UnknownConnector
from helenus_connector.control.status import ConnectorStatus, TaskStatus, Wanted
from helenus_connector.rest import _definitions as plugin
from helenus_connector.rest._call import Resources, RestCall, checked_properties, invalid, not_found, texts, with_name
from helenus_schemas import __version__
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.properties import ConfigError

Json = dict[str, Any]
_MAX_CONNECTORS = 1000  # connectors: each may have many tables, and all are looked at and saved together


class ConnectorResources:
    """`/connectors` and what is below it. `worker_id` is the worker's host and port."""

    def __init__(self, connectors: Connectors, worker_id: str) -> None:
        self._connectors = connectors
        self._worker_id = worker_id

    def resources(self) -> Resources:
        path = "/connectors/{name}"
        return {
            "/connectors": {"GET": self._list, "POST": self._create},
            path: {"GET": self._info, "DELETE": self._delete},
            f"{path}/config": {"GET": self._config, "PUT": self._put, "PATCH": self._patch},
            f"{path}/status": {"GET": self._status},
            f"{path}/tasks": {"GET": self._tasks},
            f"{path}/tasks/{{task}}/status": {"GET": self._task_status},
            f"{path}/tasks/{{task}}/restart": {"POST": self._restart_task},
            f"{path}/restart": {"POST": self._restart},
            f"{path}/pause": {"PUT": lambda call: self._want(call, "PAUSED", 202)},
            f"{path}/resume": {"PUT": lambda call: self._want(call, "RUNNING", 202)},
            f"{path}/stop": {"PUT": lambda call: self._want(call, "STOPPED", 204)},
            f"{path}/offsets": {"GET": self._offsets, "PATCH": self._alter, "DELETE": self._reset},
            f"{path}/topics": {"GET": self._topics},
            f"{path}/topics/reset": {"PUT": self._reset_topics},
        }

    def _list(self, call: RestCall) -> Response:
        names = sorted(self._connectors.all_with_files())
        if "expand" not in call.query:
            return JSONResponse(names)
        shown_as = {"status": self._shown_status, "info": self._shown}
        wanted = {key: shown_as[key] for key in call.query.getlist("expand") if key in shown_as}
        answer = {}
        for name in names:
            try:
                answer[name] = {key: show(name) for key, show in wanted.items()}
            except UnknownConnector:  # it was deleted meanwhile
                continue
        return JSONResponse(answer)

    def _create(self, call: RestCall) -> Response:
        body = call.body
        if not isinstance(body, dict):
            raise HTTPException(500, "a JSON object with name and config is expected")
        if unknown := body.keys() - {"name", "config", "initial_state"}:
            raise HTTPException(500, f'Unrecognized field "{min(unknown)}": known are name, config and initial_state')
        state = str(body.get("initial_state") or "RUNNING").upper()
        if state not in ("RUNNING", "PAUSED", "STOPPED"):
            raise HTTPException(500, f"initial_state: {state} is none of RUNNING, PAUSED and STOPPED")
        name = str(body.get("name") or "").strip()
        properties = with_name(name, texts(body.get("config")))
        with self._connectors.lock:
            config = self._checked(name, properties, {})
            if name in self._connectors.names():
                raise HTTPException(409, f"Connector {name} already exists")
            self._store(name, config, cast("Wanted", state))
        return self._created(call, name)

    def _put(self, call: RestCall) -> Response:
        properties = with_name(call.name, call.texts())
        with self._connectors.lock:
            exists = call.name in self._connectors.names()
            stored = self._connectors.config(call.name) if exists else {}
            self._store(call.name, self._checked(call.name, properties, stored))
        return JSONResponse(self._shown(call.name)) if exists else self._created(call, call.name)

    def _patch(self, call: RestCall) -> Response:
        changes = with_name(call.name, call.texts())
        with self._connectors.lock, not_found(f"Connector {call.name} not found"):
            stored = self._connectors.config(call.name)
            names = plugin.shown_names(stored)
            merged = {**plugin.shown(stored), **{names.get(key, key): value for key, value in changes.items()}}
            properties = {key: value for key, value in merged.items() if value is not None}
            self._store(call.name, self._checked(call.name, properties, stored, changes))
        return JSONResponse(self._shown(call.name))

    def _checked(
        self,
        name: str,
        properties: Mapping[str, str | None],
        stored: Mapping[str, str],
        request: Mapping[str, str | None] | None = None,
    ) -> dict[str, str]:
        return checked_properties(properties, stored, self._connectors.model, self._connectors.file(name), request)

    def _store(self, name: str, properties: Mapping[str, str], state: Wanted | None = None) -> None:
        names = self._connectors.names()
        if name not in names and len(names) >= _MAX_CONNECTORS:
            raise HTTPException(
                409, f"the worker has {_MAX_CONNECTORS} connectors: delete one first, or run another worker"
            )
        try:
            self._connectors.put(name, properties, state)
        except ConfigError as error:
            raise invalid([problem.reason for problem in error.problems]) from None

    def _created(self, call: RestCall, name: str) -> Response:
        return JSONResponse(self._shown(name), 201, {"Location": f"{call.base}connectors/{quote(name, safe='')}"})

    def _info(self, call: RestCall) -> Response:
        with not_found(f"Connector {call.name} not found"):
            return JSONResponse(self._shown(call.name))

    def _config(self, call: RestCall) -> Response:
        with not_found(f"Connector {call.name} not found"):
            return JSONResponse(plugin.shown(self._connectors.config(call.name)))

    def _delete(self, call: RestCall) -> Response:
        with not_found(f"Connector {call.name} not found"):
            self._connectors.delete(call.name)
        return Response(status_code=204)

    def _status(self, call: RestCall) -> Response:
        with not_found(f"No status found for connector {call.name}"):
            return JSONResponse(self._shown_status(call.name))

    def _tasks(self, call: RestCall) -> Response:
        with not_found(f"Connector {call.name} not found"), self._connectors.lock:
            ids = [task.id for task in self._connectors.status(call.name).tasks]
            configs = [plugin.shown(config) for config in self._connectors.tasks(call.name)]
        return JSONResponse(
            [
                {"id": {"connector": call.name, "task": task}, "config": {"task.class": plugin.TASK_CLASS, **config}}
                for task, config in zip(ids, configs, strict=True)
            ]
        )

    def _task_status(self, call: RestCall) -> Response:
        number = call.task
        problem = f"No status found for task {call.name}-{number}"
        with not_found(problem):
            matches = [task for task in self._connectors.status(call.name).tasks if task.id == number]
        if not matches:
            raise HTTPException(404, problem)
        return JSONResponse(self._shown_task(matches[0]))

    def _restart_task(self, call: RestCall) -> Response:
        number = call.task
        with not_found(f"Unknown connector: {call.name}"), self._connectors.lock:
            if number not in [task.id for task in self._connectors.status(call.name).tasks]:
                raise HTTPException(404, f"Unknown task: {call.name}-{number}")
            self._connectors.restart(call.name, task=number)
        return Response(status_code=204)

    def _restart(self, call: RestCall) -> Response:
        tasks, only_failed = call.wants("includeTasks"), call.wants("onlyFailed")
        with not_found(f"Unknown connector: {call.name}"), self._connectors.lock:
            before = self._connectors.status(call.name)
            self._connectors.restart(call.name, include_tasks=tasks, only_failed=only_failed)
        if not (tasks or only_failed):
            return Response(status_code=204)
        # The states of this moment; a moment later the restarted tasks may run.
        answer = self._shown_of(call.name, before)
        for shown in [answer["connector"], *(answer["tasks"] if tasks else ())]:
            if not only_failed or shown["state"] == "FAILED":
                shown["state"] = "RESTARTING"
        return JSONResponse(answer, 202)

    def _want(self, call: RestCall, state: Wanted, status: int) -> Response:
        with not_found(f"Unknown connector {call.name}"):
            self._connectors.set_wanted(call.name, state)
        return Response(status_code=status)

    def _offsets(self, call: RestCall) -> Response:
        with not_found(f"Connector {call.name} not found"):
            current = offsets.offsets(self._connectors, call.name)
        answer = [
            {"partition": {"topic": topic, "partition": partition}, "offset": {"offset": offset}}
            for topic, partitions in sorted(current.items())
            for partition, offset in sorted(partitions.items())
        ]
        return JSONResponse({"offsets": answer})

    def _alter(self, call: RestCall) -> Response:
        with not_found(f"Connector {call.name} not found"), _offset_errors(call.name):
            self._connectors.config(call.name)
            offsets.alter(self._connectors, call.name, call.offsets())
        return JSONResponse({"message": "The offsets for this connector have been altered successfully"})

    def _reset(self, call: RestCall) -> Response:
        with not_found(f"Connector {call.name} not found"), _offset_errors(call.name):
            offsets.reset(self._connectors, call.name)
        return JSONResponse({"message": "The offsets for this connector have been reset successfully"})

    def _topics(self, call: RestCall) -> Response:
        try:
            topics = self._connectors.topics(call.name)
        except UnknownConnector:  # as in Kafka Connect: a connector that is not known has used none
            topics = []
        return JSONResponse({call.name: {"topics": topics}})

    def _reset_topics(self, call: RestCall) -> Response:
        with contextlib.suppress(UnknownConnector):
            self._connectors.reset_topics(call.name)
        return Response(status_code=202)

    def _shown(self, name: str) -> Json:
        with self._connectors.lock:
            config, status = self._connectors.config(name), self._connectors.status(name)
        tasks = [{"connector": name, "task": task.id} for task in status.tasks]
        return {"name": name, "config": plugin.shown(config), "tasks": tasks, "type": "source"}

    def _shown_status(self, name: str) -> Json:
        return self._shown_of(name, self._connectors.status(name))

    def _shown_of(self, name: str, status: ConnectorStatus) -> Json:
        tasks = [self._shown_task(task) for task in status.tasks]
        return {"name": name, "connector": self._state(status.state, status.trace), "tasks": tasks, "type": "source"}

    def _shown_task(self, task: TaskStatus) -> Json:
        return {"id": task.id, **self._state(task.state, task.trace)}

    def _state(self, state: str, trace: str | None) -> Json:
        shown = {"state": state, "worker_id": self._worker_id, "version": __version__}
        return shown if trace is None else {**shown, "trace": trace}


@contextmanager
def _offset_errors(name: str) -> Iterator[None]:
    """Answer 400 for a connector that is not stopped, and for offsets that cannot be."""
    try:
        yield
    except NotStopped:
        problem = (
            "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the "
            f"specified connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint"
        )
        raise HTTPException(400, problem) from None
    except HelenusError as error:
        raise HTTPException(400 if error.kind is Kind.CONFIG else 500, error.what) from None
