"""The owner of a topic's records: the one run whose producers may append what is made of that topic.

    claim              fence other claims → note the new owner, and the former ones → fence the former ones' producers
    start a producer   fence the former producer of its transactional id → read the owner → append

A claim fences after it noted the owner, and a producer reads the owner after it began: so whichever of the two comes
last knows of the other, however long either of them was stopped in between. A claim that ends in between leaves the
former owners in its note: the next one fences them too.

The note is the metadata of a committed offset, in a consumer group that has no members: of the topic's first partition.
Kafka drops such an offset after `offsets.retention.minutes` (a week): an owner claims again before that.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.errors import DeliveryReports, broker_error, new_client, text_of
from helenus_sinks.kafka.settings import client_settings

FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
"""A producer with the same transactional id began later, or the transaction took longer than its timeout."""
_UNAVAILABLE = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError._UNSUPPORTED_FEATURE,
}
_PASSING = {
    KafkaError.UNSTABLE_OFFSET_COMMIT,  # a claim is being committed
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
_ANSWER_TIMEOUT_S = 30.0
_FIRST_TIMEOUT_S = 5.0
_TRANSACTIONS_TOPIC = "__transaction_state"
_NO_TRANSACTIONS = "Kafka can't make its topic of transactions"
_MAKE_THEM = (
    "set transaction.state.log.replication.factor, 3 unless set, and transaction.state.log.min.isr of the brokers to "
    "no more than there are"
)
_GRANT = "grant this login Write and Describe on transactional ids that begin with helenus, as docs/security.md says"
_TRANSACTION_TIMEOUT_MS = 10_000
"""Of a claim that was killed: for so long nobody can read the owner, if nobody claims."""
_CLAIM_ATTEMPTS = 10
_FIRST_PAUSE_S = 0.05
"""Of two workers that claim together, one is fenced, and tries again; each try takes about as long."""
_FENCES_AT_ONCE = 8


class Unavailable(HelenusError):
    """These brokers, or the rights of this login, have no transactions for us."""


class NotOwner(HelenusError):
    """Another run owns the records of a topic."""


@dataclass(frozen=True)
class RecordsOwner:
    """A run, and how many producers it has at most: their transactional ids are `run` and a number. `who` is for
    people. `unfenced` are the runs before it, each with its number of producers, that may not be fenced yet.
    """

    run: str
    producers: int
    who: str
    unfenced: tuple[tuple[str, int], ...] = ()


def transactional_id(run: str, number: int) -> str:
    """Return the transactional id of one of a run's producers."""
    return f"{run}-{number}"


def claim(
    config: Mapping[str, str], group: str, topics: Collection[str], owner: RecordsOwner, expected: Mapping[str, str]
) -> tuple[dict[str, RecordsOwner], dict[str, RecordsOwner]]:
    """Make a run the owner of topics' records, in the `group` of one connector, and fence its former owners' producers.

    Of a topic in `expected` the owner must still be the run named there, or nobody. Returns the former owners, other
    than this run, by the topics that are owned now, and by those that are not, since another run has them. `config` is
    a producer's. Raises Unavailable, and HelenusError BROKER_UNREACHABLE.
    """
    where = f"{config['bootstrap.servers']}, group {group}"
    pause_s = _FIRST_PAUSE_S
    for attempts_left in reversed(range(_CLAIM_ATTEMPTS)):
        try:
            return _claim_once(config, group, topics, owner, expected, where)
        except KafkaException as failure:
            error = failure.args[0]
            # A commit that another claim fences may also fail with an unknown error.
            if error.code() not in FENCED | {KafkaError.UNKNOWN} or not attempts_left:
                raise _claim_error(error, where) from None
        time.sleep(random.uniform(0, pause_s))
        pause_s *= 2
    raise AssertionError("the last attempt returns or raises")


def _claim_once(
    config: Mapping[str, str],
    group: str,
    topics: Collection[str],
    owner: RecordsOwner,
    expected: Mapping[str, str],
    where: str,
) -> tuple[dict[str, RecordsOwner], dict[str, RecordsOwner]]:
    # From now on only this claim can commit, until there is another one: nobody notes an owner after it was read.
    producer = _fenced_producer(config, group, where)
    with closing(_consumer(config, group, where)) as consumer:
        noted_owners = _noted_owners(consumer, topics, where)
        others = {topic: noted for topic, noted in noted_owners.items() if noted is not None and noted.run != owner.run}
        lost = {topic: noted for topic, noted in others.items() if expected.get(topic, noted.run) != noted.run}
        claimed = [topic for topic in topics if topic not in lost]
        unfenced = {topic: _unfenced(noted_owners[topic], owner) for topic in claimed}
        _note(producer, consumer, {topic: replace(owner, unfenced=runs) for topic, runs in unfenced.items()})
        runs = {run for topic_runs in unfenced.values() for run in topic_runs}
        if runs:
            _fence(config, runs)
            _note_all_fenced(producer, consumer, dict.fromkeys(claimed, owner))
    return {topic: noted for topic, noted in others.items() if topic not in lost}, lost


def _unfenced(noted: RecordsOwner | None, owner: RecordsOwner) -> tuple[tuple[str, int], ...]:
    """Return the runs to fence when `owner` follows the one that is noted."""
    if noted is None:
        return ()
    return noted.unfenced if noted.run == owner.run else (*noted.unfenced, (noted.run, noted.producers))


