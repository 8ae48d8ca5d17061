"""What properties may be: each wrong value is refused with what is wanted, and none ends in a traceback later."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.cassandra import connect
from helenus_schemas.settings.fields import Brokers, Login, RegistryUrls, hosts_and_ports, is_host, local_topic, topic
from helenus_schemas.settings.model import Settings
from helenus_schemas.settings.properties import ConfigError, Problem
from helenus_schemas.settings.shared import CassandraSettings, PulsarSettings


class Example(CassandraSettings, PulsarSettings):
    brokers: Brokers = ""
    registry: RegistryUrls = ""
    login: Login = None
    directory: Path = Path()
    extra_file: Path | None = None


def wrong(properties: dict[str, str]) -> list[Problem]:
    with pytest.raises(ConfigError) as error:
        Example.from_properties(properties, "f")
    return list(error.value.problems)


@pytest.mark.parametrize(
    "value", ["hdfs://nn:9000/cp", "s3a://bucket/cp", "file:///shared/cp", "file:/shared/cp", "dbfs:/cp", ""]
)
@pytest.mark.parametrize("key", ["directory", "extra.file", "cassandra.ssl.cafile", "pulsar.tls.cafile"])
def test_a_path_is_a_path(key: str, value: str) -> None:
    (problem,) = wrong({key: value, "cassandra.ssl.enabled": "true"})
    assert (problem.key, problem.value) == (key, value)
    assert problem.reason.startswith("give a path, of a disk that every machine" if value else "name a path")


@pytest.mark.parametrize("value", ["/shared/cp", "cp", "./a:b", "/a/b:c://d"])
def test_paths_stay_as_they_are(value: str) -> None:
    assert Example.from_properties({"directory": value}, "f").directory == Path(value)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        *(
            ("pulsar.service.url", value, "give it as pulsar://host:port or pulsar+ssl://")
            for value in (
                *("", "pulsar://", "broker:6650", "http://broker:8080", "pulsar://broker:665000", "pulsar://b:0"),
                *("pulsar://127.0.0.1:66500", "pulsar://broker..local:6650", "pulsar://a:1,", "pulsar://a b"),
                *("pulsar://[::1", "pulsar://me:x@b:1", "pulsar://b:port"),
            )
        ),
        *(
            ("pulsar.admin.url", value, "give it as http://host:port")
            for value in (
                *("", "broker", "broker:8080", "pulsar://broker:8080", "http://broker:abc", "http://[::1", "http://"),
                *(
                    "http://broker:66500",
                    "http://broker..local",
                    "http://bro ker",
                    "http://h1:80,h2:80",
                    "http://u:p/s@h",
                ),
            )
        ),
        ("pulsar.admin.url", "http://me:x@broker", "leave the login out"),
        *(("registry", value, "give it as http://") for value in ("registry:8081", "ftp://x", "http://a,b", "none")),
        ("registry", "http://me:7/x@h", "give it as http://host:port or https://host:port; in a login, %40 is @"),
        *(
            ("brokers", value, "give Kafka's brokers as host:port")
            for value in ("", ",", "k:99999", "k:0", "a..b", "k:9092,x:y", "http://k:9092/x")
        ),
        ("pulsar.namespace", "public/default", "tenant and namespace are properties of their own"),
        ("pulsar.tenant", "", "a name has letters"),
        ("cassandra.contact.points", "", "name a host at least"),
        ("cassandra.contact.points", ",", "name a host at least"),
        ("cassandra.contact.points", "10.0.0.1,a..b", "a..b is neither a host's name nor an address"),
        ("cassandra.contact.points", "10.0.0.1:9042", "whose port is a property of its own"),
        ("cassandra.contact.points", "me:x@a", "*****@a is neither"),
        ("login", "nopassword", "give it as user:password"),
        ("login", "", "give it as user:password"),
    ],
)
def test_errors_name_the_expected_value(key: str, value: str, reason: str) -> None:
    (problem,) = wrong({key: value})
    assert problem.key == key
    assert reason in problem.reason


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("pulsar.service.url", "pulsar://a:1,b,[::1]:3/", "pulsar://a:1,b,[::1]:3/"),
        ("pulsar.service.url", "PULSAR+SSL://Broker_1", "pulsar+ssl://Broker_1"),
        ("pulsar.admin.url", "HTTPS://broker:8443/x/", "https://broker:8443/x/"),
        ("registry", "http://r, HTTP://me:p%40@r:81/apis", "http://r,http://me:p%40@r:81/apis"),
        ("registry", "", ""),
        ("brokers", "k, SASL_SSL://k2:9093,[::1]:9092,", "k, SASL_SSL://k2:9093,[::1]:9092,"),
        (
            "cassandra.contact.points",
            "10.0.0.1, node_1,fe80::1%eth0,b\u00fccher",
            ("10.0.0.1", "node_1", "fe80::1%eth0", "b\u00fccher"),
        ),
    ],
)
def test_accepted_values(key: str, value: str, accepted: object) -> None:
    assert getattr(Example.from_properties({key: value}, "f"), key.replace(".", "_")) == accepted


def test_a_user_without_a_password_is_refused() -> None:
    for password in ({}, {"cassandra.password": ""}):
        (problem,) = wrong({"cassandra.username": "u", **password})
        assert (problem.key, problem.reason[:11]) == ("cassandra.password", "set it too:")


def test_all_of_it_at_once() -> None:
    properties = {"pulsar.admin.url": "x", "directory": "s3a://x/y", "brokers": "k:0", "cassandra.contact.points": ""}
    assert {problem.key for problem in wrong(properties)} == properties.keys()


def test_files_are_looked_for_where_it_is_asked_for(tmp_path: Path) -> None:
    there = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(there)
    properties = {
        "cassandra.ssl.enabled": "false",
        "cassandra.ssl.cafile": "/no/ca.pem",
        "extra.file": "/no/x",
        "directory": "/no",
        "pulsar.tls.cafile": str(there),
    }
    settings = Example.from_properties(properties, "f")  # it may be for another machine
    with pytest.raises(ConfigError) as error:
        settings.check_files("f")
    assert [(p.key, p.value) for p in error.value.problems] == [
        ("cassandra.ssl.cafile", "/no/ca.pem"),
        ("extra.file", "/no/x"),
    ]
    Settings.from_properties({}, "f").check_files("f")


@given(st.text(max_size=70))
def test_a_host_is_one_that_a_resolver_can_be_asked_for(text: str) -> None:
    """Resolvers are asked for none of them: what raises anything but OSError does so before."""
    if is_host(text):
        assert not set(text) & set("/@, \n\0")
        text.encode("idna") if ":" not in text else socket.inet_pton(socket.AF_INET6, text.partition("%")[0])


@given(st.text("ab.:[]1/ ,", max_size=12))
def test_ports_are_ports(text: str) -> None:
    try:
        addresses = hosts_and_ports(text)
    except ValueError:
        return
    assert all(is_host(host) and (port is None or 0 < port < 65536) for host, port in addresses)


def test_topics() -> None:
    prefix = "persistent://public/default/"
    assert local_topic(f"{prefix}events-db1.t1", prefix) == "events-db1.t1"
    assert local_topic("public/default/x", prefix) == local_topic("x", prefix) == "x"
    assert local_topic("a/b", "") == "a/b"
    for name in ("persistent://public/other/x", "non-persistent://public/default/x", "other/default/x"):
        with pytest.raises(ValueError, match="topics are in persistent://public/default/, as"):
            local_topic(name, prefix)
    for name in ("a b", "a/b", "..", "x" * 250, "\u00e9", "a:b", f"{prefix}x"):
        with pytest.raises(ValueError, match="a topic's name has"):
            topic(name)


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".b"])
def test_an_invalid_host_name_has_no_address(host: str) -> None:
    """However it came by the model."""
    settings = CassandraSettings.model_construct(cassandra_contact_points=(host,), cassandra_port=9042)
    with pytest.raises(HelenusError, match="no contact point has an address") as error:
        connect(settings)
    assert error.value.kind is Kind.CASSANDRA_UNREACHABLE


@pytest.mark.parametrize("token", ["s3cret\n", "s3 cret", "s3cr\u00e9t", "\u2713s3"])
def test_a_token_that_no_header_can_have(token: str) -> None:
    """urllib's error shows it whole."""
    (problem,) = wrong({"pulsar.auth.token": token})
    assert "a token has" in problem.reason
    assert "s3" not in str(problem)
    assert Example.from_properties({"pulsar.auth.token": "a.b-c_d=="}, "f").pulsar_auth_token
