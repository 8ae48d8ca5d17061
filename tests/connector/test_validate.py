"""`helenus-connector validate`: all errors of all files at once, and no secret shown."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner, Result

from helenus_connector import validate_command
from helenus_connector.cli import main
from helenus_connector.config.files import load
from helenus_connector.control import _rights
from helenus_connector.control.fences import owned
from helenus_connector.query import spark_session
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.properties import ConfigError
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.pulsar.log import PulsarConfig

WORKER = "bootstrap.servers=k:9092\ncheckpoint.dir=/tmp/none\nproducer.ssl.key.password=hunter2\nlisteners=http://127.0.0.1:0\n"
TABLE = "name=a\nkeyspace=shop\ntable=orders\noutput.format=json\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {"worker": WORKER, "a": TABLE, "same": TABLE}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def validate(*files: str) -> Result:
    return CliRunner().invoke(main, ["validate", *files])


def test_valid_files(here: Path) -> None:
    result = validate("worker", "a")
    assert (result.exit_code, result.stdout) == (0, "worker is valid\na is valid\n")


def test_sparks_own_references(here: Path) -> None:
    (here / "worker").write_text(WORKER + "spark.eventLog.dir=${spark.local.dir}/log\n")
    assert validate("worker", "a").exit_code == 0


def test_no_java(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are right, but the worker would not start: one line says so."""
    monkeypatch.setenv("JAVA_HOME", "/no/java")
    monkeypatch.setattr(validate_command, "check_java", spark_session.check_java)
    result = validate("worker", "a")
    assert (result.exit_code, result.stdout) == (2, "worker is valid\na is valid\n")
    (line,) = result.stderr.splitlines()
    assert line.startswith("helenus-connector: cannot run Java: ")
    assert "install a Java 17 or later, and put java on the PATH or set JAVA_HOME" in line


def test_the_errors_of_all_files(here: Path) -> None:
    (here / "worker").write_text(WORKER + "listeners=8083\nprodcer.sasl.password=hunter2\n")
    (here / "a").write_text(TABLE + "cassandra.pasword=hunter2\nmax.batch.size=many\nqery.consistency=ONE\n")
    result = validate("worker", "a", "absent")
    assert result.exit_code == 2
    first, *lines = result.stderr.splitlines()
    assert first.startswith("helenus-connector: 6 properties are wrong")
    for expected in (
        "worker: listeners=8083: give one listener",
        "worker: prodcer.sasl.password: unknown property, did you mean producer.sasl.password?",
        "a: cassandra.pasword: unknown property, did you mean cassandra.password?",
        "a: max.batch.size=many: give a whole number",
        "a: qery.consistency: unknown property, did you mean query.consistency?",
        "absent: cannot read the properties file",
    ):
        assert [line for line in lines if line.startswith(f"  {expected}")], expected
    assert "hunter2" not in result.output


def test_a_level_that_gives_up_the_order(here: Path) -> None:
    """It is legal, and right with one replica; but it is always warned of."""
    (here / "a").write_text(TABLE + "query.consistency=LOCAL_ONE\n")
    result = validate("worker", "a")
    assert (result.exit_code, result.stdout) == (0, "worker is valid\na is valid\n")
    assert re.match(r"a: warning: query\.consistency=LOCAL_ONE: .* an older row .*promise 4", result.stderr)


def test_two_files_with_one_name(here: Path) -> None:
    result = validate("worker", "a", "same")
    assert result.exit_code == 2
    assert result.stderr.startswith("helenus-connector: name=a: a has the same (same)")


def test_two_files_that_write_one_topic(here: Path) -> None:
    for name, more in {"b": "query.group=other\n", "c": "data.topic=data-shop.orders\n"}.items():
        text = TABLE.replace("name=a", f"name={name}") + more
        (here / name).write_text(text.replace("table=orders", "table=u") if name == "c" else text)
    result = validate("worker", "a", "b", "c")
    assert result.exit_code == 2
    why = "connector a writes data-shop.orders already; give one of them another data.topic"
    assert [line.strip() for line in result.stderr.splitlines() if why in line] == [
        f"b: data.topic: {why}",
        f"c: data.topic=data-shop.orders: {why}",
    ]


