"""What statements change, step by step, on a store that may fail before any of them: what no real server does when one
wants it to.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from helenus_agent.config import AgentSettings
from helenus_agent.control._source_store import StoredSource
from helenus_agent.control.statements import StatementError, StatementResult, StatementSession, parse_statements
from helenus_agent.own_properties import OwnProperties
from helenus_agent.sql_command import StatementText, format_error, format_result, prompt
from helenus_schemas.errors import HelenusError, Kind

SINK = "CREATE DATA_SINK lake WITH 'kafka://k1:9092,k2:9092?linger.ms=5&output.format=json'"
SOURCE = "CREATE DATA_SOURCE cdc ON TABLE ks.t WITH lake"
DROP = "DROP DATA_SOURCE cdc ON TABLE ks.t"
KAFKA = {"bootstrap.servers": "k1:9092,k2:9092", "linger.ms": "5"}


class Killed(Exception):
    """The process ends here."""


@dataclass
class Store:
    """What is in Cassandra. The change numbered `kill_at` is not made; `may_alter` is a right."""

    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    rows: dict[tuple[str, str], StoredSource] = field(default_factory=dict)
    tables: dict[tuple[str, str], bool] = field(default_factory=lambda: {("ks", "t"): False, ("ks", "u"): True})
    may_alter: bool = True
    kill_at: int = -1
    changes: int = 0

    def _change(self) -> None:
        if self.changes == self.kill_at:
            raise Killed
        self.changes += 1

    def read(self) -> dict[str, dict[str, str]]:
        return dict(self.configs)

    def write(self, service: str, config: dict[str, str]) -> None:
        self._change()
        self.configs[service] = dict(config)

    def sinks(self) -> dict[str, str]:
        return dict(self.addresses)

    def create_sink(self, name: str, address: str) -> bool:
        self._change()
        return self.addresses.setdefault(name, address) is address

    def drop_sink(self, name: str) -> bool:
        self._change()
        return self.addresses.pop(name, None) is not None

    def sources(self) -> list[StoredSource]:
        return sorted(self.rows.values(), key=lambda row: row.table)

    def note_altering(self, source: StoredSource) -> bool:
        self._change()
        former = self.rows.get((source.keyspace, source.table), source)
        if former.sink is not None:
            return False
        self.rows[source.keyspace, source.table] = replace(former, sets_cdc=True)
        return True

    def create_source(self, source: StoredSource) -> bool:
        self._change()
        former = self.rows.get((source.keyspace, source.table))
        if former is not None and former.sink is not None:
            return False
        if source.sets_cdc and not (former is not None and former.sets_cdc):
            return False
        self.rows[source.keyspace, source.table] = source
        return True

    def drop_source(self, source: StoredSource) -> bool:
        self._change()
        if self.rows.get((source.keyspace, source.table), source).sink != source.sink:
            return False
        self.rows[source.keyspace, source.table] = replace(source, sink=None, sets_cdc=False)
        return True

    def table_cdc(self, keyspace: str, table: str) -> bool | None:
        return self.tables.get((keyspace, table))

    def set_cdc(self, keyspace: str, table: str, value: bool) -> None:
        if not self.may_alter:
            raise HelenusError(Kind.CASSANDRA_AUTH, "Cassandra refuses ALTER TABLE", "", "GRANT ALTER")
        self._change()
        self.tables[keyspace, table] = value

    def state(self) -> Any:
        return self.configs, self.addresses, self.rows, self.tables


def execute(store: Store, *statements: str, **own: str) -> list[tuple[tuple[str, ...], ...]]:
    properties = {"config.store": "cassandra", **{key.replace("_", "."): text for key, text in own.items()}}
    own_properties = OwnProperties("agent.properties", properties)
    session = StatementSession(own_properties, AgentSettings.from_properties(properties, "agent.properties"))
    session._store = store  # type: ignore[assignment]
    return [session.execute(parsed).rows for text in statements for parsed in parse_statements(text)]


def test_a_table_is_published_and_no_more() -> None:
    store = Store()
    execute(store, SINK, SOURCE)
    assert store.configs == {"kafka": KAFKA, "cdc": {"cdc_enabled": "true"}}
    assert store.tables["ks", "t"]
    assert store.sources() == [StoredSource("ks", "t", "cdc", "lake", True)]
    [rows] = execute(store, DROP)
    assert ("ks.t", "cdc = false") in rows
    assert not store.tables["ks", "t"]
    # One that had cdc = true before keeps it.
    execute(store, SOURCE.replace("ks.t", "ks.u"))
    [rows] = execute(store, DROP.replace("ks.t", "ks.u"))
    assert ("ks.u", "cdc = true stays, as before") in rows
    assert store.tables["ks", "u"]
    assert execute(store, "DESCRIBE DATA_SOURCES") == [()]


@pytest.mark.parametrize("is_complete", [False, True])
@pytest.mark.parametrize("change_number", range(4))
@pytest.mark.parametrize(("first", "second"), [(DROP, SOURCE), (SOURCE, DROP), (SOURCE, SOURCE)])
def test_a_statement_in_the_middle_of_another_one(
    first: str, second: str, change_number: int, is_complete: bool
) -> None:
    """What has been created publishes, whoever drops or undoes it just then."""

    class Interrupted(Store):
        def _change(self) -> None:
            super()._change()
            if self.changes == change_number + 1 and not interruptions:
                interruptions.append(second)
                with contextlib.suppress(StatementError):
                    execute(self, second)

    store, interruptions = Store(), ["none yet"]
    execute(store, SINK)
    store.kill_at = -1 if is_complete else 4
    with contextlib.suppress(Killed):
        execute(store, SOURCE)
    interrupted = Interrupted(store.configs, store.addresses, store.rows, store.tables)
    interruptions.clear()
    with contextlib.suppress(StatementError):
        execute(interrupted, first)
    row = interrupted.rows["ks", "t"]
    assert row.sink is None or interrupted.tables["ks", "t"]


@pytest.mark.parametrize("kill_at", range(6))
def test_killed_before_any_change_it_goes_on_when_repeated(kill_at: int) -> None:
    whole = Store()
    execute(whole, SINK, SOURCE)
    store = Store(kill_at=kill_at)
    for statement in (SINK, SOURCE):
        try:
            execute(store, statement)
        except Killed:
            # Until the source is there, none has been created.
            assert all(row.sink is None for row in store.rows.values())
            store.kill_at = -1
            execute(store, statement)
    assert store.state() == whole.state()
    execute(whole, DROP)
    store.changes, store.kill_at = 0, kill_at
    try:
        execute(store, DROP)
    except Killed:
        store.kill_at = -1
        execute(store, DROP)
    assert store.state() == whole.state()


@pytest.mark.parametrize("kill_at", range(6))
def test_a_drop_undoes_what_was_not_completed(kill_at: int) -> None:
    store = Store()
    execute(store, SINK)
    store.changes, store.kill_at = 0, kill_at
    with contextlib.suppress(Killed):
        execute(store, SOURCE)
    store.kill_at = -1
    execute(store, DROP.replace("SOURCE", "SOURCE IF EXISTS"))
    assert not store.tables["ks", "t"]
    assert not any(row.sink or row.sets_cdc for row in store.rows.values())


def test_a_drop_meanwhile_is_seen() -> None:
    store = Store()
    execute(store, SINK)
    alter = store.set_cdc

    def alter_and_drop(keyspace: str, table: str, value: bool) -> None:
        alter(keyspace, table, value)
        if value:
            store.set_cdc = alter  # type: ignore[method-assign]
            execute(store, DROP)

    store.set_cdc = alter_and_drop  # type: ignore[method-assign]
    with pytest.raises(StatementError, match="somebody else changed the data source"):
        execute(store, SOURCE)
    assert not store.tables["ks", "t"]
    execute(store, SOURCE)
    assert store.sources() == [StoredSource("ks", "t", "cdc", "lake", True)]


def test_repetition_changes_nothing() -> None:
    store = Store()
    execute(store, SINK, SOURCE)
    before = repr(store.state())
    for statement in (SINK, SOURCE):
        with pytest.raises(StatementError, match="already"):
            execute(store, statement)
        execute(store, statement.replace("CREATE DATA_SINK", "CREATE DATA_SINK IF NOT EXISTS").replace(
            "CREATE DATA_SOURCE", "CREATE DATA_SOURCE IF NOT EXISTS"))  # fmt: skip
    assert repr(store.state()) == before
    # A cdc = false that somebody set meanwhile is mended.
    store.tables["ks", "t"] = False
    execute(store, SOURCE.replace("SOURCE", "SOURCE IF NOT EXISTS"))
    assert repr(store.state()) == before


def test_a_role_that_may_not_alter_the_table_changes_nothing() -> None:
    store = Store()
    execute(store, SINK)
    store.may_alter = False
    before = repr(store.state())
    with pytest.raises(StatementError, match="GRANT ALTER"):
        execute(store, SOURCE)
    assert repr(store.state()) == before
    store.may_alter = True
    execute(store, SOURCE)
    store.may_alter = False
    before = repr(store.state())
    with pytest.raises(StatementError, match="GRANT ALTER"):
        execute(store, DROP)
    assert repr(store.state()) == before


def moved(configs: dict[str, dict[str, str]], **own: str) -> str:
    """Return why a source is refused with these rows of `configs`; nothing is changed then."""
    store = Store()
    execute(store, SINK)
    store.configs = configs
    before = repr(store.state())
    with pytest.raises(StatementError) as raised:
        execute(store, SOURCE, **own)
    assert repr(store.state()) == before
    assert SOURCE[raised.value.start : raised.value.end] in ("lake", "ks.t")
    return raised.value.reason


def test_what_agents_do_otherwise_is_refused() -> None:
    assert "service kafka names k3:9092" in moved({"kafka": {"bootstrap.servers": "k3:9092"}})
    assert "has another linger.ms" in moved({"kafka": {"bootstrap.servers": "k2:9092,k1:9092"}})
    assert "has another linger.ms" in moved({"kafka": {**KAFKA, "linger.ms": "6"}})
    assert "cdc_enabled=false" in moved({"cdc": {"cdc_enabled": "false"}})
    assert "leave ks.t out" in moved({"cdc": {"table.include.list": r"shop\..*"}})
    assert "leave ks.t out" in moved({"cdc": {"table.exclude.list": r"ks\..*"}})
    assert "agents can't use it" in moved({"cdc": {"table.include.list": "("}})
    assert "one message broker" in moved({"pulsar": {"pulsar.service.url": "pulsar://p:6650"}, "cdc": {}})
    assert "one message broker" in moved({}, log="pulsar", pulsar_service_url="pulsar://p:6650")
    assert "name other brokers: k9:9092" in moved({}, bootstrap_servers="k9:9092")


def test_rows_that_have_agents_do_it_stay() -> None:
    for configs in (
        {"kafka": {**KAFKA, "bootstrap.servers": "k2:9092,k1:9092", "acks": "all"}},
        {"kafka": {"bootstrap.servers": KAFKA["bootstrap.servers"], "queue.buffering.max.ms": "5"}},
        {"cdc": {"table.include.list": r"ks\.t, other\..*"}},
        {"cdc": {}, "other": {"x": "y"}},
    ):
        store = Store()
        execute(store, SINK)
        store.configs = {service: dict(config) for service, config in configs.items()}
        execute(store, SOURCE)
        assert configs.items() <= store.configs.items()


WRONG = [
    ("CREATE DATA_SINK s WITH 'kafka://k?sasl.password=hunter22&linger.ms=x'", "a secret is not stored in clear"),
    ("CREATE DATA_SINK s WITH 'kafka://k?linger.mss=5'", "did you mean linger.ms?"),
    ("CREATE DATA_SINK s WITH 'kafka://k?ssl.ca.location=/etc/shadow'", "not among librdkafka's settings"),
    ("CREATE DATA_SINK s WITH 'kafka://k?plugin.library.paths=x'", "not among librdkafka's settings"),
    ("CREATE DATA_SINK s WITH 'kafka://k?linger.ms=soon'", "linger.ms"),
    ("CREATE DATA_SINK s WITH 'kafka://k?topic.prefix=x'", "it has its place in service cdc"),
    ("CREATE DATA_SINK s WITH 'kafka://k?topic.partitions=none'", "topic.partitions"),
    ("CREATE DATA_SINK s WITH 'kafka://k?bootstrap.servers=x:1'", "it has its place before the ?"),
    ("CREATE DATA_SINK s WITH 'kafka://k?state.dir=/'", "it concerns a single node"),
    ("CREATE DATA_SINK s WITH 'kafka://k?security.protocol=SASL_SSL&sasl.password=${env:HOME}'", "may not refer"),
    ("CREATE DATA_SOURCE cdc ON TABLE ks.none WITH lake", "there is no table ks.none"),
    ("CREATE DATA_SOURCE cdc ON TABLE system.local WITH lake", "are not published"),
    ("CREATE DATA_SOURCE cdc ON TABLE helenus.configs WITH lake", "are not published"),
    ("CREATE DATA_SOURCE cdc ON TABLE ks.t WITH none", "there is no data sink none"),
    ("DROP DATA_SINK none", "there is no data sink none"),
    ("DROP DATA_SOURCE cdc ON TABLE ks.t", "has no data source"),
]


@pytest.mark.parametrize(("statement", "reason"), WRONG)
def test_a_mistake_points_at_its_word(statement: str, reason: str) -> None:
    store = Store()
    execute(store, SINK)
    before = repr(store.state())
    with pytest.raises(StatementError) as raised:
        execute(store, statement)
    assert reason in raised.value.reason
    assert repr(store.state()) == before
    shown = format_error(StatementText("", statement), raised.value)
    assert "hunter22" not in shown
    if "?" in statement:
        word = statement[raised.value.start : raised.value.end]
        assert raised.value.reason.startswith(f"{word}: "), shown


def test_a_sink_in_use_stays() -> None:
    store = Store()
    execute(store, SINK, SOURCE)
    with pytest.raises(StatementError, match=r"DROP DATA_SOURCE cdc ON TABLE ks\.t first"):
        execute(store, "DROP DATA_SINK lake")
    execute(store, DROP, "DROP DATA_SINK lake")
    assert store.addresses == {}


def test_what_cql_wrote_is_not_trusted() -> None:
    store = Store(addresses={"lake": "kafka://k1?sasl.password=hunter22", "two": "file:///etc"})
    with pytest.raises(StatementError, match="the address of this sink is wrong"):
        execute(store, SOURCE)
    assert "hunter22" not in repr(execute(store, "DESCRIBE DATA_SINKS"))
    [rows] = execute(Store(addresses={"\x1b[2Jx": "kafka://k1"}), "DESCRIBE DATA_SINKS")
    assert "?[2Jx" in format_result(StatementResult(("data_sink", "address"), rows))


def test_the_prompt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A statement may have several lines, Ctrl-C forgets what is typed, an error goes on, and Ctrl-D ends."""
    properties = {"config.store": "cassandra"}
    own = OwnProperties("the environment", properties)
    session = StatementSession(own, AgentSettings.from_properties(properties, "the environment"))
    session._store = store = Store()  # type: ignore[assignment]
    lines: list[str | BaseException] = [
        "DROP DATA_SINK",
        KeyboardInterrupt(),
        "CREATE DATA_SINK lake",
        "WITH 'kafka://k1'; DESC DATA_SINKS;",
        "DROP DATA_SINK none;",
        "SELECT 1;",
        "help",
        EOFError(),
    ]
    prompts = []

    def read(shown: str) -> str:
        prompts.append(shown)
        line = lines.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)
    assert prompt(session) == 0
    assert prompts == ["helenus> ", "     ... ", "helenus> ", "     ... ", *["helenus> "] * 4]
    assert store.addresses == {"lake": "kafka://k1"}
    shown = capsys.readouterr()
    assert "data_sink lake | created" in shown.out
    assert " lake      | kafka://k1" in shown.out
    assert "there is no data sink none" in shown.err
    assert "for all others use cqlsh" in " ".join(shown.err.split())
    assert "nothing was executed" not in shown.err
    lines.append("exit")
    assert prompt(session) == 0
