"""The same calls to two REST APIs of Kafka Connect's kind, and how their answers differ.

Most calls are made by a client that is not ours; what it does not know is asked for with `requests`. Answers are
compared by status, and by the shape of their JSON: keys, types and, where it holds no wording of Java's, the message.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import requests
from kafka_connect.kafka_connect import KafkaConnect
from patience import eventually

FREE = {"config", "partition", "offset"}
"""Maps whose keys belong to the connector."""
NULLABLE = {"default_value", "value", "group", "last_modified", "definition", "version"}
"""What theirs does not always say: the version of a task that is about to start again."""
MORE = {"trace"}
"""What ours says more often: why a connector that is running waits, as for its first batch."""
FULL = {"", "tasks", "offsets", "topics", "configs", "groups"}
"""Lists that have to hold something where theirs does."""
NAMED = re.compile("expand=|/topics$|/admin/loggers$")
"""Calls that answer with a map by name."""
EXACT = {"state", "status", "connector", "task", "error_code"}
OF_JAVA = re.compile(r"error\(s\)|Failed to find|contains no connector type|Included connector type")
NAME = "f1"


@dataclass(frozen=True)
class Answer:
    """What a worker answered to a call."""

    call: str
    status: int
    body: Any
    location: bool


@dataclass
class Side:
    """A worker, with the plugin's class and a configuration that it can run, and all that it answered.

    `plugin` is the plugin's short name; `offsets` are some that its connector may have.
    """

    base: str
    plugin: str
    config: dict[str, str]
    offsets: Any
    answers: list[Answer] = field(default_factory=list)
    noting: bool = True

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> None:
        """A call that the client does not know."""
        requests.request(method, self.base + path, json=body, timeout=30, **more)

    def reaches(self, state: str, tasks: int = 1) -> None:
        """Wait until the connector and its tasks are in a state."""

        def there(answer: Any) -> bool:
            states = [answer.get("connector", {}).get("state"), *(task["state"] for task in answer.get("tasks", []))]
            return states == [state] * (1 + tasks)

        self.waits("status", there, state)

    def waits(self, resource: str, enough: Callable[[Any], object], state: str = "there", name: str = NAME) -> None:
        """Wait until something of a connector is as it is to be; what is asked meanwhile is not compared."""
        seen: list[Any] = [None]

        def is_enough() -> object:
            seen[0] = requests.get(f"{self.base}/connectors/{name}/{resource}", timeout=30).json()
            return enough(seen[0])

        self.noting = False
        try:
            eventually(is_enough, f"{resource} is {state}")
        except AssertionError:
            raise AssertionError(f"{self.base}: {resource} is not {state}: {seen[0]}") from None
        finally:
            self.noting = True


@contextmanager
def recorded(side: Side) -> Iterator[None]:
    """Whoever asks through `requests`, answers are noted."""
    send = requests.Session.send

    def noting(session: requests.Session, request: requests.PreparedRequest, **more: Any) -> requests.Response:
        answer = send(session, request, **more)
        # Kafka Connect's workers have to agree first, which takes a moment after each change.
        while answer.status_code == 409 and re.search("momentarily|rebalance", answer.text):
            time.sleep(0.5)
            answer = send(session, request, **more)
        if not side.noting:
            return answer
        assert request.url is not None
        path = request.url.removeprefix(side.base).replace(side.plugin, "PLUGIN")
        body = answer.json() if answer.content else None
        side.answers.append(Answer(f"{request.method} {path}", answer.status_code, body, "Location" in answer.headers))
        return answer

    requests.Session.send = noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        requests.Session.send = send  # type: ignore[method-assign]


def drive(side: Side) -> None:
    """A connector's whole life, and all that can be wrong with a call."""
    client = KafkaConnect(side.base)
    create = {"name": NAME, "config": side.config}
    with recorded(side):
        client.get_cluster_info()
        side.ask("GET", "/health")
        client.list_connectors()
        client.list_connector_plugins()
        side.ask("GET", f"/connector-plugins/{side.plugin}/config")
        client.validate_connector_config(side.plugin, {"name": NAME, **side.config})
        client.validate_connector_config(side.plugin, {"connector.class": side.plugin, "tasks.max": "x"})
        _wrong_configurations(side)
        client.create_connector(create)
        side.reaches("RUNNING")
        _refused(client.create_connector, create)
        client.list_connectors()
        for expand in ("status", "info", "nothing"):
            client.list_connectors(expand=expand)
        side.ask("GET", "/connectors?expand=status&expand=info")
        client.get_connector(NAME)
        client.get_connector_config(NAME)
        client.get_connector_status(NAME)
        client.list_connector_tasks(NAME)
        client.get_connector_task_status(NAME, 0)
        client.pause_connector(NAME)
        side.reaches("PAUSED")
        client.get_connector_status(NAME)
        client.resume_connector(NAME)
        side.reaches("RUNNING")
        client.update_connector(NAME, {**side.config, "tasks.max": "2"})
        side.ask("PATCH", f"/connectors/{NAME}/config", {"tasks.max": None})
        side.ask("PATCH", f"/connectors/{NAME}/config", {"tasks.max": "0"})
        side.ask("PUT", f"/connectors/{NAME}/config", {**side.config, "name": "f9"})
        side.reaches("RUNNING")
        client.restart_connector(NAME)
        side.reaches("RUNNING")
        client.restart_connector(NAME, include_tasks=True)
        side.reaches("RUNNING")
        client.restart_connector(NAME, include_tasks=True, only_failed=True)
        client.restart_connector(NAME, only_failed=True)
        client.restart_connector_task(NAME, 0)
        side.reaches("RUNNING")
        _refused(client.restart_connector_task, NAME, 9)
        side.waits("topics", lambda answer: answer[NAME]["topics"])
        client.list_connector_topics(NAME)
        client.reset_connector_topics(NAME)
        side.ask("PATCH", f"/connectors/{NAME}/offsets", side.offsets)
        side.ask("DELETE", f"/connectors/{NAME}/offsets")
        side.waits("offsets", lambda answer: answer["offsets"])
        side.ask("GET", f"/connectors/{NAME}/offsets")
        client.stop_connector(NAME)
        side.reaches("STOPPED", tasks=0)
        client.get_connector(NAME)
        client.get_connector_status(NAME)
        client.list_connector_tasks(NAME)
        client.restart_connector(NAME)
        client.restart_connector(NAME, include_tasks=True)
        side.ask("PATCH", f"/connectors/{NAME}/offsets", side.offsets)
        side.ask("PATCH", f"/connectors/{NAME}/offsets", {"offsets": []})
        side.ask("PATCH", f"/connectors/{NAME}/offsets", {})
        side.ask("GET", f"/connectors/{NAME}/offsets")
        side.ask("DELETE", f"/connectors/{NAME}/offsets")
        client.resume_connector(NAME)
        side.reaches("RUNNING")
        client.restart_all_connectors(include_tasks=True, pattern="f.*")
        client.delete_connector(NAME)
        client.list_connectors()
        _of_none(client, side)
        side.ask("POST", "/connectors", {**create, "name": "f2", "initial_state": "PAUSED", "config": side.config})
        side.waits("status", lambda answer: answer.get("connector", {}).get("state") == "PAUSED", name="f2")
        side.ask("GET", "/connectors/f2/")
        client.delete_all_connectors(pattern="f2")
        _loggers(side)