def problems(path: Path, text: str) -> dict[str, str]:
    """Key -> reason of what is wrong with the worker and its connector when one of the files says this."""
    path.write_text(text)
    assert validate("worker", "a").exit_code == 2
    with pytest.raises(ConfigError) as error:
        load(Path("worker"), [Path("a")])
    return {problem.key: problem.reason for problem in error.value.problems}


@pytest.mark.parametrize("listener", ["https://0.0.0.0:8443", "HTTPS://0.0.0.0:8443"])
def test_https_is_https_however_it_is_written(here: Path, listener: str) -> None:
    errors = problems(here / "worker", f"{WORKER}listeners={listener}\n")
    assert errors.keys() == {"listeners.https.ssl.certfile", "listeners.https.ssl.keyfile"}
    files = "listeners.https.ssl.certfile=/c\nlisteners.https.ssl.keyfile=/k\n"
    (here / "worker").write_text(f"{WORKER}listeners={listener}\n{files}")
    worker, _ = load(Path("worker"), [])
    assert worker.secure
    assert worker.listener == ("0.0.0.0", 8443)


def test_settings_that_no_worker_can_use(here: Path) -> None:
    wrong = {
        "checkpoint.dir": "hdfs://nn:9000/cp",
        "bootstrap.servers": "k:99999",
        "log": "pulsar",
        "pulsar.service.url": "http://broker:8080",
        "pulsar.admin.url": "http://broker:abc",
        "pulsar.namespace": "public/default",
        "rest.basic.auth.user.info": "nopassword",
    }
    errors = problems(here / "worker", "".join(f"{key}={value}\n" for key, value in wrong.items()))
    assert errors.keys() == wrong.keys() - {"log"}


def test_settings_that_no_connector_can_use(here: Path) -> None:
    wrong = {
        "table": "shop.orders",
        "cassandra.contact.points": "",
        "cassandra.username": "u",
        "events.topic": "a b/c",
        "value.converter.schema.registry.url": "registry:8081",
        "value.converter.basic.auth.user.info": "nopassword",
        "value.converter.schema.registry.ssl.cafile": "",
    }
    errors = problems(
        here / "a", "name=a\nkeyspace=shop\n" + "".join(f"{key}={value}\n" for key, value in wrong.items())
    )
    login = "value.converter.schema.registry.basic.auth.user.info"
    assert errors.keys() == {*wrong, login, "cassandra.password"} - {
        "cassandra.username",
        "value.converter.basic.auth.user.info",
    }
    assert errors["table"] == "name the table alone; the keyspace is `keyspace`"


@pytest.mark.parametrize("table", [",", " , ", "shop.orders", "orders,shop.items", r"shop\\.orders", r"shop\\..*"])
def test_a_table_is_named_alone(here: Path, table: str) -> None:
    assert problems(here / "a", TABLE.replace("table=orders", f"table={table}")).keys() == {"table"}


def test_patterns_are_still_patterns(here: Path) -> None:
    for table in ("orders, invoice_.*", ".*", "a.b.*", "[ab].c"):
        (here / "a").write_text(TABLE.replace("table=orders", f"table={table}"))
        assert validate("worker", "a").exit_code == 0, table


@pytest.mark.parametrize(
    ("properties_text", "key"),
    [
        ("events.topic=x\ndata.topic=x", "data.topic"),
        ("data.topic=events-shop.orders", "data.topic"),
        ("events.topic=data-${keyspace}.${table}", "events.topic"),
        ("events.topic=dlq-shop.orders", "events.topic"),
        ("data.topic=x\nerrors.deadletterqueue.topic.name=x", "errors.deadletterqueue.topic.name"),
        ("table=a,b\ndata.topic=events-shop.${table}", "data.topic"),
    ],
)
def test_topics_differ(here: Path, properties_text: str, key: str) -> None:
    errors = problems(here / "a", f"{TABLE}{properties_text}\n")
    assert errors.keys() == {key}
    assert re.search(r"is the same topic|is that by default", errors[key])


PULSAR = (
    "log=pulsar\npulsar.service.url=pulsar://b\npulsar.tenant=acme\npulsar.namespace=cdc\ncheckpoint.dir=/tmp/none\n"
)


