"""The owner of records: the one run whose producers may append what a connector makes of an events topic.

    claim              fence other claims → note the new owner, and the former one → fence the former one's producers
    start a producer   fence the former producer of its transactional id → read the owner → append

A claim fences after it noted the owner, and a producer reads the owner after it began: so whichever of the two comes
last knows of the other, however long either of them was stopped in between. A claim that ends in between leaves the
former owner in its note: the next one fences it first.

The notes of a topic are the metadata of an offset of its first partition, committed in a consumer group that has no
members. Kafka drops it with the topic, or after a week (`offsets.retention.minutes`): an owner claims again before. It
takes 4096 bytes (`offset.metadata.max.bytes`), which are some 15 connectors of one topic.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import astuple, dataclass, field, replace
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.errors import MISSING, DeliveryReports, broker_error, new_client, text_of
from helenus_sinks.kafka.groups import committed, positions_error, send_positions
from helenus_sinks.kafka.settings import client_settings

PREFIX = "helenus-"
"""Begins the names of all runs, and so all transactional ids: operators grant rights by it."""
_TERM = re.compile(PREFIX + r"(?P<group>.+?)#(?P<number>\d{1,18})~")
GROUP = f"{PREFIX}owners"
"""The consumer group of the notes, and the transactional id of claims."""
FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
"""A producer with the same transactional id began later, or the transaction took longer than its timeout."""
_UNAVAILABLE = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.OFFSET_METADATA_TOO_LARGE,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError._UNSUPPORTED_FEATURE,
}
_ANSWER_TIMEOUT_S = 30.0
_FIRST_TIMEOUT_S = 5.0
_TRANSACTIONS_TOPIC = "__transaction_state"
_NO_TRANSACTIONS = "Kafka can't make its topic of transactions"
_MAKE_THEM = (
    "set transaction.state.log.replication.factor, 3 unless set, and transaction.state.log.min.isr of the brokers to "
    "no more than there are"
)
_FEWER = (
    "raise offset.metadata.max.bytes of the brokers: too many connectors, of whatever worker, read one events topic"
)
_GRANT = "grant this login Write and Describe on transactional ids that begin with helenus, as docs/security.md says"
_TRANSACTION_TIMEOUT_MS = 10_000
"""Of a claim that was killed: for so long nobody can read the owner, if nobody claims."""
_NOTES_AT_ONCE = 100
"""Brokers store what is committed together as one batch, which may have a million bytes (`message.max.bytes`)."""
_MAX_PRODUCERS = 10_000
"""Of a run in a note, which whoever may commit in the group can write: each is fenced."""
_SLICE_S = 1.0
_CLAIM_ATTEMPTS = 30
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 3.0
"""Of two workers that claim together, one is fenced, and tries again; each try takes some 0.1 s."""
_FENCES_AT_ONCE = 8


Stopping = Callable[[], bool]


def _never() -> bool:
    return False


class Unavailable(HelenusError):
    """These brokers, or the rights of this login, have no transactions for us."""


class NotOwner(HelenusError):
    """Another run owns the records of a topic."""


class Made(NamedTuple):
    """The records that a connector makes of an events topic."""

    connector: str
    topic: str


DRIVER = "driver"
"""The producer of a run's driver, in addition to those of its tasks."""


@dataclass(frozen=True)
class RecordsOwner:
    """A run, and how many producers its tasks have at most: their transactional ids are `run` and a number. `who` is
    for people. `unfenced` are the runs before it, each with its number of producers, that may not be fenced yet.
    """

    run: str
    producers: int
    who: str
    unfenced: tuple[tuple[str, int], ...] = ()


Notes = dict[str, dict[str, RecordsOwner]]
"""By topic: the owner of the records that each connector makes of it."""


def transactional_id(run: str, producer: int | str) -> str:
    """Return the transactional id of one of a run's producers: a task's number, or DRIVER."""
    return f"{run}-{producer}"


@dataclass(frozen=True)
class Claim:
    """What a claim brought. `former` has the owners before, other than this run, by what is owned now. `lost` has
    those of what is not, since another run has it. The topics that are `missing` are not there.
    """

    former: dict[Made, RecordsOwner] = field(default_factory=dict)
    lost: dict[Made, RecordsOwner] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()


