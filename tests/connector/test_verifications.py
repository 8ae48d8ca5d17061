"""Verifications over REST and by the command, without Spark: who may ask for what, and how a result is shown."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from helenus_connector import verify_command
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.connectors import Connectors
from helenus_connector.log import events
from helenus_connector.metrics import Labels
from helenus_connector.rest._call import RestCall
from helenus_connector.rest._verifications import VerificationResources
from helenus_connector.testing.broker import MemoryPlanner
from helenus_connector.verify import _engine, _metrics, verifications
from helenus_connector.verify.report import EXPIRED, MISSING, STALE, DifferingKeys, Progress, VerifyReport
from helenus_connector.verify.verifications import Verifications
from helenus_schemas.errors import HelenusError, Kind

CONFIG = {
    "connector.class": "helenus.CassandraSource",
    "keyspace": "ks1",
    "table": "a,b",
    "cassandra.contact.points": "c",
    "output.format": "json",
}
LABELS: Labels = ("n", "ks1", "a")


class House:
    """The verifications of a worker with one connector; what `found` says is their result."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        properties = {"bootstrap.servers": "127.0.0.1:1", "checkpoint.dir": str(tmp_path)}
        worker = WorkerSettings.from_properties(properties, "worker")
        self.connectors = Connectors(worker, lambda topics: {})
        self.connectors.put("n", CONFIG)
        self.verifications = Verifications(worker, self.connectors)
        self.resources = VerificationResources(self.verifications).resources()["/connectors/{name}/verifications"]
        self.found: VerifyReport | Exception = report()
        self.begun = threading.Event()
        self.waits = False
        monkeypatch.setattr(_engine, "verify", self._verify)

    def ask(self, method: str, body: Any = None, name: str = "n") -> tuple[int, Any]:
        try:
            answer = self.resources[method](RestCall("", {"name": name}, None, body))  # type: ignore[arg-type]
        except HTTPException as error:
            return error.status_code, error.detail
        return answer.status_code, json.loads(bytes(answer.body))["verifications"]

    def _verify(self, _: Any, __: Any, ___: Any, ____: Any, progress: Progress, *_____: Any) -> VerifyReport:
        self.begun.set()
        if self.waits:
            progress.stop.wait(10)
            progress.check()
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def over(self) -> list[dict[str, Any]]:
        """Run what was asked for."""
        self.verifications.start(None)
        for _ in range(1000):
            shown_runs = self.ask("GET")[1]
            if all(shown_run["state"] not in ("WAITING", "RUNNING") for shown_run in shown_runs):
                return list(shown_runs)
            threading.Event().wait(0.01)
        raise AssertionError(shown_runs)


def report(**counts: int) -> VerifyReport:
    made = VerifyReport("n", "ks1", "a", "data-ks1.a", 1.0, seconds=2.0, rows=10, records=12)
    for kind, count in counts.items():
        made.found[kind] = DifferingKeys(count, ['{"k":1}'])
    return made


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    house = House(tmp_path, monkeypatch)
    yield house
    house.verifications.close()
    _metrics.forget(LABELS)


def test_what_can_not_be_asked(house: House) -> None:
    assert house.ask("POST", {}, "other") == (404, "Connector other not found")
    assert house.ask("POST", {"tables": ["c"]})[0] == 400
    assert "there are a, b" in house.ask("POST", {"tables": ["c"]})[1]
    assert house.ask("POST", {"tables": "a"}) == (400, "tables: a list of names is expected")
    assert house.ask("POST", [])[0] == 400
    assert house.ask("POST", {"sample": 2}) == (400, "sample: 2 is no share: give more than 0, and 1 at most")
    assert house.ask("GET") == (200, [])
    assert house.ask("POST", {"tables": ["a"]})[0] == 202
    status, answer = house.ask("POST")
    assert (status, "a verification of a is under way" in answer) == (409, True)


def test_a_result_is_shown_and_exported(house: House) -> None:
    house.found = report(missing=2, expired=1)
    status, [begun] = house.ask("POST", {"tables": ["a"], "sample": 0.5})
    assert (status, begun["state"], begun["progress"]["does"]) == (202, "WAITING", "waiting")
    [finished] = house.over()
    assert (finished["id"], finished["state"]) == (begun["id"], "DONE")
    assert finished["report"]["differences"]["missing"] == {"count": 2, "keys": ['{"k":1}']}
    assert finished["report"]["apart"]["expired"]["count"] == 1
    assert finished["report"]["equal"] is False
    assert _metrics.DIFFERENCES.labels(*LABELS, MISSING)._value.get() == 2
    assert _metrics.DIFFERENCES.labels(*LABELS, STALE)._value.get() == 0
    assert _metrics.ROWS.labels(*LABELS)._value.get() == 10
    lines = verify_command.lines("n", finished)
    assert lines[0] == "n a: topic and table differ (10 rows, 12 records, 2.0 s)"
    assert lines[1:] == ['  missing: 2: {"k":1}, …', '  expired: 1, no difference: {"k":1}']
    single = {**finished, "report": {**finished["report"], "rows": 1, "records": 1}}
    assert verify_command.lines("n", single)[0] == "n a: topic and table differ (1 row, 1 record, 2.0 s)"


