"""Properties files: what is read, what is refused, and that secrets stay secret."""

import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pydantic import SecretStr

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.fields import CommaList, PassThrough
from helenus_schemas.settings.model import Alias, Settings
from helenus_schemas.settings.properties import ConfigError, together
from helenus_schemas.settings.shared import CassandraSettings


class Example(CassandraSettings):
    aliases = {"contactPoints": "cassandra.contact.points"}

    log_topic: str
    names: CommaList = ()
    kafka_bootstrap_servers: str = ""
    kafka: PassThrough = {}
    size: int = 1
    end: int = 1

    @classmethod
    def conflicts(cls, properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        if "size" in properties and "end" in properties:
            yield "end", "give it or size"


def load(tmp_path: Path, text: str) -> Example:
    path = tmp_path / "x.properties"
    path.write_text(text)
    return Example.load(path)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("many", "many"),
        (" many\\ ", '"many "'),
        ("a\\nb", r'"a\nb"'),
        ("é", "é"),
        ("9" * 200, "9" * 200),
        ("9" * 5000, "9" * 200 + "… (5,000 characters)"),
    ],
    ids=range(6),
)
def test_a_value_is_shown_in_one_short_line(tmp_path: Path, value: str, shown: str) -> None:
    with pytest.raises(HelenusError) as error:
        load(tmp_path, f"log.topic=t\ncassandra.port={value}\n")
    assert str(error.value).startswith(f"cassandra.port={shown}: ")
    assert "\n" not in str(error.value)


def test_keys_lists_and_pass_through(tmp_path: Path) -> None:
    settings = load(tmp_path, "log.topic=t\nnames = a, b\nkafka.bootstrap.servers=h:1\nkafka.security.protocol=SSL\n")
    assert settings.names == ("a", "b")
    assert settings.kafka_bootstrap_servers == "h:1"
    assert settings.kafka == {"security.protocol": "SSL"}


def test_all_errors_at_once_with_their_keys(tmp_path: Path) -> None:
    with pytest.raises(HelenusError) as error:
        load(tmp_path, "siez=2\ncassandra.port=many\n")
    assert error.value.kind is Kind.CONFIG
    message = str(error.value)
    first, *lines = message.splitlines()
    assert first.startswith("3 properties are wrong: correct the properties file")
    where = f"  {tmp_path}/x.properties: "
    assert f"{where}siez: unknown property, did you mean size?" in lines
    assert any(line.startswith(f"{where}cassandra.port=many: ") for line in lines)
    assert f"{where}log.topic: required property is missing" in lines
    assert str(pickle.loads(pickle.dumps(error.value))) == message


def test_conflicting_settings_are_reported_with_the_rest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, "size=2\nend=3\ncassandra.port=many\n")
    assert {p.key for p in error.value.problems} == {"cassandra.port", "log.topic", "end"}


def test_errors_of_several_files_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        together(
            lambda: load(tmp_path, "log.topic=t\nsize=x\n"),
            lambda: load(tmp_path, "log.topic=t\n"),
            lambda: Example.load("/nowhere/at/all"),
        )
    assert len(error.value.problems) == 2
    assert "/nowhere/at/all: cannot read the properties file: No such file" in str(error.value)