def claim(
    config: Mapping[str, str],
    claimed: Collection[Made],
    owner: RecordsOwner,
    expected: Mapping[Made, str],
    stopping: Stopping = _never,
) -> Claim:
    """Make a run the owner of what is `claimed`, and fence the producers of the former owners. Of what is `expected`,
    the owner must still be a run whose name begins so, or nobody. `config` is a producer's.

    Raises Unavailable, and HelenusError BROKER_UNREACHABLE, also when it is `stopping`, and STATE.
    """
    where = f"{config['bootstrap.servers']}, group {GROUP}"
    pause_s = _FIRST_PAUSE_S
    missing: frozenset[str] = frozenset()
    for attempts_left in reversed(range(_CLAIM_ATTEMPTS)):
        try:
            present = [made for made in claimed if made.topic not in missing]
            return replace(_claim_once(config, present, owner, expected, stopping), missing=missing)
        except KafkaException as failure:
            error = failure.args[0]
            # A commit that another claim fences may also fail with an unknown error.
            passes = error.code() in FENCED | MISSING | {KafkaError.UNKNOWN}
            if not passes or not attempts_left or stopping():
                raise (broker_error(error, where) if stopping() else _claim_error(error, config)) from None
            if error.code() in MISSING:
                missing |= _missing_topics(config, {made.topic for made in claimed}, where)
        time.sleep(random.uniform(0, pause_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    raise AssertionError("the last attempt returns or raises")


def _claim_once(
    config: Mapping[str, str],
    claimed: Collection[Made],
    owner: RecordsOwner,
    expected: Mapping[Made, str],
    stopping: Stopping,
) -> Claim:
    if not claimed:
        return Claim()
    where = f"{config['bootstrap.servers']}, group {GROUP}"
    # From now on only this claim can commit, until there is another one: nobody notes an owner after it was read.
    producer = _fenced_producer(config, GROUP, where, stopping)
    with closing(_consumer(config, where)) as consumer:
        notes = _read_notes(consumer, {made.topic for made in claimed}, where)
        noted = {made: notes[made.topic].get(made.connector) for made in claimed}
        others = {made: other for made, other in noted.items() if other is not None and other.run != owner.run}
        lost = {
            made: other for made, other in others.items() if _has_lost(owner.run, other.run, expected.get(made, ""))
        }
        owned = [made for made in claimed if made not in lost]
        # Those that are owners no more can be fenced before: so a note never has more than one.
        _fence(config, {run for made in owned if (other := noted[made]) for run in other.unfenced}, stopping)
        runs: set[tuple[str, int]] = set()
        for made in owned:
            unfenced = [(other.run, other.producers)] if (other := others.get(made)) else []
            notes[made.topic][made.connector] = replace(owner, unfenced=tuple(unfenced))
            runs.update(unfenced)
        topics = {made.topic for made in owned}
        _note(producer, consumer, {topic: notes[topic] for topic in topics})
        if runs:
            _fence(config, runs, stopping)
            for made in owned:
                notes[made.topic][made.connector] = owner
            _note_all_fenced(producer, consumer, {topic: notes[topic] for topic in topics})
    return Claim({made: other for made, other in others.items() if made not in lost}, lost)


def run_name(group: str, token: str, term: str = "") -> str:
    """Return the beginning of the names of a worker's runs of a query. `term` is GROUP#NUMBER of one that leads its
    group: a higher number is of a later leader. It is a part of names of files.
    """
    return f"{PREFIX}{term}~{group}-{token}" if term else f"{PREFIX}{group}-{token}"


def _has_lost(run: str, other: str, expected: str) -> bool:
    """Return whether records are the `other` run's: of runs of one group's leaders, the later leader's; of others, as
    long as its name does not begin as `expected`.
    """
    own_term, other_term = _TERM.match(run), _TERM.match(other)
    if own_term is None or other_term is None or own_term["group"] != other_term["group"]:
        return not other.startswith(expected)
    own_number, other_number = int(own_term["number"]), int(other_term["number"])
    return own_number < other_number if own_number != other_number else not other.startswith(expected)


def _note(producer: Producer, consumer: Consumer, notes: Notes) -> None:
    offsets = [TopicPartition(topic, 0, 0, _to_text(connectors)) for topic, connectors in notes.items()]
    for first in range(0, len(offsets), _NOTES_AT_ONCE):
        producer.begin_transaction()
        batch = offsets[first : first + _NOTES_AT_ONCE]
        send_positions(producer, consumer.consumer_group_metadata(), batch, _ANSWER_TIMEOUT_S)
        producer.commit_transaction(_ANSWER_TIMEOUT_S)


def _note_all_fenced(producer: Producer, consumer: Consumer, notes: Notes) -> None:
    try:
        _note(producer, consumer, notes)
    except KafkaException as failure:
        if failure.args[0].code() not in FENCED | {KafkaError.UNKNOWN}:
            raise
        # Another claim followed, whose run owns the records now: it must not be claimed once more here.


def _fence(config: Mapping[str, str], runs: Collection[tuple[str, int]], stopping: Stopping) -> None:
    """End the open transactions of all producers of runs, and have the brokers refuse what they send from now on."""
    if not runs:
        return

    def fence(fenced_id: str) -> None:
        try:
            _fenced_producer(config, fenced_id, config["bootstrap.servers"], stopping)
        except KafkaException as failure:
            if failure.args[0].code() not in FENCED:  # by another claim just now, which does as well
                raise

    ids = [transactional_id(run, producer) for run, producers in runs for producer in (DRIVER, *range(producers))]
    with ThreadPoolExecutor(min(len(ids), _FENCES_AT_ONCE)) as pool:
        list(pool.map(fence, ids))


def owners(config: Mapping[str, str], records: Collection[Made]) -> dict[Made, RecordsOwner | None]:
    """Return who owns records, None where no run ever did. Raises as `claim`."""
    where = f"{config['bootstrap.servers']}, group {GROUP}"
    try:
        with closing(_consumer(config, where)) as consumer:
            notes = _read_notes(consumer, {made.topic for made in records}, where)
    except KafkaException as failure:
        raise _claim_error(failure.args[0], config) from None
    return {made: notes[made.topic].get(made.connector) for made in records}


def _read_notes(consumer: Consumer, topics: Collection[str], where: str) -> Notes:
    partitions = committed(consumer, [TopicPartition(topic, 0) for topic in topics])
    return {partition.topic: _from_text(partition.metadata, where) for partition in partitions}


def _to_text(connectors: Mapping[str, RecordsOwner]) -> str:
    return json.dumps({name: list(astuple(owner)) for name, owner in connectors.items()}, separators=(",", ":"))


def _from_text(note: str | None, where: str) -> dict[str, RecordsOwner]:
    if not note:
        return {}
    try:
        return {
            str(name): RecordsOwner(
                *_checked(run, producers), str(who), tuple([_checked(*other) for other in unfenced])
            )
            for name, (run, producers, who, unfenced) in json.loads(note).items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        problem = f"the owner of records is noted in a way that this version does not know: {note[:200]}"
        advice = "another program commits in this group, or a newer version did: see docs/guarantees.md"
        raise HelenusError(Kind.STATE, problem, where, advice) from None


def _checked(run: object, producers: object) -> tuple[str, int]:
    """Return a run in a note, and how many producers it has. Raises ValueError if there is none like that."""
    if not isinstance(run, str) or not run.startswith(PREFIX):
        raise ValueError("the name of no run")
    if not isinstance(producers, int) or not 0 < producers <= _MAX_PRODUCERS:
        raise ValueError("the number of no run's producers")
    return run, producers


def _missing_topics(config: Mapping[str, str], topics: Collection[str], where: str) -> frozenset[str]:
    admin: AdminClient = new_client(AdminClient, client_settings(config), DeliveryReports(), where)
    try:
        listed: dict[str, object] = admin.list_topics(timeout=_ANSWER_TIMEOUT_S).topics
    except KafkaException as failure:
        raise broker_error(failure.args[0], where) from None
    return frozenset(topics) - listed.keys()


def _fenced_producer(config: Mapping[str, str], transactional_id: str, where: str, stopping: Stopping) -> Producer:
    """Return a producer, the only one with this transactional id from now on. Raises KafkaException and Unavailable."""
    times = {"transaction.timeout.ms": str(_TRANSACTION_TIMEOUT_MS)}
    settings = {**client_settings(config), **times, "transactional.id": transactional_id}
    producer: Producer = new_client(Producer, settings, DeliveryReports(), where)
    begun = time.monotonic()
    is_asked = False
    while True:
        try:
            producer.init_transactions(_SLICE_S)
            return producer
        except KafkaException as failure:
            error, waited_s = failure.args[0], time.monotonic() - begun
            # It goes on where it was when it is called again.
            is_passing = error.retriable() or error.code() == KafkaError._TIMED_OUT
            if not is_passing or waited_s > _ANSWER_TIMEOUT_S or stopping():
                raise
        if waited_s > _FIRST_TIMEOUT_S and not is_asked:
            is_asked = True
            if _has_no_transactions(config, where):
                raise Unavailable(Kind.BROKER_REFUSED, _NO_TRANSACTIONS, where, _MAKE_THEM)


def _has_no_transactions(config: Mapping[str, str], where: str) -> bool:
    """Return whether the brokers answer, and have not made the topic of transactions, which was just asked for."""
    admin: AdminClient = new_client(AdminClient, client_settings(config), DeliveryReports(), where)
    topics = TopicCollection([_TRANSACTIONS_TOPIC])
    try:
        admin.describe_topics(topics, request_timeout=_FIRST_TIMEOUT_S)[_TRANSACTIONS_TOPIC].result()
    except KafkaException as failure:
        return bool(failure.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART)
    return False


def _consumer(config: Mapping[str, str], where: str) -> Consumer:
    # A claim whose answer came may not be complete: then the note of before must not be read.
    settings = {**client_settings(config), "group.id": GROUP, "isolation.level": "read_committed"}
    consumer: Consumer = new_client(Consumer, settings, DeliveryReports(), where)
    return consumer


def _claim_error(error: KafkaError, config: Mapping[str, str]) -> HelenusError:
    if error.code() in _UNAVAILABLE:
        where = f"{config['bootstrap.servers']}, group {GROUP}"
        advice = _FEWER if error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE else _GRANT
        return Unavailable(Kind.BROKER_REFUSED, f"Kafka: {text_of(error)}", where, advice)
    return positions_error(config, GROUP, error)
