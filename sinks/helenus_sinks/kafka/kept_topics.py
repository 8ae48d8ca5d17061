"""Topics that have to keep what they get: one that somebody made before may have another configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.errors import MISSING, DeliveryReports, broker_error, new_client

_ANSWER_TIMEOUT_S = 10.0
_UNCHECKED = MISSING | {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
"""Of a topic that was only just created, and of a login that may not ask (`DescribeConfigs`)."""


def find_forgetful(
    client: Mapping[str, object], where: str, topics: Collection[str], wanted: Mapping[str, str]
) -> dict[str, HelenusError]:
    """Return of these topics an error for each that has another configuration than it is `wanted` to have. A topic of
    which the login may not ask is none of them. `client` are librdkafka's settings, and `where` the brokers.

    Raises HelenusError, if the brokers do not answer.
    """
    admin: AdminClient = new_client(AdminClient, client, DeliveryReports(), where)
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    requests = admin.describe_configs(resources, request_timeout=_ANSWER_TIMEOUT_S) if resources else {}
    errors: dict[str, HelenusError] = {}
    for resource, request in requests.items():
        topic = f"{where}, topic {resource.name}"
        try:
            config = request.result()
        except KafkaException as failure:
            if failure.args[0].code() not in _UNCHECKED:
                raise broker_error(failure.args[0], topic) from None
            continue
        # Brokers that only speak Kafka's protocol may not have each of them.
        others = {key: config[key].value for key in wanted if key in config and config[key].value != wanted[key]}
        if others:
            problem = "the topic loses what it gets: " + _listed(others)
            alter = "set " + _listed({key: wanted[key] for key in others}) + " with kafka-configs.sh"
            errors[resource.name] = HelenusError(Kind.CONFIG, problem, topic, f"{alter}, and restart")
    return errors


def _listed(config: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in config.items())