def test_a_topic_on_pulsar_may_have_its_full_name(here: Path) -> None:
    (here / "worker").write_text(PULSAR)
    topics = "events.topic=persistent://acme/cdc/theirs-${table}\ndata.topic=acme/cdc/data\n"
    (here / "a").write_text(f"{TABLE}{topics}")
    worker, (connector,) = load(Path("worker"), [Path("a")])
    assert (connector.events, connector.data) == ("theirs-orders", "data")
    assert PulsarConfig.from_settings(worker).name(connector.events) == "persistent://acme/cdc/theirs-orders"

    for name in ("persistent://public/default/x", "non-persistent://acme/cdc/x", "acme/other/x"):
        errors = problems(here / "a", f"{TABLE}events.topic={name}\n")
        assert errors == {
            "events.topic": "topics are in persistent://acme/cdc/, as pulsar.tenant and pulsar.namespace say"
        }


def test_a_worker_s_errors_make_none_of_its_connectors(here: Path) -> None:
    (here / "a").write_text(f"{TABLE}events.topic=persistent://acme/cdc/x\ndata.topic=x y\n")
    assert problems(here / "worker", f"{PULSAR}listeners=8083\n").keys() == {"listeners", "data.topic"}


def test_a_topic_on_kafka_has_no_full_name(here: Path) -> None:
    (here / "worker").write_text(f"{PULSAR}data.log=kafka\nbootstrap.servers=k\nlisteners=http://127.0.0.1:0\n")
    name = "persistent://acme/cdc/x"
    assert problems(here / "a", f"{TABLE}data.topic={name}\n").keys() == {"data.topic"}
    (here / "a").write_text(f"{TABLE}events.topic={name}\n")
    assert validate("worker", "a").exit_code == 0


def test_files_of_certificates(here: Path) -> None:
    """Of the worker and its connectors: they are there, and TLS can use them."""
    authority = trustme.CA()
    own, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    authority.cert_pem.write_to_path("ca.pem")
    own.private_key_and_cert_chain_pem.write_to_path("own.pem")
    other.private_key_pem.write_to_path("other.key")
    Path("empty").touch()
    files = "cassandra.ssl.enabled=true\ncassandra.ssl.cafile=/no/ca.pem\ncassandra.ssl.certfile=own.pem\n"
    registry = "value.converter.schema.registry.ssl.cafile"
    listener = "listeners.https.ssl.certfile=own.pem\nlisteners.https.ssl.keyfile="
    secure = WORKER.replace("http:", "https:")
    (here / "a").write_text(f"{TABLE}{files}{registry}=empty\n")
    (here / "worker").write_text(f"{secure}{listener}other.key\n")
    error_text = validate("worker", "a").stderr
    assert "a: cassandra.ssl.cafile=/no/ca.pem: there is no such file" in error_text
    assert f"a: {registry}=empty: it holds no certificates in PEM" in error_text
    assert "worker: listeners.https.ssl.certfile=own.pem: the key in other.key is of another certificate" in error_text
    assert "cassandra.ssl.certfile" not in error_text
    (here / "a").write_text(f"{TABLE}{files}{registry}=ca.pem\n".replace("/no/ca.pem", "ca.pem"))
    (here / "worker").write_text(f"{secure}{listener}own.pem\n")
    result = validate("worker", "a")
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_setting_that_consumers_alone_refuse(here: Path) -> None:
    """Producers have no sessions."""
    (here / "worker").write_text(
        f"{WORKER}consumer.session.timeout.ms=400000\nkafka.security.protocol=SSL\nkafka.ssl.ca.location=/no/ca.pem\n"
    )
    error_text = validate("worker").stderr
    assert "consumer.session.timeout.ms=400000: Failed to create consumer: `max.poll.interval.ms`" in error_text
    assert error_text.count("kafka.ssl.ca.location=/no/ca.pem") == 1


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_a_listener_of_another_machine(here: Path, host: str) -> None:
    (here / "worker").write_text(WORKER.replace("127.0.0.1:0", f"{host}:8083"))
    result = validate("worker")
    assert result.exit_code == 2
    assert f"listeners=http://{host}:8083: cannot listen: " in result.stderr
    assert "set listeners to an address of this machine that is free" in result.stderr


