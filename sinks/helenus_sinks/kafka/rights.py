"""The rights that a Kafka login lacks on topics: the brokers are asked, nothing is written or made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.errors import MISSING, DeliveryReports, broker_error, new_client
from helenus_sinks.kafka.settings import client_settings

UNASKED = "whether topics that are missing may be read or written once they are there"
"""What no broker can be asked: rights on a topic are told of one that exists."""
_ANSWER_TIMEOUT = 10.0  # s: longer than a listing's, since authorizers may ask servers of their own
_ADVICE = "grant it, as docs/security.md says"


@dataclass(frozen=True)
class TopicUse:
    """What a program does with a topic: `operations` of Kafka's, such as WRITE.

    It makes a topic that is missing with so many `partitions`, -1 for the broker's default number; 0: it makes none.
    """

    topic: str
    operations: tuple[str, ...]
    partitions: int = 0
    replication_factor: int = -1


def missing_rights(config: Mapping[str, str], uses: Sequence[TopicUse]) -> Iterator[HelenusError]:
    """Yield an error for each topic with which the login of these settings may not do what it has to.

    Where brokers authorize nobody, or are too old to say (before Kafka 2.3), there is none. Raises HelenusError
    BROKER_UNREACHABLE or BROKER_REFUSED.
    """
    where = config["bootstrap.servers"]
    admin = new_client(AdminClient, client_settings(config), DeliveryReports(), where)
    answers: dict[str, Future[Any]] = {}
    if topics := list(dict.fromkeys(use.topic for use in uses)):
        answers = admin.describe_topics(
            TopicCollection(topics), include_authorized_operations=True, request_timeout=_ANSWER_TIMEOUT
        )
    for use in uses:
        location = f"{where}, topic {use.topic}"
        try:
            described = answers[use.topic].result()
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                yield _missing_right(use.operations, location)
            elif error.code() not in MISSING:
                raise broker_error(error, location) from None
            elif use.partitions and (refusal := _refused_creation(admin, use, location)):
                yield refusal
            continue
        allowed = described.authorized_operations
        if allowed is not None and (missing := [name for name in use.operations if AclOperation[name] not in allowed]):
            yield _missing_right(missing, location)


def _refused_creation(admin: AdminClient, use: TopicUse, where: str) -> HelenusError | None:
    """Have the brokers check, and not do, the creation of a topic: right, policy and replication factor."""
    new = NewTopic(use.topic, num_partitions=use.partitions, replication_factor=use.replication_factor)
    try:
        admin.create_topics([new], validate_only=True, operation_timeout=_ANSWER_TIMEOUT)[use.topic].result()
    except KafkaException as failure:
        error = failure.args[0]
        if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return None
        if error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
            return _missing_right(("CREATE",), where)
        return broker_error(error, where)
    return None


def _missing_right(operations: Sequence[str], where: str) -> HelenusError:
    names = " and ".join(operations)
    return HelenusError(Kind.BROKER_REFUSED, f"Kafka: this login lacks the right to {names}", where, _ADVICE)
