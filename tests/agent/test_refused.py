"""A topic that the broker refuses costs its table what is written meanwhile, and the other tables nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent.fakes import write_of
from agent.test_agent import TABLE, Bench, metric
from agent.writer import table_of

from helenus_agent import agent as module
from helenus_agent.delivery import refused_topics
from helenus_agent.node.truncations import Truncation
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope
from helenus_schemas.event.wire import decode

ODD = table_of("odd", "pk int pk, v int")
LAST = table_of("last", "pk int pk, v int")
LOCAL = table_of("local", "pk int pk, v int", cdc=False, keyspace="system")
TOPIC = "events-ks.odd"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """One of its three tables is refused; each look at it is a try."""
    monkeypatch.setattr(module, "_COMMIT", 0.0)
    monkeypatch.setattr(module, "_LIST", -1.0)
    monkeypatch.setattr(refused_topics, "_RETRY_S", (0.0, 0.0))
    bench = Bench(tmp_path)
    bench.cassandra.set(ODD, TABLE, LAST, LOCAL)
    bench.log.closed.add(TOPIC)
    bench.raw.segment(10)
    yield bench
    bench.state.close()
    if bench.agent is not None:
        bench.agent._queue.close()
        for segment in bench.agent._queue.finished:
            segment.close()


def emitted(bench: Bench) -> dict[str, list[str | int]]:
    """What each topic holds: the names of scopes of whole tables, and the last byte of rows' keys."""
    events: dict[str, list[str | int]] = {}
    for topic, _, key, value, _ in bench.log.acknowledged:
        scope_or_number = decode(value or b"").scope.name if key is None else bench.number(key)[-1]
        events.setdefault(topic.removeprefix("events-ks."), []).append(scope_or_number)
    return events


def write(bench: Bench, number: int, segment: int = 10) -> None:
    """A row of each table."""
    bench.raw.write(segment, *(write_of(table, number) for table in (ODD, TABLE, LAST)))


