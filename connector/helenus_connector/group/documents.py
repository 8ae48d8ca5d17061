"""What a worker keeps, as records of its group's topic: its connectors in the form of Kafka Connect's workers, whose
tools can read them, and how far snapshots are.

    connector-NAME             {"properties": {…}}                      as Connect's
    target-state-NAME          {"state": …, "state.v2": …}              as Connect's
    helenus-file-NAME          {"properties": {…}, "deleted": false}    of one that comes from a file
    helenus-snapshots-…        the snapshots of a table
    helenus-signals-…          where a connector is in its signal topic
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from helenus_connector.control.connectors import DELETED
from helenus_connector.group._topic_writer import Values
from helenus_connector.group.shared_topic import SharedTopic

_CONNECTOR, _TARGET, _FILE = "connector-", "target-state-", "helenus-file-"
_SNAPSHOTS, _SIGNALS = "helenus-snapshots-", "helenus-signals-"
_RUNNING = "STARTED"
"""Connect's word for RUNNING."""


class ConnectorRecords:
    """The connectors: a `control.documents.Document`."""

    def __init__(self, topic: SharedTopic) -> None:
        self._topic = topic

    def read(self) -> dict[str, Any]:
        """Return the connectors by name, as the file of a worker has them."""
        values = self._topic.values()
        names = [key.removeprefix(kind) for kind in (_CONNECTOR, _FILE) for key in values if key.startswith(kind)]
        connectors: dict[str, Any] = {}
        for name in dict.fromkeys(names):
            config, file = _properties(values.get(_CONNECTOR + name)), _properties(values.get(_FILE + name))
            state = DELETED if config is None else _wanted(values.get(_TARGET + name))
            connectors[name] = {"config": config or {}, "state": state, "file": file}
        return connectors

    def save(self, content: Mapping[str, Mapping[str, Any]]) -> None:
        """Save what has changed."""
        _save(self._topic, (_CONNECTOR, _TARGET, _FILE), connector_values(content))


class SnapshotRecords:
    """How far snapshots are: a `control.documents.Document`."""

    def __init__(self, topic: SharedTopic) -> None:
        self._topic = topic

    def read(self) -> dict[str, Any] | None:
        """Return the snapshots as the file of a worker has them; None if there were never any."""
        values = self._topic.values()
        tables = [value for key, value in values.items() if key.startswith(_SNAPSHOTS)]
        signals = [value for key, value in values.items() if key.startswith(_SIGNALS)]
        return {"tables": tables, "signals": signals} if tables or signals else None

    def save(self, content: Mapping[str, Any]) -> None:
        """Save what has changed."""
        _save(self._topic, (_SNAPSHOTS, _SIGNALS), snapshot_values(content))


def connector_values(connectors: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return connectors by name, as a file has them, as values of the topic."""
    values: dict[str, Any] = {}
    for name, connector in connectors.items():
        wanted, file = connector["state"], connector["file"]
        if wanted != DELETED:
            state = _RUNNING if wanted == "RUNNING" else wanted
            values[_CONNECTOR + name] = {"properties": dict(connector["config"])}
            # Connect's workers before 3.5 know no STOPPED: they are to pause.
            values[_TARGET + name] = {"state": "PAUSED" if state == "STOPPED" else state, "state.v2": state}
        if file is not None:
            values[_FILE + name] = {"properties": dict(file), "deleted": wanted == DELETED}
    return values


def snapshot_values(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file of snapshots as values of the topic."""
    return {
        **{f"{_SNAPSHOTS}{_path(entry['connector'], entry['table'])}": entry for entry in content["tables"]},
        **{f"{_SIGNALS}{_path(entry['connector'], entry['topic'])}": entry for entry in content["signals"]},
    }


def _path(*names: str) -> str:
    return json.dumps(names, separators=(",", ":"))


def _properties(value: Any) -> dict[str, Any] | None:
    """Return the properties in a record. They are checked where they are read; one of another form has none."""
    if value is None:
        return None
    properties = value.get("properties") if isinstance(value, dict) else None
    return properties if isinstance(properties, dict) else {}


def _wanted(target: Any) -> str:
    state = target.get("state.v2", target.get("state")) if isinstance(target, dict) else _RUNNING
    return str(state) if state in ("PAUSED", "STOPPED") else "RUNNING"


def _save(topic: SharedTopic, kinds: tuple[str, ...], values: Values) -> None:
    def change(present: Values) -> Values:
        former = {key: value for key, value in present.items() if key.startswith(kinds)}
        changed = {key: value for key, value in values.items() if _text(former.get(key)) != _text(value)}
        return {**changed, **dict.fromkeys(former.keys() - values.keys())}

    topic.update(change)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