def test_each_table_is_verified_also_after_one_that_failed(house: House) -> None:
    house.found = HelenusError(Kind.TOPIC_MISSING, "there is no data topic")
    assert len(house.ask("POST")[1]) == 2
    for finished in house.over():
        assert (finished["state"], "there is no data topic" in finished["error"]) == ("FAILED", True)
        assert verify_command.lines("n", finished)[0].startswith(
            f"n {finished['table']}: FAILED, there is no data topic"
        )
    house.found = report()
    house.ask("POST", {"tables": ["a"]})
    assert [shown_run["state"] for shown_run in house.over()] == ["DONE", "FAILED"]


def test_it_can_be_stopped(house: House) -> None:
    house.waits = True
    house.ask("POST")
    house.verifications.start(None)
    assert house.begun.wait(10)
    assert [shown_run["table"] for shown_run in house.ask("DELETE")[1]] == ["a", "b"]
    assert [shown_run["state"] for shown_run in house.over()] == ["STOPPED", "STOPPED"]


def test_a_deleted_connector_has_no_results(house: House) -> None:
    house.found = report(stale=1)
    house.ask("POST", {"tables": ["a"]})
    house.over()
    house.connectors.delete("n")
    house.verifications._forget()
    assert house.ask("GET") == (404, "Connector n not found")
    assert _metrics.DIFFERENCES.labels(*LABELS, STALE)._value.get() == 0


def test_the_last_result_outlives_the_worker(house: House, tmp_path: Path) -> None:
    house.found = replace(report(missing=200, expired=1), seconds=60.0)
    house.found.found[MISSING].keys = [f'{{"k":{n}}}' for n in range(200)]
    house.ask("POST", {"tables": ["a"], "limit": 200})
    [finished] = house.over()
    house.verifications.close()
    _metrics.forget(LABELS)
    assert _metrics.DIFFERENCES.labels(*LABELS, MISSING)._value.get() == 0
    house.found = HelenusError(Kind.TOPIC_MISSING, "there is no data topic")
    house.ask("POST", {"tables": ["a", "b"]})
    house.verifications._stopping.clear()
    assert [shown_run["state"] for shown_run in house.over()] == ["FAILED", "FAILED"], (
        "which takes no earlier result away"
    )
    house.found = replace(report(), table="b")
    house.ask("POST", {"tables": ["b"]})
    house.over()
    house.verifications.close()
    later = Verifications(house.verifications._worker, house.connectors)
    first, other = later.last_verifications("n")
    assert other.labels[2] == "b"
    shown = first.shown()
    assert (shown["state"], shown["table"]) == ("DONE", "a")
    assert shown["report"]["differences"]["missing"]["count"] == 200
    assert len(shown["report"]["differences"]["missing"]["keys"]) == 10
    finished["report"]["differences"]["missing"]["keys"] = shown["report"]["differences"]["missing"]["keys"]
    assert shown["report"] == finished["report"]
    assert _metrics.DIFFERENCES.labels(*LABELS, MISSING)._value.get() == 200
    assert _metrics.ENDED.labels(*LABELS)._value.get() == 61.0
    house.connectors.delete("n")
    later._forget()
    assert not Verifications(house.verifications._worker, house.connectors)._last
    (tmp_path / "verifications").write_text("torn")
    assert not Verifications(house.verifications._worker, house.connectors)._last


def test_an_events_topic_without_a_leader_is_not_all_read(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = MemoryPlanner()
    broker.ends = {"events-ks1.a": {}}
    monkeypatch.setattr(verifications, "planner", lambda _: broker)
    monkeypatch.setattr(events, "_LEADER_S", 0.0)
    task = house.connectors.all()["n"].tasks["a"]
    with pytest.raises(HelenusError, match="no leader") as error:
        house.verifications._behind(task, Progress())
    assert error.value.kind is Kind.BROKER_UNREACHABLE
    broker.ends = {"events-ks1.a": {"0": 3}}
    assert house.verifications._behind(task, Progress())() is not None


class Asked:
    """Stands for a worker that is asked; its verifications take two calls."""

    def __init__(self, *reports: dict[str, Any]) -> None:
        self.found = reports
        self.calls: list[tuple[str, str, Any]] = []

    def ask(self, method: str, path: str, body: Any = None, *, has: str) -> Any:
        self.calls.append((method, path, body))
        running = {"state": "RUNNING", "progress": {"does": "reading", "tasks": 4, "done": 1, "seconds": 1.0}}
        is_over = len([c for c in self.calls if c[0] == "GET"]) > 1
        shown = [
            {"id": n, "table": f"t{n}", **(own_report if is_over else running)}
            for n, own_report in enumerate(self.found)
        ]
        return [*shown, {"id": 99, "table": "other", "state": "RUNNING"}] if method == "GET" else shown


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ([report()], 0),
        ([report(), report(stale=1)], 3),
        ([report(expired=1)], 0),
        ([report(stale=1), "it failed"], 1),
    ],
)
def test_the_exit_status(outcomes: list[Any], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    ends = [
        {"state": "FAILED", "error": outcome}
        if isinstance(outcome, str)
        else {"state": "DONE", "report": outcome.as_json()}
        for outcome in outcomes
    ]
    worker: Any = Asked(*ends)
    assert verify_command.verify(worker, "a/b", (), True, repair=False, sample=None) == status
    assert worker.calls[0] == ("POST", "/connectors/a%2Fb/verifications", {"tables": [], "repair": False})
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [shown_run["state"] for shown_run in shown] == [end["state"] for end in ends]
    assert EXPIRED not in VerifyReport("n", "k", "t", "d", 0.0).as_json()["differences"]
