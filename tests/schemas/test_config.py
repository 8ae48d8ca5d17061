"""Properties files: what is read, what is refused, and that secrets stay secret."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from helenus_schemas.config import CassandraSettings, CommaList, PassThrough, Settings
from helenus_schemas.errors import HelenusError, Kind


class Example(CassandraSettings):
    aliases = {"contactPoints": "cassandra.contact.points"}

    log_topic: str
    names: CommaList = ()
    kafka_bootstrap_servers: str = ""
    kafka: PassThrough = {}
    size: int = 1


def load(tmp_path: Path, text: str) -> Example:
    path = tmp_path / "x.properties"
    path.write_text(text)
    return Example.load(path)


def test_keys_lists_and_pass_through(tmp_path: Path) -> None:
    settings = load(tmp_path, "log.topic=t\nnames = a, b\nkafka.bootstrap.servers=h:1\nkafka.security.protocol=SSL\n")
    assert settings.names == ("a", "b")
    assert settings.kafka_bootstrap_servers == "h:1"
    assert settings.kafka == {"security.protocol": "SSL"}


def test_all_errors_at_once_with_their_keys(tmp_path: Path) -> None:
    with pytest.raises(HelenusError) as error:
        load(tmp_path, "siez=2\ncassandra.port=many\n")
    assert error.value.kind is Kind.CONFIG
    told = str(error.value)
    assert "siez: unknown property, did you mean size?" in told
    assert "cassandra.port: " in told
    assert "log.topic: required property is missing" in told
    assert "x.properties" in told


def test_secrets_come_from_environment_and_files_and_are_not_echoed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPIC", "from-env")
    (tmp_path / "secrets").write_text("pw=s3cret\n")
    settings = load(tmp_path, f"log.topic=${{env:TOPIC}}\ncassandra.password=${{file:{tmp_path}/secrets:pw}}\n")
    assert settings.log_topic == "from-env"
    assert settings.cassandra_password == SecretStr("s3cret")
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize("value", ["${env:NOT_THERE_AT_ALL}", "${file:/nowhere/at/all:x}"])
def test_a_secret_that_is_missing_is_named(tmp_path: Path, value: str) -> None:
    with pytest.raises(HelenusError, match=r"log\.topic: "):
        load(tmp_path, f"log.topic={value}\n")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(HelenusError, match="/nowhere/at/all"):
        Example.load("/nowhere/at/all")


def test_keys_of_other_products_are_taken(tmp_path: Path) -> None:
    assert load(tmp_path, "log.topic=t\ncontactPoints=a,b\n").cassandra_contact_points == ("a", "b")


def test_every_field_has_a_dotted_key() -> None:
    assert {f.alias for f in Example.model_fields.values()} >= {"cassandra.local.dc", "kafka.bootstrap.servers"}
    assert Settings.model_config["extra"] == "forbid"