def _wrong_configurations(side: Side) -> None:
    config = side.config
    for body in (
        {"name": NAME, "config": {**config, "tasks.max": "x"}},
        {"name": NAME, "config": {"connector.class": "No.Such"}},
        {"name": NAME, "config": {}},
        {"name": NAME},
        {"config": config},
        {"name": NAME, "config": {**config, "name": "f3"}},
        {"name": NAME, "config": config, "nope": 1},
        {"name": NAME, "config": config, "initial_state": "WHAT"},
        {"name": NAME, "config": [1]},
        {"name": NAME, "config": {**config, "tasks.max": None}},
        [1],
    ):
        side.ask("POST", "/connectors", body)
    json = {"Content-Type": "application/json"}
    side.ask("POST", "/connectors", data=b"{nope", headers=json)
    side.ask("POST", "/connectors", data=b"{}", headers={"Content-Type": "text/plain"})
    side.ask("POST", "/connectors")
    side.ask("PUT", f"/connectors/{NAME}/config", [1])
    side.ask("PUT", "/connectors")
    side.ask("DELETE", "/")
    side.ask("GET", "/nope")
    for accept in ("application/xml", "application/json", "application/xml, */*;q=0.1"):
        side.ask("GET", "/connectors", headers={"Accept": accept})
    validate = "/connector-plugins/{}/config/validate"
    side.ask("PUT", validate.format(side.plugin), {"tasks.max": "1"})
    side.ask("PUT", validate.format("Nope"), config)
    side.ask("PUT", validate.format("Nope"), {"connector.class": "Nope"})
    side.ask("GET", "/connector-plugins/Nope/config")


