"""What Kafka's client echoes of its settings is not logged."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from helenus_schemas.errors import HelenusError
from helenus_sinks.kafka.errors import broker_error
from helenus_sinks.kafka.log import KafkaLog

OAUTH = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "enable.sasl.oauthbearer.unsecure.jwt": "true",
    "sasl.oauthbearer.config": "principal=me oauth.client.secret=s3cret",
}


def test_settings_that_the_client_cannot_read() -> None:
    log = KafkaLog({"bootstrap.servers": "127.0.0.1:1", **OAUTH})
    log.append("t", 0, b"k", b"v")
    with pytest.raises(HelenusError, match=r"sasl\.oauthbearer\.config beginning at: \*") as failed:
        log.flush(1)
    assert "s3cret" not in str(failed.value)


def test_a_login_in_an_address() -> None:
    error_text = 'Failed to retrieve OIDC token from "https://me:s3cret@idp/token": 401'
    error = broker_error(KafkaError(KafkaError._AUTHENTICATION, error_text), "h:1")
    assert "idp/token" in str(error)
    assert "s3cret" not in str(error)