def test_a_port_that_is_taken_and_a_worker_that_runs(here: Path) -> None:
    """A worker that runs is no mistake: it is to be restarted with these files."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        text = WORKER.replace("127.0.0.1:0", f"127.0.0.1:{port}").replace("/tmp/none", str(here / "checkpoint"))
        (here / "worker").write_text(text)
        result = validate("worker")
        assert (result.exit_code, "cannot listen: Address already in use" in result.stderr) == (2, True)
        with owned(here / "checkpoint", lambda: False):
            result = validate("worker")
        assert (result.exit_code, result.stdout) == (0, "worker is valid\n")
        assert re.match(r"worker: warning: checkpoint\.dir=.*: stop the worker that has it first: host ", result.stderr)
    with owned(here / "checkpoint", lambda: False):
        """The lock is not kept."""


@pytest.mark.parametrize("memory", ["0g", "7b", "7", "512mb", "512 m", "400m", "1p"])
def test_memory_with_which_spark_does_not_start(here: Path, memory: str) -> None:
    assert problems(here / "worker", f"{WORKER}spark.driver.memory={memory}\n").keys() == {"spark.driver.memory"}


@pytest.mark.parametrize("memory", ["0g", "7b", "600", "449m"])
def test_memory_with_which_executors_do_not_start(here: Path, memory: str) -> None:
    assert problems(here / "worker", f"{WORKER}spark.executor.memory={memory}\n").keys() == {"spark.executor.memory"}


def test_memory_with_which_they_do(here: Path) -> None:
    for driver, executor in (("450m", "450 mb"), ("1G", "1gb"), ("524288k", "600000000b")):
        (here / "worker").write_text(f"{WORKER}spark.driver.memory={driver}\nspark.executor.memory={executor}\n")
        assert validate("worker").exit_code == 0, driver


@pytest.mark.parametrize("key", ["driver.extraJavaOptions", "driver.defaultJavaOptions", "executor.extraJavaOptions"])
def test_the_heap_is_not_for_java_s_options(here: Path, key: str) -> None:
    text = f"{WORKER}spark.{key}=-Dx=y -Xmx2g\n"
    assert problems(here / "worker", text) == {
        f"spark.{key}": f"leave -Xmx out: spark.{key.partition('.')[0]}.memory says how much memory there is"
    }


def test_what_the_servers_refuse(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it at once; the files alone are valid. Topics are not asked for if no broker answers."""
    away = HelenusError(Kind.BROKER_UNREACHABLE, "no broker answers", "k:9092")
    none = HelenusError(Kind.TABLE_MISSING, "there is no such table", "shop.orders")
    answers: dict[str, HelenusError | None] = {"orders": none}

    def reach(worker: object) -> None:
        raise away

    monkeypatch.setattr(validate_command, "reach", reach)
    monkeypatch.setattr(validate_command.TableDefinitions, "scan", lambda *_: answers)
    result = validate("worker", "a", "--connect")
    assert (result.exit_code, result.stdout) == (1, "worker is valid\na is valid\n")
    assert result.stderr.splitlines() == [f"helenus-connector: worker: {away}", f"helenus-connector: a: {none}"]
    answers["orders"] = None
    monkeypatch.setattr(validate_command, "reach", lambda _: None)
    partitions = {"events-shop.orders": 6, "data-shop.orders": 4}
    monkeypatch.setattr(
        validate_command.TopicQueries, "_partitions", lambda _, topics: {t: partitions[t] for t in topics}
    )
    monkeypatch.setattr(KafkaLog, "topics", lambda _: partitions)
    monkeypatch.setattr(_rights, "missing_rights", lambda config, uses: ())
    result = validate("worker", "a", "--connect")
    unequal = "events-shop.orders has 6 partitions, data-shop.orders has 4"
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith(f"helenus-connector: a: {unequal} (a): choose another data.topic")
    partitions["data-shop.orders"] = 6
    result = validate("worker", "a", "--connect")
    nothing_refused = (
        "the servers refuse nothing; not asked: whether topics that are missing may be read or written once they are"
    )
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, f"{nothing_refused} there")
