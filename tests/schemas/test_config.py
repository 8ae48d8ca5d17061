"""Properties files: what is read, what is refused, and that secrets stay secret."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from helenus_schemas.config import Alias, CassandraSettings, CommaList, PassThrough, Settings
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


class Migrated(CassandraSettings):
    aliases = {
        "theirs": "size",
        "theirs.seconds": Alias("size", convert=lambda value: str(int(value) * 1000)),
        "theirs.flag": Alias("size", convert=lambda value: None if value == "off" else "7"),
        "theirs.old": Alias(why="there is no such thing"),
        "theirs.*": Alias(why="none of them is needed"),
    }
    environment = {"THEIR_SIZE": "theirs", "THEIR_OLD": "theirs.old"}

    size: int = 1


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({"theirs": "5"}, 5),
        ({"theirs": "5", "size": "6"}, 6),
        ({"size": "6", "theirs": "5"}, 6),
        ({"theirs.seconds": "3"}, 3000),
        ({"theirs.flag": "on"}, 7),
        ({"theirs.flag": "off"}, 1),
        ({"theirs.old": "x", "theirs.and.so.on": "y"}, 1),
    ],
)
def test_what_becomes_of_other_keys(given: dict[str, str], size: int) -> None:
    assert Migrated.of(given, "f").size == size


def test_each_other_key_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    Migrated.of({"theirs": "5", "theirs.old": "x"}, "their.properties")
    first, second = capsys.readouterr().out.splitlines()
    for told in ("warning", "their.properties", "key=theirs", "use=size"):
        assert told in first
    assert "there is no such thing" in second


def test_a_value_without_counterpart_is_one_of_the_errors() -> None:
    with pytest.raises(HelenusError, match=r"theirs\.seconds: invalid literal.*siez: unknown property"):
        Migrated.of({"theirs.seconds": "soon", "siez": "1"}, "f")


def test_the_environment_counts_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_text("")
    assert Migrated.load(path).size == 1
    monkeypatch.setenv("THEIR_SIZE", "9")
    monkeypatch.setenv("THEIR_OLD", "9")
    assert Migrated.load(path).size == 9
    for line in ("theirs=8", "size=8"):
        path.write_text(line)
        assert Migrated.load(path).size == 8