def _note(producer: Producer, consumer: Consumer, new_owners: Mapping[str, RecordsOwner]) -> None:
    if not new_owners:
        return
    offsets = [TopicPartition(topic, 0, 0, json.dumps(asdict(owner))) for topic, owner in new_owners.items()]
    producer.begin_transaction()
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), _ANSWER_TIMEOUT_S)
    producer.commit_transaction(_ANSWER_TIMEOUT_S)


def _note_all_fenced(producer: Producer, consumer: Consumer, new_owners: Mapping[str, RecordsOwner]) -> None:
    try:
        _note(producer, consumer, new_owners)
    except KafkaException as failure:
        if failure.args[0].code() not in FENCED | {KafkaError.UNKNOWN}:
            raise
        # Another claim followed, whose run owns the records now: it must not be claimed once more here.


def _fence(config: Mapping[str, str], runs: Collection[tuple[str, int]]) -> None:
    """End the open transactions of all producers of runs, and have the brokers refuse what they send from now on."""
    ids = [transactional_id(run, number) for run, producers in runs for number in range(producers)]
    with ThreadPoolExecutor(min(len(ids), _FENCES_AT_ONCE)) as pool:
        list(pool.map(lambda id_: _fenced_producer(config, id_, config["bootstrap.servers"]), ids))


def owners(config: Mapping[str, str], group: str, topics: Collection[str]) -> dict[str, RecordsOwner | None]:
    """Return the owner of each topic's records, None where no run ever was. Raises as `claim`."""
    where = f"{config['bootstrap.servers']}, group {group}"
    try:
        with closing(_consumer(config, group, where)) as consumer:
            return _noted_owners(consumer, topics, where)
    except KafkaException as failure:
        raise _claim_error(failure.args[0], where) from None


def _noted_owners(consumer: Consumer, topics: Collection[str], where: str) -> dict[str, RecordsOwner | None]:
    # Not by an admin client: librdkafka 2.15 crashes in that where the coordinator is just being elected.
    deadline = time.monotonic() + _ANSWER_TIMEOUT_S
    while True:
        try:
            partitions = consumer.committed([TopicPartition(topic, 0) for topic in topics], _ANSWER_TIMEOUT_S)
            error = next((partition.error for partition in partitions if partition.error is not None), None)
            if error is None:
                return {partition.topic: _parse_note(partition.metadata, where) for partition in partitions}
        except KafkaException as failure:
            error = failure.args[0]
        if error.code() not in _PASSING or time.monotonic() > deadline:
            raise KafkaException(error)
        time.sleep(_FIRST_PAUSE_S)


def _parse_note(note: str | None, where: str) -> RecordsOwner | None:
    if not note:
        return None
    try:
        owner = RecordsOwner(**json.loads(note))
        return replace(owner, unfenced=tuple([(str(run), int(producers)) for run, producers in owner.unfenced]))
    except (ValueError, TypeError):
        problem = f"the owner of a connector's records is noted in a way that this version does not know: {note[:200]}"
        advice = "another program commits in this group, or a newer version did: see docs/guarantees.md"
        raise HelenusError(Kind.STATE, problem, where, advice) from None


def _fenced_producer(config: Mapping[str, str], transactional_id: str, where: str) -> Producer:
    """Return a producer, the only one with this transactional id from now on. Raises KafkaException and Unavailable."""
    times = {"transaction.timeout.ms": str(_TRANSACTION_TIMEOUT_MS)}
    settings = {**client_settings(config), **times, "transactional.id": transactional_id}
    producer: Producer = new_client(Producer, settings, DeliveryReports(), where)
    try:
        producer.init_transactions(_FIRST_TIMEOUT_S)
    except KafkaException as failure:
        if failure.args[0].code() != KafkaError._TIMED_OUT:
            raise
        if _has_no_transactions(config, where):
            raise Unavailable(Kind.BROKER_REFUSED, _NO_TRANSACTIONS, where, _MAKE_THEM) from None
        producer.init_transactions(_ANSWER_TIMEOUT_S)
    return producer


def _has_no_transactions(config: Mapping[str, str], where: str) -> bool:
    """Return whether the brokers answer, and have not made the topic of transactions, which was just asked for."""
    admin: AdminClient = new_client(AdminClient, client_settings(config), DeliveryReports(), where)
    topics = TopicCollection([_TRANSACTIONS_TOPIC])
    try:
        admin.describe_topics(topics, request_timeout=_FIRST_TIMEOUT_S)[_TRANSACTIONS_TOPIC].result()
    except KafkaException as failure:
        return bool(failure.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART)
    return False


def _consumer(config: Mapping[str, str], group: str, where: str) -> Consumer:
    consumer: Consumer = new_client(Consumer, {**client_settings(config), "group.id": group}, DeliveryReports(), where)
    return consumer


def _claim_error(error: KafkaError, where: str) -> HelenusError:
    if error.code() in _UNAVAILABLE:
        return Unavailable(Kind.BROKER_REFUSED, f"Kafka: {text_of(error)}", where, _GRANT)
    return broker_error(error, where)