def _of_none(client: KafkaConnect, side: Side) -> None:
    """All that can be asked of a connector that is not there."""
    for call in (
        client.get_connector,
        client.get_connector_config,
        client.get_connector_status,
        client.list_connector_tasks,
        client.pause_connector,
        client.resume_connector,
        client.stop_connector,
        client.restart_connector,
        client.delete_connector,
        client.list_connector_topics,
        client.reset_connector_topics,
    ):
        _refused(call, "none")
    _refused(client.get_connector_task_status, "none", 0)
    _refused(client.get_connector_task_status, "none", "x")
    _refused(client.restart_connector_task, "none", 0)
    side.ask("GET", "/connectors/none/offsets")
    side.ask("DELETE", "/connectors/none/offsets")
    side.ask("PATCH", "/connectors/none/offsets", side.offsets)
    side.ask("PATCH", "/connectors/none/config", {"a": "b"})
    side.ask("GET", "/connectors/none/tasks-config")


def _loggers(side: Side) -> None:
    side.ask("GET", "/admin/loggers")
    side.ask("GET", "/admin/loggers/root")
    for name, body, query in (
        ("org.example", {"level": "DEBUG"}, ""),
        ("org.example", {"level": "LOUD"}, ""),
        ("org.example", {}, ""),
        ("org.example", {"level": "warn"}, "?scope=worker"),
        ("org.example", {"level": "WARN"}, "?scope=other"),
    ):
        side.ask("PUT", f"/admin/loggers/{name}{query}", body)
        side.ask("GET", f"/admin/loggers/{name}")
    side.ask("PUT", "/admin/loggers/org.example?scope=cluster", {"level": "INFO"})
    side.ask("GET", "/admin/loggers/no.such")


def _refused(call: Any, *arguments: Any) -> None:
    with suppress(requests.HTTPError):
        call(*arguments)


def different(ours: list[Answer], theirs: list[Answer]) -> list[str]:
    """How our answers differ from theirs, call by call."""
    differences: list[str] = []
    for our_answer, other in zip(ours, theirs, strict=True):
        assert our_answer.call == other.call
        if (our_answer.status, our_answer.location) != (other.status, other.location):
            differences.append(
                f"{our_answer.call}: {our_answer.status} {our_answer.body}, not {other.status} {other.body}"
            )
        elif our_answer.status == 500:
            differences += (
                [f"{our_answer.call}: {our_answer.body}"] if our_answer.body.keys() != other.body.keys() else []
            )
        else:
            named = isinstance(our_answer.body, dict) and NAMED.search(our_answer.call) is not None
            pairs = (
                zip(our_answer.body.values(), other.body.values(), strict=False)
                if named
                else [(our_answer.body, other.body)]
            )
            key = "config" if our_answer.call == f"GET /connectors/{NAME}/config" else ""
            differences += [f"{our_answer.call}: {line}" for pair in pairs for line in _shapes(key, *pair)]
    return differences


def _shapes(key: str, our_value: Any, other: Any) -> Iterator[str]:
    """How one of our values differs in shape from theirs."""
    if key in NULLABLE and (our_value is None or other is None):
        return
    if type(our_value) is not type(other):
        yield f"{key}: {our_value!r}, not {other!r}"
    elif isinstance(our_value, dict) and key in FREE:
        if key == "config" and not all(isinstance(value, str) for value in our_value.values()):
            yield f"{key}: not of texts: {our_value}"
    elif isinstance(our_value, dict):
        if our_value.keys() - other.keys() - MORE or other.keys() - our_value.keys():
            yield f"{key}: keys {list(our_value)}, not {list(other)}"
        for name in our_value.keys() & other.keys():
            yield from _shapes(name, our_value[name], other[name])
    elif isinstance(our_value, list):
        if other and not our_value and key in FULL:
            yield f"{key}: empty, not {other}"
        for value in our_value if other else ():
            yield from _shapes(key, value, other[0])
    elif key in EXACT and our_value != other:
        yield f"{key}: {our_value}, not {other}"
    elif key == "message" and our_value != other and not OF_JAVA.search(other):
        yield f"{our_value!r}, not {other!r}"