@pytest.mark.parametrize(
    ("key", "near"),
    [("kafak.linger.ms", "kafka.linger.ms"), ("log.topik", "log.topic"), ("casandra.password", "cassandra.password")],
)
def test_the_nearest_name(key: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {near}\\?"):
        Example.from_properties({"log.topic": "t", key: "x"}, "f")


SECRET = "hunter2-and-more"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("casandra.password", SECRET),
        ("cassandra.pasword", SECRET),
        ("kafak.sasl.password", SECRET),
        ("some.api.token", SECRET),
        ("some.api.jwt", SECRET),
        ("registry", f"https://me:{SECRET}@host/"),
        ("sparc.options", f"-DtrustStorePassword={SECRET}"),
        ("size", "${env:HELENUS_TEST_SECRET}"),
    ],
)
def test_a_wrong_key_does_not_show_its_secret(key: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELENUS_TEST_SECRET", SECRET)
    with pytest.raises(ConfigError) as error:
        Example.from_properties({"log.topic": "t", key: value}, "f")
    assert (f"{key}=" if key == "size" else f"{key}: unknown property") in str(error.value)
    assert SECRET not in str(error.value)
    assert SECRET not in repr(error.value)


def test_settings_passed_to_libraries_are_printed_without_secrets() -> None:
    hidden = ["sasl.password", "ssl.key.pem", "sasl.jaas.config", "sasl.oauthbearer.client.secret", "s3a.access.key"]
    plain = ["security.protocol", "ssl.ca.location", "ssl.key.location", "linger.ms", "key.serializer"]
    properties = {"log.topic": "t", **{f"kafka.{key}": f"value-of-{key}" for key in (*hidden, *plain)}}
    settings = Example.from_properties(properties, "f")
    assert settings.kafka["sasl.password"] == "value-of-sasl.password"
    for printed in (repr(settings), str(settings), repr(pickle.loads(pickle.dumps(settings)))):
        assert [key for key in hidden if f"value-of-{key}" in printed] == []
        assert [key for key in plain if f"value-of-{key}" not in printed] == []


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
    with pytest.raises(HelenusError, match=r"log\.topic=\$\{"):
        load(tmp_path, f"log.topic={value}\n")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("a=1\nlog.topic=grün\n".encode("latin-1"), "line 2 is not UTF-8: save the file as UTF-8, or write ö as"),
        ("a=1\r\n\r\nlog.topic=grün".encode("latin-1"), "line 3 is not UTF-8"),
        ("log.topic=t\n".encode("utf-16"), "the file is not text in UTF-8"),
        ("log.topic=t\n".encode("utf-16-be"), "the file is not text in UTF-8"),
        (b"log.topic=t\nb=\\u00f\n", "Invalid"),
    ],
)
def test_a_file_that_is_not_utf_8(tmp_path: Path, content: bytes, reason: str) -> None:
    """Neither as the command's own, nor as one that a reference names: what that holds is not shown."""
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(ConfigError, match=f"cannot read the properties file: {reason}"):
        Example.load(tmp_path / "f")
    why = "is not a properties file$" if reason == "Invalid" else f"{tmp_path}/f: {reason}"
    with pytest.raises(ConfigError) as error:
        load(tmp_path, f"log.topic=${{file:{tmp_path}/f:log.topic}}\n")
    assert re.search(why, error.value.problems[0].reason)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_files_as_editors_write_them(tmp_path: Path, encoding: str, end: str) -> None:
    (tmp_path / "secrets").write_bytes(f"pw=s3cret{end}ö=\\u00f6{end}".encode(encoding))
    lines = ["log.topic=grün", "names=a,\\", "  b", f"cassandra.password=${{file:{tmp_path}/secrets:pw}}", ""]
    (tmp_path / "f").write_bytes(end.join(lines).encode(encoding))
    settings = Example.load(tmp_path / "f")
    assert (settings.log_topic, settings.names) == ("grün", ("a", "b"))
    assert settings.cassandra_password == SecretStr("s3cret")


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
    ("properties", "size"),
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
def test_the_outcome_of_foreign_keys(properties: dict[str, str], size: int) -> None:
    assert Migrated.from_properties(properties, "f").size == size


def test_each_other_key_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    Migrated.from_properties({"theirs": "5", "theirs.old": "x"}, "their.properties")
    first, second = capsys.readouterr().out.splitlines()
    for part in ("warning", "their.properties", "key=theirs", "use=size"):
        assert part in first
    assert "there is no such thing" in second


def test_a_value_without_counterpart_is_one_of_the_errors() -> None:
    with pytest.raises(HelenusError, match=r"(?s)theirs\.seconds=soon: invalid literal.*siez: unknown property"):
        Migrated.from_properties({"theirs.seconds": "soon", "siez": "1"}, "f")


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
