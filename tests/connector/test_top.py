"""The live view: what it computes from two looks at a worker, and what it says where there is none."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner, Result
from prometheus_client import generate_latest
from rich.console import Console

from helenus_connector import metrics
from helenus_connector.cli import main
from helenus_connector.metrics import Labels
from helenus_connector.snapshot import _metrics as of_snapshots
from helenus_connector.snapshot.snapshot_store import Snapshot
from helenus_connector.top import Moment, SnapshotProgress, TableRates, view

ORDERS: Labels = ("shop", "ks", "orders")
STATUS = {
    "shop": {
        "status": {
            "name": "shop",
            "connector": {"state": "RUNNING", "worker_id": "h:1"},
            "tasks": [{"id": 0, "state": "FAILED", "worker_id": "h:1", "trace": "no such table\nmore"}],
        }
    },
    "stock": {
        "status": {
            "name": "stock",
            "connector": {"state": "RUNNING", "worker_id": "h:1", "trace": "cannot connect to Cassandra"},
            "tasks": [
                {"id": 0, "state": "UNASSIGNED", "worker_id": "h:1", "trace": "cannot connect to Cassandra"},
                {"id": 1, "state": "UNASSIGNED", "worker_id": "h:1", "trace": "waits for its events topic"},
            ],
        }
    },
}


@pytest.fixture
def worker() -> Iterator[str]:
    """A listener with the real metrics; each look finds ten more events. Asks for a password below /asks."""
    metrics.begin(ORDERS, 0)
    metrics.state(ORDERS, "FAILED")
    metrics.LAG.labels(*ORDERS).set(12_345)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.removeprefix("/asks")
            if path != self.path and self.headers.get("Authorization") != "Basic bWU6czNjcmV0":
                self.send_error(401)
                return
            metrics.EVENTS_READ.labels(*ORDERS).inc(10 if path == "/metrics" else 0)
            metrics.EVENTS.labels(*ORDERS, "confirmed").inc(5 if path == "/metrics" else 0)
            body = generate_latest() if path == "/metrics" else json.dumps(STATUS).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
    metrics.forget(ORDERS)


def top(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["top", "--once", "--interval", "0.1", *arguments], env={"COLUMNS": "160"})


def test_top_of_one_table(worker: str) -> None:
    result = top("--url", worker)
    assert result.exit_code == 0, result.output
    (row,) = [line for line in result.stdout.splitlines() if "ks.orders" in line]
    cells = row.split()
    assert cells[:3] == ["shop", "ks.orders", "FAILED"]
    assert cells[3:8] == ["12.3k", "-", "0", "ms", "0"]
    assert 20 < float(cells[8]) <= 100  # ten within 0.1 s and a bit
    assert cells[10] == "50%"
    assert [line.strip() for line in result.stdout.splitlines() if ": " in line] == [
        "shop task 0: no such table",
        "stock: cannot connect to Cassandra",
        "stock task 1: waits for its events topic",
    ]
    metrics.LAG.labels(*ORDERS).set(math.nan)
    assert " ? " in top("--url", worker).stdout


def test_a_worker_that_asks_for_a_password(worker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELENUS_TEST_LOGIN", "me:s3cret")
    assert top("--url", f"{worker}/asks", "--user", "${env:HELENUS_TEST_LOGIN}").exit_code == 0
    for more in ((), ("--user", "me:other")):
        result = top("--url", f"{worker}/asks", *more)
        assert result.exit_code == 1
        assert "the worker answered 401" in result.stderr
        assert "--user" in result.stderr
    result = top("--url", worker, "--user", "${env:HELENUS_NOT_THERE}")
    assert (result.exit_code, "HELENUS_NOT_THERE" in result.stderr) == (2, True)


def test_top_without_a_worker() -> None:
    result = top("--url", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "helenus-connector: no worker answers: Connection refused (http://127.0.0.1:1/metrics)"
    )
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, '{"ok": true}'),
        (200, "[]"),
        (200, '{"snapshots": 5, "verifications": [5]}'),
        (200, ""),
        (404, '{"error_code": 404, "message": "HTTP 404 Not Found"}'),  # Kafka Connect
        (405, '{"error_code": 405, "message": "HTTP 405 Method Not Allowed"}'),
        (404, '{"status": 404, "message": null}'),
        (404, "[]"),
        (404, "<html>"),
    ],
)
@pytest.mark.parametrize("command", ["verify n", "snapshot n", "snapshot n --show", "snapshot n --pause"])
def test_a_service_that_is_no_worker(command: str, status: int, answer: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer.encode())

        def do_POST(self) -> None:
            self.do_GET()

        def do_PUT(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        result = CliRunner().invoke(main, [*command.split(), "--url", url])
        server.shutdown()
    assert result.exit_code == 1
    assert result.stderr.startswith(f"helenus-connector: that is no worker of Helenus ({url}/connectors/n/")


@pytest.mark.parametrize(
    ("url", "code"),
    [("127.0.0.1:8083", 2), ("http://no.such.host.invalid", 1), ("gopher://x", 2), ("http://h:port", 2)],
)
def test_a_bad_address(url: str, code: int) -> None:
    result = top("--url", url)
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1)


@pytest.mark.parametrize("url", ["http://me:s3cret@127.0.0.1:1", "http://me:s3/cret@127.0.0.1:1"])
def test_a_login_in_the_address_is_not_shown(url: str) -> None:
    result = top("--url", url)
    assert (result.exit_code, "--user" in result.stderr, "s3" in result.stderr) == (2, True, False)


def test_rates_between_two_scrapes() -> None:
    before = TableRates("RUNNING", {"events_read_total": 100, "records_total": 50, "statements_total": 10})
    after = TableRates(
        "RUNNING",
        {
            "events_read_total": 300,
            "events_total/confirmed": 150,
            "records_total": 60,
            "statements_total": 20,
            "query_seconds_total": 0.05,
            "replication_latency_seconds": 130.0,
            "events_total/dead_lettered": 2,
        },
    )
    started_again = TableRates("PAUSED", {"events_read_total": 40})
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        other = ("a", "ks", "b")
        console.print(view(Moment(1, {ORDERS: before, other: after}), Moment(3, {ORDERS: after, other: started_again})))
        lines = [line.split() for line in console.export_text().splitlines()]
    assert "a ks.b PAUSED 0 - 0 ms 0 20 0 0% - 0 0 0".split() in lines
    assert "shop ks.orders RUNNING 0 2 min 0 ms 0 100 5 75% 5 ms 0 2 0".split() in lines


def drawn(width: int, tables: dict[Labels, TableRates]) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(view(Moment(1, {}), Moment(3, tables)))
        return console.export_text()


@pytest.mark.parametrize("width", [60, 80, 100, 130, 200])
def test_lag_and_latency_are_shown_at_any_width(width: int) -> None:
    long = ("orders-of-all-customers", "customer_orders", "invoice_line_items_of_2026")
    values = {"lag_events": 12_345.0, "replication_latency_seconds": 0.213, "events_read_total": 1e6}
    tables = {ORDERS: TableRates("RUNNING", values), long: TableRates("UNASSIGNED", {**values, "events_lost_total": 3})}
    for shown in (tables, {ORDERS: tables[ORDERS]}):
        lines = drawn(width, shown).splitlines()
        assert all(len(line) <= width for line in lines)
        headings, rows = lines[0].split(), [line for line in lines if "12.3k" in line]
        assert len(rows) == len(shown)
        assert all("213 ms" in row and "…" not in row.split()[-1] for row in rows)
        assert {"state", "lag", "latency"} <= set(headings)
        assert "lost" in headings or long not in shown, "a number in red stays"
    assert "orders" in drawn(width, {ORDERS: tables[ORDERS]})


def test_a_pipe_shows_all(worker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    result = CliRunner().invoke(main, ["top", "--once", "--interval", "0.1", "--url", worker])
    assert "lost" in result.stdout
    assert "dead" in result.stdout


def test_a_failure_is_shown_where_there_are_no_tables() -> None:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(view(Moment(1, {}), Moment(3, {}, ("shop: Cassandra refused the login",))))
    assert "Cassandra refused the login" in console.export_text()


@pytest.mark.parametrize("width", [80, 120])
def test_snapshots_that_run_are_shown(width: int) -> None:
    names = [("orders-of-all-customers", "invoice_line_items_of_2026"), ("shop", "orders")]
    before = {name: SnapshotProgress("SCANNING", 100_000, 0.2, 8) for name in names}
    now = {
        names[0]: SnapshotProgress("SCANNING", 150_000, 0.25, 300),
        names[1]: SnapshotProgress("PAUSED", 100_000, 0.2, 10),
        ("shop", "old"): SnapshotProgress("COMPLETE", 9, 1.0, 1),
    }
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        tables = {ORDERS: TableRates("RUNNING", {"lag_events": 12_345.0})}
        console.print(view(Moment(1, {}, snapshots=before), Moment(3, tables, snapshots=now)))
        lines = console.export_text().splitlines()
    assert all(len(line) <= width for line in lines)
    assert "lag" in lines[0], "lag comes first"
    assert not any("old" in line for line in lines)
    running, paused = (next(line for line in lines if state in line).split() for state in ("SCANNING", "PAUSED"))
    assert [cell for cell in running[3:] if cell != "150.0k"] == ["25%", "25.0k", "~15", "min"]
    assert paused[:4] == ["shop", "orders", "PAUSED", "20%"]
    assert paused[-1] == "-"


@pytest.mark.parametrize("width", [80, 120])
def test_what_waits_at_the_gate_is_shown(width: int) -> None:
    """The most first; nothing of tables that hold nothing back."""
    waits = {"gate_waiting_changes": 12_345.0, "gate_oldest_seconds": 42.0, "gate_waiting_bytes": 7.9e6}
    long = ("orders-of-all-customers", "customer_orders", "invoice_line_items_of_2026")
    tables = {
        ORDERS: TableRates("RUNNING", {**waits, "gate_changes_total/completed": 100.0}),
        long: TableRates("RUNNING", {**waits, "gate_waiting_changes": 20.0, "gate_changes_total/dropped": 3.0}),
        ("shop", "ks", "free"): TableRates("RUNNING", {"gate_changes_total/completed": 5.0}),
    }
    lines = drawn(width, tables).splitlines()
    assert all(len(line) <= width for line in lines)
    heading_line = next(index for index, line in enumerate(lines) if "at the gate of" in line)
    shown = [line.split() for line in lines[heading_line + 2 :] if line.strip()]
    assert [row[0] for row in shown] == ["shop", shown[1][0]]
    assert [cell for cell in shown[0][1:] if cell != "7.9MB"] == ["ks.orders", "12.3k", "42.0", "s", "50", "0"]
    assert ("7.9MB" in shown[0]) == (width > 80), "the least of it"
    assert (shown[1][2], shown[1][-1]) == ("20", "3")
    assert "at the gate" not in drawn(width, {ORDERS: TableRates("RUNNING")})


@pytest.mark.parametrize("width", [80, 120])
def test_what_a_state_keeps_is_shown(width: int) -> None:
    state_rates = {"state_bytes": 7.9e6, "state_waiting": 12_345.0, "state_batch_seconds": 0.25}
    tables = {
        ORDERS: TableRates("RUNNING", {**state_rates, "live_keys": 20_000.0, "live_keys_asked_total/expired": 50.0}),
        ("shop", "ks", "stock"): TableRates("RUNNING", {**state_rates, "rows_kept": 300.0}),
        ("shop", "ks", "plain"): TableRates("RUNNING"),
    }
    lines = drawn(width, tables).splitlines()
    assert all(len(line) <= width for line in lines)
    heading_line = next(index for index, line in enumerate(lines) if "state of" in line)
    shown = [line.split() for line in lines[heading_line + 2 :] if line.strip()]
    assert shown == [
        "shop ks.orders 20.0k - 7.9MB 12.3k 250 ms 25".split(),
        "shop ks.stock - 300 7.9MB 12.3k 250 ms -".split(),
    ]
    assert "state of" not in drawn(width, {ORDERS: TableRates("RUNNING")})


def test_few_of_many_snapshots_are_shown() -> None:
    snapshots = {("shop", f"t{number}"): SnapshotProgress("SCANNING", 1, 0.5, 1) for number in range(15)}
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(view(Moment(1, {}), Moment(3, {ORDERS: TableRates("RUNNING")}, snapshots=snapshots)))
        assert "and 5 more" in console.export_text()


def test_a_snapshot_is_read_from_the_metrics(worker: str) -> None:
    snapshot = Snapshot("shop", "orders", "1", "signal", rows=1234, started=time.time() - 10)
    of_snapshots.show([snapshot], {("shop", "orders")})
    result = top("--url", worker)
    of_snapshots.show([], set())
    [row] = [line.split() for line in result.stdout.splitlines() if "SCANNING" in line]
    assert row[:5] == ["shop", "orders", "SCANNING", "100%", "0"]