def test_a_topic_that_cannot_be_created(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    skipped, gaps = metric("skipped_total", reason="refused_topic"), metric("gaps_total", reason="refused_topic")
    agent = bench.start(topic_partitions="1")
    for number in (1, 2):
        write(bench, number)
        bench.run_agent()
    assert emitted(bench) == {"t": [1, 2], "last": [1, 2]}
    assert bench.saved.refused == [str(ODD.id)]
    assert metric("skipped_total", reason="refused_topic") == skipped + 2
    assert metric("refused_tables") == 1
    assert "ks.odd is left out: not to be made" in (agent.ready() or "")
    bench.raw.index(10, complete=True)
    bench.run_agent()
    assert bench.raw.names == []  # its changes do not fill cdc_raw, where the others' are
    log_text = capsys.readouterr().out
    assert log_text.count("table.refused") == 1  # however often it is tried
    assert "table.resumed" not in log_text

    bench.log.closed.clear()
    bench.raw.segment(11)
    write(bench, 3, 11)
    bench.run_agent()
    assert emitted(bench) == {"t": [1, 2, 3], "last": [1, 2, 3], "odd": ["GAP", 3]}
    assert metric("gaps_total", reason="refused_topic") == gaps + 1
    assert metric("refused_tables") == 0
    assert (agent.ready(), bench.saved.refused) == (None, [])
    assert "table.resumed" in capsys.readouterr().out
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert emitted(bench)["odd"] == ["GAP", 3]


def test_a_topic_that_cannot_be_written(bench: Bench) -> None:
    """Its records are refused when they are flushed, with those of the others: these are appended again."""
    bench.log.closed.clear()
    agent = bench.start(topic_partitions="1")
    write(bench, 1)
    bench.run_agent()
    bench.log.closed.add(TOPIC)
    write(bench, 2)
    write(bench, 3)
    bench.run(until=7)
    assert emitted(bench) == {"t": [1, 2, 3], "last": [1, 2, 3], "odd": [1]}
    assert "ks.odd is left out: not to be written" in (agent.ready() or "")
    bench.log.closed.clear()
    write(bench, 4)
    bench.run(until=11)
    assert emitted(bench) == {"t": [1, 2, 3, 4], "last": [1, 2, 3, 4], "odd": [1, "GAP", 4]}
    assert agent.ready() is None


def test_refused_at_the_very_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published to stop is what it was: the next start finds out, and reads it all again."""
    bench.log.closed.clear()
    agent = bench.start(topic_partitions="1")
    bench.log.closed.add(TOPIC)
    write(bench, 1)
    monkeypatch.setattr(module, "_COMMIT", 1e9)
    agent._committed_at = module.time.monotonic()
    bench.run(seconds=0.2)
    assert (bench.log.acknowledged, bench.saved.segments) == ([], {})
    monkeypatch.setattr(module, "_COMMIT", 0.0)
    bench.start(topic_partitions="1")
    bench.run(until=2)
    assert emitted(bench) == {"t": [1], "last": [1]}


def test_an_error_that_does_not_name_the_topic(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another topic was opened, so it is not about who asks; a schema that does not fit is refused like that."""
    create = bench.log.create

    def refuses(topic: str, *more: Any) -> int:
        if topic == TOPIC:
            raise HelenusError(Kind.REGISTRY_REFUSED, "does not fit", "fake")
        return create(topic, *more)

    monkeypatch.setattr(bench.log, "create", refuses)
    bench.cassandra.set(TABLE, ODD, LAST)
    bench.start(topic_partitions="1")
    write(bench, 1)
    bench.run_agent()
    assert emitted(bench) == {"t": [1], "last": [1]}


def test_a_new_table(bench: Bench) -> None:
    bench.cassandra.set(TABLE, LAST)
    agent = bench.start(topic_partitions="1")
    assert agent.ready() is None
    bench.cassandra.set(TABLE, LAST, ODD)
    write(bench, 1)
    write(bench, 2)
    bench.run_agent()
    assert emitted(bench) == {"t": [1, 2], "last": [1, 2]}
    assert "ks.odd is left out" in (agent.ready() or "")


def test_all_topics_are_refused(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Then it ends, and nothing is passed over."""
    bench.log.closed |= {"events-ks.t", "events-ks.last"}
    write(bench, 1)
    with pytest.raises(HelenusError, match="not to be made") as error:
        bench.start(topic_partitions="1")
    assert error.value.kind is Kind.BROKER_REFUSED
    assert "table.refused" not in capsys.readouterr().out
    assert (bench.saved.refused, bench.saved.segments) == ([], {})
    bench.log.closed.clear()
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert emitted(bench) == {"odd": [1], "t": [1], "last": [1]}


def test_all_topics_are_refused_one_after_the_other(bench: Bench) -> None:
    """The last one waits with its changes, as one that is alone."""
    bench.start(topic_partitions="1")
    bench.log.closed |= {"events-ks.t", "events-ks.last"}
    write(bench, 1)
    with pytest.raises(HelenusError, match="not to be written"):
        bench.run()
    assert (bench.log.acknowledged, bench.saved.segments) == ([], {})


def test_a_broker_that_refuses_everybody_is_asked_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    topics_asked: list[str] = []

    def refuses(topic: str, *_: Any) -> int:
        topics_asked.append(topic)
        raise HelenusError(Kind.BROKER_REFUSED, "wrong password", "fake")

    monkeypatch.setattr(bench.log, "create", refuses)
    with pytest.raises(HelenusError, match="wrong password"):
        bench.start()
    assert len(topics_asked) == 1


def test_a_refused_table_is_remembered(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """An agent that is started again knows that the table has a gap, and says again that it is refused."""
    for number in (1, 2):
        agent = bench.start(topic_partitions="1")
        write(bench, number)
        bench.run_agent()
        assert "ks.odd is left out" in (agent.ready() or "")
        log_text = capsys.readouterr().out
        assert log_text.count("table.refused") == 1
        assert log_text.count("table=ks.odd") == number % 2 + 1  # the first one takes it for followed
    bench.log.closed.clear()
    bench.start(topic_partitions="1")
    write(bench, 3)
    bench.run_agent()
    assert emitted(bench) == {"t": [1, 2, 3], "last": [1, 2, 3], "odd": ["GAP", 3]}


def test_unacknowledged_events_are_no_gap(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before anything was saved: its changes are read again."""
    monkeypatch.setattr(refused_topics, "_RETRY_S", (1e9, 1e9))
    agent = bench.start(topic_partitions="1")
    write(bench, 1)
    while agent.step():
        pass
    bench.log.closed.clear()
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert emitted(bench) == {"odd": [1], "t": [1], "last": [1]}


def test_a_failed_attempt_does_not_affect_other_tables(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they have appended is acknowledged before; also if the topic is there by now, and only its records are not
    taken, or nobody answers."""
    monkeypatch.setattr(refused_topics, "_RETRY_S", (1e9, 1e9))
    agent = bench.start(topic_partitions="1")
    monkeypatch.setattr(module, "_COMMIT", 1e9)
    agent._committed_at = module.time.monotonic()
    write(bench, 1)
    assert agent.step()
    assert len(bench.log.waiting) == 2
    bench.log.counts[TOPIC] = 1
    agent._followed.refused._next_try_at = 0.0
    agent.step()
    assert emitted(bench) == {"t": [1], "last": [1]}
    assert "not to be written" in (agent.ready() or "")
    write(bench, 2)
    assert agent.step()
    bench.log.refuse_create = 1
    agent._followed.refused._next_try_at = 0.0
    agent.step()
    assert emitted(bench) == {"t": [1, 2], "last": [1, 2]}
    assert "away" in (agent.ready() or "")


def test_tries_become_rare(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_topics, "_RETRY_S", (1.0, 60.0))
    now = 1000.0
    monkeypatch.setattr(refused_topics.time, "monotonic", lambda: now)
    tries = refused_topics.RefusedTopics()
    waits: list[float] = []
    for _ in range(8):
        tries.postpone()
        waits.append(tries._next_try_at - now)
        assert not tries.is_due
        now = tries._next_try_at
        assert tries.is_due
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    now += 1000.0
    tries.postpone()
    assert tries._next_try_at - now == 1.0


@pytest.mark.parametrize("way", ["cdc", "dropped", "excluded"])
def test_a_refused_table_that_is_no_longer_wanted_gives_no_warning(bench: Bench, way: str) -> None:
    agent = bench.start(topic_partitions="1")
    write(bench, 1)
    bench.run_agent()
    assert agent.ready() is not None
    if way == "excluded":
        agent = bench.start(table_exclude_list=r"ks\.odd")
    else:
        bench.cassandra.set(*([replace(ODD, cdc=False)] if way == "cdc" else []), TABLE, LAST)
        bench.cassandra.is_changed = True
    bench.run_agent()
    assert agent.ready() is None
    assert metric("refused_tables") == 0
    # Where it is wanted again, it still has its gap; a recreated one has none.
    bench.log.closed.clear()
    if way == "excluded":
        bench.start(topic_partitions="1")
    else:
        recreated = table_of("odd", "pk int pk, v int", id=9)
        bench.cassandra.set(ODD if way == "cdc" else recreated, TABLE, LAST)
        bench.cassandra.is_changed = True
    bench.run_agent()
    assert emitted(bench).get("odd", []) == ([] if way == "dropped" else ["GAP"])


def test_truncated_while_it_is_refused(bench: Bench) -> None:
    """The gap covers the truncation; what comes after it is emitted."""

    def truncate(time: int) -> None:
        bench.cassandra.truncations[ODD.id] = Truncation(ODD.id, (10, bench.raw.ends[10]), time)
        bench.raw.write(10, write_of(LOCAL, 0))
        bench.run_agent()

    bench.start(topic_partitions="1")
    write(bench, 1)
    truncate(1_700_000_000_000)
    assert "odd" not in emitted(bench)
    bench.log.closed.clear()
    bench.run_agent()
    write(bench, 2)
    truncate(1_700_000_000_001)
    assert emitted(bench)["odd"] == ["GAP", 2, Scope.TABLE.name]


def test_altered_while_it_is_refused(bench: Bench) -> None:
    """It stays out: that a table has another column makes no topic of it."""
    bench.start(topic_partitions="1")
    wider = table_of("odd", "pk int pk, v int, w int")
    bench.cassandra.set(wider, TABLE, LAST)
    bench.cassandra.is_changed = True
    write(bench, 1)
    bench.run_agent()
    assert emitted(bench) == {"t": [1], "last": [1]}


def test_another_number_of_partitions_after_the_refusal(bench: Bench) -> None:
    """The topic may be recreated when it is repaired."""
    bench.log.closed.clear()
    agent = bench.start(topic_partitions="1")
    write(bench, 1)
    bench.run_agent()
    write(bench, 2)
    agent.step()
    del bench.log.counts[TOPIC]
    bench.log.closed.add(TOPIC)
    bench.log.refuse_flush = 1
    bench.run(until=5)
    assert "left out" in (agent.ready() or "")
    bench.log.closed.clear()
    bench.log.counts[TOPIC] = 3
    bench.run_agent()
    assert emitted(bench)["odd"] == [1, "GAP", "GAP", "GAP"]
    write(bench, 3)
    bench.run_agent()
    assert emitted(bench)["odd"][4:] == [3]
