"""A workload that remembers each of its writes, and what `read_committed` readers must find of them, once and in order.

Its tables are `(k int PRIMARY KEY, n bigint)`; each write has its number `n`, which is its write time too.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from cassandra import DriverException
from cassandra.cluster import NoHostAvailable
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

_TTL_S = 2
_DELETES, _EXPIRES = 11, 7
"""Of a table with rows that go, each so manieth write is a DELETE, or has a TTL: no key's turn is always the same."""
_READ_TIMEOUT_S = 30.0


class CountRecord(NamedTuple):
    """A record of a key: its row's `n`, None if it says that there is no row, and the digest of the change that it was
    made for, if its headers have one. A state requested the read of what is `requested`.
    """

    n: int | None
    digest: bytes | None
    requested: bool = False


Counts = dict[int, list[CountRecord]]
"""The records of each key, in order."""


class WriteLog:
    """Writes to these keys of tables in turns, so many times a second, while it is entered. Rows of those that are
    `passing` also expire and are deleted.
    """

    def __init__(
        self, session: Any, tables: Sequence[str], keys: range, rate: float, passing: Collection[str] = ()
    ) -> None:
        self.written: dict[str, dict[int, list[int]]] = {table: {} for table in tables}
        """By table and key, the `n` of each INSERT that Cassandra acknowledged."""
        self.gone: dict[str, set[int]] = {table: set() for table in tables}
        """The keys whose last write was a DELETE, or has a TTL."""
        self.count = 0
        self.keys = keys
        self._session, self._pause_s, self._passing = session, 1 / rate, frozenset(passing)
        self._inserts = {
            table: session.prepare(f"INSERT INTO {table} (k, n) VALUES (?, ?) USING TIMESTAMP ? AND TTL ?")
            for table in tables
        }
        self._deletes = {
            table: session.prepare(f"DELETE FROM {table} USING TIMESTAMP ? WHERE k = ?") for table in tables
        }
        self._n = time.time_ns() // 1000
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def __enter__(self) -> WriteLog:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def wait_written(self, count: int, timeout_s: float = math.inf) -> None:
        """Wait until there were so many writes, in all, or for so long."""
        deadline = time.monotonic() + timeout_s
        while self.count < count and self._failure is None and time.monotonic() < deadline:
            time.sleep(0.1)

    def _run(self) -> None:
        next_at = time.monotonic()
        try:
            while not self._stop.wait(max(0.0, next_at - time.monotonic())):
                next_at += self._pause_s
                self._write(list(self.written)[self.count % len(self.written)])
        except BaseException as failure:
            self._failure = failure

    def _write(self, table: str) -> None:
        self.count += 1
        turn = self.count // len(self.written)
        key, self._n = self.keys[turn % len(self.keys)], max(self._n + 1, time.time_ns() // 1000)
        if table in self._passing and turn % _DELETES == 0:
            self._execute(self._deletes[table], (self._n, key))
            self.gone[table].add(key)
            return
        ttl_s = _TTL_S if table in self._passing and turn % _EXPIRES == 0 else 0
        self._execute(self._inserts[table], (key, self._n, self._n, ttl_s))
        self.written[table].setdefault(key, []).append(self._n)
        (self.gone[table].add if ttl_s else self.gone[table].discard)(key)

    def _execute(self, statement: Any, values: tuple[int, ...]) -> None:
        """Write, again if Cassandra does not say that it did: these are the same bytes, a copy of the same change."""
        for _ in range(20):
            try:
                self._session.execute(statement, values)
                return
            except (DriverException, NoHostAvailable) as failure:
                error = failure
                time.sleep(0.5)
        raise error


def read_counts(brokers: str, topic: str, keys: range) -> Counts:
    """What a `read_committed` reader gets of these keys in a topic of JSON, of rows or of Debezium's envelopes."""
    counts: Counts = {}
    settings = {"bootstrap.servers": brokers, "group.id": "counts", "isolation.level": "read_committed"}
    with closing(Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})) as consumer:
        partitions = consumer.list_topics(topic, _READ_TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        ended = set[int]()
        deadline = time.monotonic() + _READ_TIMEOUT_S
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline, "no end came"
            for message in consumer.consume(10_000, 0.1):
                deadline = time.monotonic() + _READ_TIMEOUT_S
                error = message.error()
                if error is None:
                    key, record = _count(message)
                    if key in keys:
                        counts.setdefault(key, []).append(record)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise KafkaException(error)
    return counts


def _count(message: Message) -> tuple[int, CountRecord]:
    value = message.value()
    row = json.loads(value) if value is not None else None
    if row is not None and "after" in row:
        row = row["after"]
    n = (row or {}).get("n")  # a delete marker is an object without columns
    headers = dict(message.headers() or ())
    return json.loads(message.key())["k"], CountRecord(n, headers.get("digest"), headers.get("origin") == b"state")


def each_once(counts: Counts, written: dict[int, list[int]]) -> list[str]:
    """What is wrong with records of which each INSERT is one, in the order of writes."""
    errors = []
    for key in sorted(counts.keys() | written.keys()):
        records, wanted = [record.n for record in counts.get(key, ()) if record.n is not None], written.get(key, [])
        if records != wanted:
            repeated = sorted({n for n in records if records.count(n) > 1})
            missing, foreign = sorted(set(wanted) - set(records)), sorted(set(records) - set(wanted))
            order = "" if repeated or missing or foreign else ", in another order"
            errors.append(
                f"key {key}: {len(records)} records of {len(wanted)} writes{order}; repeated {repeated[:5]}, "
                f"missing {missing[:5]}, never written {foreign[:5]}"
            )
    return errors


def each_change_once(counts: Counts, has_deletes: bool = False) -> list[str]:
    """What is wrong with records of rows as they are read, which have their change's digest: no change has two, and
    what a later read publishes differs from the record before it. None shows an older row than that.

    The records of two changes may show the same row: the read for the first one may see the second one, too. With
    deletes a later read may also repeat a record: of a key it may be unknown what its partition's delete published.
    """
    errors = []
    for key, records in sorted(counts.items()):
        digests = set[bytes]()
        latest, before = 0, None
        for index, (n, digest, _) in enumerate(records):
            if n is not None and n < latest:
                errors.append(f"key {key}: record {index} has {n} after {latest}")
            if digest is not None and digest in digests:
                errors.append(f"key {key}: record {index} has {n} of a change that had a record before")
            if digest is None and index and n == before and not has_deletes:
                errors.append(f"key {key}: record {index}, of a later read, has {n} again")
            if digest is not None:
                digests.add(digest)
            latest, before = max(latest, n or 0), n
    return errors


def nulls_again(counts: Counts) -> list[str]:
    """The requested nulls that follow another one: the read of an expired row was requested twice."""
    requested_null = CountRecord(None, None, requested=True)
    return [
        f"key {key}: record {index} is null, as a state requested, after another one"
        for key, records in sorted(counts.items())
        for index, record in enumerate(records)
        if index and record == records[index - 1] == requested_null
    ]


def last_differing(counts: Counts, rows: dict[int, int], gone: Collection[int]) -> list[str]:
    """The keys whose last record is not their row. Of those that are `gone`, by a TTL too, it may be the last one."""
    errors = []
    for key in sorted(counts.keys() | rows.keys()):
        last = counts[key][-1].n if key in counts else None
        if last != rows.get(key) and not (key in gone and key not in rows):
            errors.append(f"key {key}: the last record has {last}, the row {rows.get(key)}")
    return errors
