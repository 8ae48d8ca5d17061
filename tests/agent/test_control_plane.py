"""The configuration in Cassandra, its REST API and the agents' reports, with a store in memory."""

from __future__ import annotations

import dataclasses
import json
import ssl
import sys
import threading
import urllib.error
import urllib.request
import uuid
import weakref
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trustme
from agent.fakes import Raw, write_of
from agent.test_agent import TABLE, Bench
from agent.writer import table_of
from patience import eventually

from helenus_agent import agent_run, metrics, status
from helenus_agent.agent import Agent
from helenus_agent.config import AgentSettings
from helenus_agent.control import (
    _agent_reporter,
    _config_follower,
    _saved_configs,
    _service_configs,
    configured_agent,
)
from helenus_agent.control._config_follower import ConfigFollower
from helenus_agent.control._config_store import AgentReport, ConfigStore, NotApplied, StoredReport
from helenus_agent.control._rest_resources import ControlApi
from helenus_agent.control._row_keys import ROW_KEYS, ROW_SETTINGS
from helenus_agent.control._service_configs import check_service, effective_config
from helenus_agent.control.configured_agent import ConfiguredAgent
from helenus_agent.followed_tables import FollowedTables
from helenus_agent.monitor import Monitor
from helenus_agent.own_properties import OwnProperties, load_settings
from helenus_agent.state import StateDirectory
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import monitoring
from helenus_schemas.settings.properties import ConfigError
from helenus_sinks.kafka.settings import wrong_settings

KAFKA = {"bootstrap.servers": "k:9092"}
LOGIN = "me:secret"


class MemoryStore:
    """Rows of `configs`, and of `agents`; `away`: it does not answer."""

    def __init__(self, **rows: dict[str, str]) -> None:
        self.rows: dict[str, dict[str, str]] = rows
        self.agents: list[AgentReport] = []
        self.away = False

    def read(self) -> dict[str, dict[str, str]]:
        if self.away:
            raise HelenusError(Kind.CASSANDRA_UNREACHABLE, "away", "memory")
        return {service: dict(config) for service, config in self.rows.items()}

    def write(self, service: str, config: dict[str, str]) -> None:
        self.rows = {**self.read(), service: dict(config)}

    def delete(self, service: str) -> bool:
        rows = self.read()
        is_there = rows.pop(service, None) is not None
        self.rows = rows
        return is_there

    def report(self, report: AgentReport) -> None:
        self.agents.append(report)

    def reports(self) -> list[StoredReport]:
        return [StoredReport(report, 100 * n, 1_700_000_000_000) for n, report in enumerate(self.agents)]

    def close(self) -> None: ...


def own(**properties: str) -> OwnProperties:
    properties = {key.replace("_", "."): text for key, text in properties.items()}
    return OwnProperties("agent.properties", {"config.store": "cassandra", **properties})


def follower(store: MemoryStore, state_dir: Path, own_properties: OwnProperties | None = None) -> ConfigFollower:
    return ConfigFollower(own_properties or own(), store, state_dir, 0.05)  # type: ignore[arg-type]


class Served:
    """An agent's listener, with the API over a store."""

    def __init__(self, tmp_path: Path, store: MemoryStore, **properties: str) -> None:
        self.tmp_path = tmp_path
        self.store = store
        self.port = 0
        self.login: str | None = LOGIN
        properties_set = {"rest_basic_auth_user_info": LOGIN, "listeners": "http://127.0.0.1:1", **properties}
        properties_set = {key: text for key, text in properties_set.items() if text}
        self.own = own(state_dir=str(tmp_path / "state"), **properties_set)
        self.settings = AgentSettings.from_properties(self.own.properties, "test")
        self.follower = follower(store, tmp_path / "state", self.own)

    @contextmanager
    def listening(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
        monitor = Monitor(self.settings, ControlApi(self.follower, self.store).answer)  # type: ignore[arg-type]
        serve = monitoring.serve
        monkeypatch.setattr(monitoring, "serve", lambda host, _, *more: serve(host, 0, *more))  # a free port
        monitor.serve(lambda: None)
        assert monitor._server is not None
        self.port = monitor._server.port
        try:
            yield self
        finally:
            monitor.close()

    def call(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None, tls: Any = None
    ) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        scheme = "https" if self.settings.secure else "http"
        request = urllib.request.Request(f"{scheme}://127.0.0.1:{self.port}{path}", data, method=method)
        if self.login:
            request.add_header("Authorization", f"Basic {b64encode(self.login.encode()).decode()}")
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=10, context=tls) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
                is_json = error.headers["Content-Type"] == "application/json"
                return error.code, json.loads(text) if is_json else text.decode()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with Served(tmp_path, MemoryStore()).listening(monkeypatch) as api:
        yield api


CONFIG = "/api/v1/services/{}/config"


def test_bodies_and_statuses_are_the_sidecars(served: Served) -> None:
    assert served.call("GET", "/api/v1/services") == (200, {"services": []})
    status_code, error = served.call("DELETE", CONFIG.format("cdc"))
    no_config = {"status": "Not Found", "code": 404, "message": "There is no configuration present for this service."}
    assert (status_code, error) == (404, no_config)
    body = {"config": {"table.include.list": r"shop\..*"}}
    assert served.call("PUT", CONFIG.format("cdc"), body) == (200, {"service": "cdc", **body})
    assert served.call("PUT", CONFIG.format("kafka"), {"config": KAFKA})[0] == 200
    both = [{"service": "cdc", "config": body["config"]}, {"service": "kafka", "config": KAFKA}]
    assert served.call("GET", "/api/v1/services/") == (200, {"services": both})
    assert served.call("GET", CONFIG.format("CDC")) == served.call("GET", CONFIG.format("cdc")) == (200, both[0])
    assert served.call("DELETE", CONFIG.format("cdc")) == (200, {"status": "OK"})
    assert served.call("GET", CONFIG.format("cdc"))[0] == 404
    assert served.call("POST", CONFIG.format("cdc"), body)[0] == 405
    assert served.call("GET", "/api/v1/else")[0] == 404
    assert served.call("GET", CONFIG.format("spark"))[0] == 400


FORBIDDEN = (
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.jwt.template.file",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.keytab",
    "test.mock.num.brokers",
    "allow.auto.create.topics",
    "logger",
    "error_cb",
    "default.topic.config",
    "plugin.library.paths",
    "ssl.engine.location",
    "ssl.ca.location",
    "ssl.key.location",
    "ssl.keystore.location",
)
TEXT = "${env:NO_SUCH_VARIABLE}"
WRONG = [
    ("cdc", b"", "no JSON"),
    ("cdc", b"{", "no JSON"),
    ("cdc", b"\xff", "not UTF-8"),
    ("cdc", b"[" * 100_000, "nested"),
    ("cdc", [], "config needs to be passed"),
    ("cdc", {}, "config needs to be passed"),
    ("cdc", {"config": []}, "Invalid configuration"),
    ("cdc", {"config": {}, "else": 1}, "the body has else"),
    ("cdc", {"config": {"topic.partitions": 4}}, "a text is expected"),
    ("cdc", {"config": {"topic.partitions": None}}, "a text is expected"),
    ("cdc", b'{"config": {"headers": "none", "headers": "datastax"}}', "a key twice"),
    ("cdc", {"config": {"": "x"}}, "a key is empty"),
    ("cdc", b'{"config": {"topic.prefix": "\\ud800"}}', "no Unicode"),
    ("cdc", {"config": {"topic.partitions": "many"}}, "topic.partitions=many: give a whole number"),
    ("cdc", {"config": {"table.include.list": "shop.*, [a"}}, "not a regular expression"),
    ("cdc", {"config": {"topic.prefx": "x"}}, "did you mean topic.prefix"),
    ("cdc", {"config": {"state.dir": "/tmp"}}, "concerns a single node"),
    ("cdc", {"config": {"segment.transfer": "os:system"}}, "concerns a single node"),
    ("cdc", {"config": {"cassandra.password": "x"}}, "concerns a single node"),
    ("cdc", {"config": {"rest.basic.auth.user.info": "a:b"}}, "concerns a single node"),
    ("cdc", {"config": {"cdc_enabled": "perhaps"}}, "give true or false"),
    ("cdc", {"config": {"topic": "all", "topic_format_type": "STATIC"}}, "leave it out"),
    ("kafka", {"config": {}}, "bootstrap.servers: required property is missing"),
    ("kafka", {"config": {"bootstrap.servers": "http://k"}}, "give Kafka's brokers as host:port"),
    ("kafka", {"config": {**KAFKA, "kafka.sasl.password": "hunter2"}}, "a secret is not stored in clear"),
    ("kafka", {"config": {**KAFKA, "sasl.password": "hunter2"}}, "a secret is not stored in clear"),
    ("kafka", {"config": {**KAFKA, "sasl.password": TEXT}}, "variables have to match"),
    ("kafka", {"config": {**KAFKA, "client.id": "${file:/etc/passwd:root}"}}, "may not refer to it"),
    ("kafka", {"config": {**KAFKA, "acks": "${vault:x}"}}, "there are no references"),
    ("kafka", {"config": {**KAFKA, "kafka.plugin.library.paths": "/tmp/evil.so"}}, "not among librdkafka's"),
    ("kafka", {"config": {**KAFKA, "producer.linger": "1"}}, "did you mean linger.ms?"),
    ("kafka", {"config": {**KAFKA, "enable.idempotence": "false"}}, "leave it out"),
    *(("kafka", {"config": {**KAFKA, key: "x"}}, "not among librdkafka's settings") for key in FORBIDDEN),
    *(("cdc", {"config": {f"producer.{key}": "x"}}, "not among librdkafka's settings") for key in FORBIDDEN),
    ("pulsar", {"config": {"pulsar.service.url": "pulsar://p:1", "pulsar.tls.cafile": "/x"}}, "concerns a single node"),
    ("cdc", {"config": {"log": "rabbit"}}, "give kafka or pulsar"),
    ("cdc", {"config": {"table.include.list": r"a{4294967296}\.b"}}, "has no ( ) { } |"),
    ("cdc", {"config": {"table.include.list": "(" * 900}}, "has no ( ) { } |"),
    ("cdc", {"config": {"table.include.list": "a," + "x" * 1001}}, "1000 characters at most"),
    ("cdc", {"config": {"table.exclude.list": r"(\w+)*\.(\w+)*x"}}, "has no ( ) { } |"),
    ("cdc", {"config": {"cells.include.list": r"\w*\w*\w*x"}}, "2 of * + ? at most"),
    ("cdc", {"config": {"cells.include.list": "${env:X}"}}, "give the names themselves"),
    ("pulsar", {"config": {"pulsar.service.url": "pulsar://p:6650", "pulsar.auth.token": "abc"}}, "in clear"),
    ("pulsar", {"config": {"pulsar.service.url": "p:6650"}}, "pulsar://host:port"),
    ("cdc", {"config": {f"kafka.k{n}": "x" for n in range(501)}}, "500 are the most"),
    ("cdc", {"config": {"topic.prefix": "x" * 20_000}}, "10000 characters at most"),
]


@pytest.mark.parametrize(("service", "body", "message"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_body_is_refused_before_it_is_stored(served: Served, service: str, body: object, message: str) -> None:
    status_code, answer = served.call("PUT", CONFIG.format(service), body)
    assert (status_code, answer["code"], answer["status"]) == (400, 400, "Bad Request"), answer
    assert message in answer["message"]
    assert "hunter2" not in answer["message"]
    assert served.store.rows == {}


def test_bodies_that_are_not_read(served: Served) -> None:
    path = CONFIG.format("cdc")
    assert served.call("PUT", path, {"config": {}}, {"Content-Type": "text/plain"})[0] == 415
    assert served.call("PUT", path, b" " * (1 << 20))[0] == 413
    assert served.call("PUT", path, {"config": {}}, {"Transfer-Encoding": "chunked"})[0] == 411
    assert served.store.rows == {}


def test_a_reference_that_the_agents_file_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELENUS_TEST_SECRET", "hunter2")
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "kafka.properties").write_text("user=me\n")
    allowed = {
        "config_providers_env_param_allowlist_pattern": "HELENUS_TEST_.*",
        "config_providers_file_param_allowed_paths": str(folder),
    }
    config = {
        **KAFKA,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": f"${{file:{folder}/kafka.properties:user}}",
        "sasl.password": "${env:HELENUS_TEST_SECRET}",
    }
    with Served(tmp_path, MemoryStore(cdc={}), **allowed).listening(monkeypatch) as api:
        assert api.call("PUT", CONFIG.format("kafka"), {"config": config})[1]["config"] == config
        assert api.call("GET", CONFIG.format("kafka"))[1]["config"] == config
        api.follower.poll()
        settings = api.follower.config.settings
    assert settings is not None
    assert (settings.producer["sasl.username"], settings.producer["sasl.password"]) == ("me", "hunter2")
    assert "hunter2" not in (tmp_path / "state" / "configs.json").read_text()


def test_secrets_that_cql_wrote_are_not_shown(served: Served) -> None:
    served.store.rows = {"kafka": {**KAFKA, "kafka.sasl.password": "hunter2"}}
    for path in ("/api/v1/services", CONFIG.format("kafka")):
        status_code, answer = served.call("GET", path)
        assert (status_code, "hunter2" in str(answer), "*****" in str(answer)) == (200, False, True)


# Who may change it.


def test_a_login_is_needed_for_all_but_liveness(served: Served) -> None:
    for login in (None, "me:wrong", "ö:ö"):
        served.login = login
        assert served.call("GET", "/api/v1/services")[0] == 401
        assert served.call("PUT", CONFIG.format("cdc"), {"config": {}})[0] == 401
        assert served.call("GET", "/metrics")[0] == 401
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/health/live", timeout=5) as answer:
        assert answer.status == 200
    assert served.store.rows == {}


@pytest.mark.parametrize(
    ("properties", "status_code"),
    [
        ({}, 403),
        ({"rest_local_writes": "true"}, 200),
        ({"listeners": "http://0.0.0.0:1", "rest_local_writes": "true"}, 403),
    ],
)
def test_changes_without_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], status_code: int
) -> None:
    properties_set = {"rest_basic_auth_user_info": "", **properties}
    with Served(tmp_path, MemoryStore(cdc={}), **properties_set).listening(monkeypatch) as api:
        api.login = None
        assert api.call("GET", "/api/v1/services")[0] == 200
        assert api.call("PUT", CONFIG.format("cdc"), {"config": {"headers": "none"}})[0] == status_code
        assert api.call("DELETE", CONFIG.format("cdc"))[0] == status_code
        assert ("cdc" not in api.store.rows) == (status_code == 200)


def test_a_page_of_another_origin_changes_nothing(served: Served) -> None:
    path, body = CONFIG.format("cdc"), {"config": {}}
    foreign = [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}]
    for headers in foreign:
        assert served.call("PUT", path, body, headers)[0] == 403
    assert served.store.rows == {}
    assert served.call("PUT", path, body, {"Origin": f"http://127.0.0.1:{served.port}"})[0] == 200
    assert served.call("PUT", path, body, {"Sec-Fetch-Site": "same-origin"})[0] == 200


def test_tls_and_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over https with a login; `status` asks its own agent with what is in the same file."""
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    server.cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    server.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    files = {
        "listeners": "https://127.0.0.1:1",
        "listeners_https_ssl_certfile": str(tmp_path / "server.pem"),
        "listeners_https_ssl_keyfile": str(tmp_path / "server.key"),
        "cdc_raw_dir": str(tmp_path),
    }
    with Served(tmp_path, MemoryStore(), **files).listening(monkeypatch) as api:
        assert api.call("PUT", CONFIG.format("cdc"), {"config": {}}, tls=context)[0] == 200
        own_settings = api.settings.model_copy(update={"listeners": f"https://127.0.0.1:{api.port}"})
        state = StateDirectory(own_settings.state_dir)
        metrics.DISABLED.set(1)
        metrics.CONFIG_REFUSED.set(1)
        try:
            read = status.read_status(own_settings)
        finally:
            metrics.DISABLED.set(0)
            metrics.CONFIG_REFUSED.set(0)
            state.close()
        assert read.metrics, read.trouble
        assert any("publishing is disabled" in trouble for trouble in read.trouble)
        assert any("configs is refused" in trouble for trouble in read.trouble)
        with pytest.raises((OSError, urllib.error.URLError)):
            urllib.request.urlopen(f"http://127.0.0.1:{api.port}/health/live", timeout=5)


# Which settings come out.


def test_every_key_is_of_all_nodes_or_of_one() -> None:
    """A new key has to be sorted: whoever may change `configs` may set those of all nodes."""
    prefixes = {prefix[:-1] for prefix in AgentSettings.prefixes()}
    keys = {field.alias or name for name, field in AgentSettings.model_fields.items()} - prefixes
    beginnings = ("cassandra.", "config.", "listeners", "http.", "rest.", "segment.", "state.")
    of_a_node = {key for key in keys if key.startswith(beginnings)}
    of_a_node |= {"cdc.raw.dir", "startup.timeout.ms", "log.format"}
    of_a_node |= {"pulsar.tls.cafile", "otel.traces.exporter"}  # which needs the extra
    assert keys == ROW_KEYS | of_a_node
    assert not ROW_KEYS & of_a_node


def test_settings_of_librdkafka_name_no_file_and_no_code() -> None:
    """Whoever adds one to the list has to see what it does."""
    parts = {part for setting in ROW_SETTINGS for part in setting.split(".")}
    assert not parts & set(
        "location file path paths cmd keytab url test engine plugin config template callback".split()
    )
    assert not any(setting.startswith(("sasl.oauthbearer", "sasl.kerberos")) for setting in ROW_SETTINGS)
    unknown = [setting for setting in ROW_SETTINGS if "No such" in str(wrong_settings({setting: "1"}, {setting}))]
    assert unknown == []


def test_the_agents_own_keys_win() -> None:
    rows = {"cdc": {"topic.prefix": "shared-", "headers": "datastax"}, "kafka": {**KAFKA, "linger.ms": "7"}}
    settings = effective_config(own(topicPrefix="own-", kafka_producer_linger_ms="9"), rows).settings
    assert settings is not None
    assert (settings.topic_prefix, settings.headers, settings.producer) == ("own-", "datastax", {"linger.ms": "9"})
    assert settings.bootstrap_servers == "k:9092"


@pytest.mark.parametrize(
    ("own_properties", "rows", "expected"),
    [
        ({"kafka_linger_ms": "9"}, {"linger.ms": "7"}, {"linger.ms": "9"}),
        ({"kafka_linger_ms": "9"}, {"queue.buffering.max.ms": "7"}, {"linger.ms": "9"}),
        ({"producer_sasl_mechanisms": "PLAIN"}, {"kafka.sasl.mechanism": "OAUTHBEARER"}, {"sasl.mechanisms": "PLAIN"}),
    ],
)
def test_the_agents_own_settings_win_by_any_name(
    own_properties: dict[str, str], rows: dict[str, str], expected: dict[str, str]
) -> None:
    protocol = {"kafka_security_protocol": "SASL_PLAINTEXT", "bootstrap_servers": "own:1"}
    login = {"kafka_sasl_username": "me", "kafka_sasl_password": "x", "kafka_sasl_mechanism": "PLAIN"}
    login = {} if "linger" in str(expected) else {key: text for key, text in login.items() if "mechanism" not in key}
    properties = {**(protocol if login else {}), **login, **own_properties}
    settings = effective_config(own(**properties), {"cdc": {}, "kafka": {**KAFKA, **rows}}).settings
    assert settings is not None
    merged = {**settings.kafka, **settings.producer}
    assert merged.items() >= expected.items()
    assert not {"sasl.mechanism", "queue.buffering.max.ms"} & merged.keys()


def test_the_agents_own_login_goes_where_its_file_says() -> None:
    login = {"kafka_security_protocol": "SASL_SSL", "kafka_sasl_mechanism": "PLAIN"}
    login |= {"kafka_sasl_username": "me", "kafka_sasl_password": "hunter2"}
    for row in (
        {"bootstrap.servers": "evil:1"},
        {"enable.ssl.certificate.verification": "false"},
        {"producer.enable.ssl.certificate.verification": "false"},
        {"ssl.ca.pem": "x"},
        {"ssl.endpoint.identification.algorithm": "none"},
    ):
        with pytest.raises(ConfigError, match="who receives the login"):
            effective_config(own(**login), {"cdc": {}, "kafka": {**KAFKA, **row}})
    rows = {"cdc": {}, "kafka": {**KAFKA, "security.protocol": "SASL_PLAINTEXT"}}
    settings = effective_config(own(**login, bootstrap_servers="own:1"), rows).settings
    assert settings is not None
    assert (settings.bootstrap_servers, settings.producer) == ("own:1", {})
    assert settings.kafka["security.protocol"] == "SASL_SSL"
    pulsar = {"pulsar.service.url": "pulsar://p:6650", "pulsar.admin.url": "http://evil:1"}
    with pytest.raises(ConfigError, match="who receives the login"):
        effective_config(
            own(pulsar_auth_token="abc", pulsar_service_url="pulsar://own:1"), {"cdc": {}, "pulsar": pulsar}
        )


@pytest.mark.parametrize("key", ["security.protocol", "topic.partitions", "topic.prefix"])
def test_what_a_reference_leads_to_is_not_shown(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("HELENUS_TEST_SECRET", "top secret")
    allowed = {"config_providers_env_param_allowlist_pattern": "HELENUS_TEST_.*"}
    reference = "${env:HELENUS_TEST_SECRET}"
    for own_properties, row in (({}, {key: reference}), ({f"kafka.{key}" if "sec" in key else key: reference}, {})):
        with pytest.raises(ConfigError) as error:
            effective_config(own(**allowed, **own_properties), {"cdc": {}, "kafka": {**KAFKA, **row}})
        assert "top secret" not in _config_follower.describe(error.value)
        assert f"{key}={reference}: what it refers to" in str(error.value)


def test_rows_are_corrected_one_by_one() -> None:
    rows = {"cdc": {"topic.partitions": "many"}, "kafka": {**KAFKA, "acks": "7000000"}}
    check_service(own(), rows, "cdc", {"cdc_enabled": "false"})
    with pytest.raises(ConfigError) as error:
        check_service(own(), rows, "kafka", {**KAFKA, "acks": "8000000"})
    assert [(problem.source, problem.key) for problem in error.value.problems] == [("service kafka", "acks")]
    check_service(own(), rows, "kafka", KAFKA)
    check_service(own(), rows, "cdc", {"topic.partitions": "4"})


def test_pulsar_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "helenus_sinks.pulsar.log", None)
    row = {"pulsar.service.url": "pulsar://p:6650"}
    with pytest.raises(ConfigError, match="install the extra pulsar"):
        check_service(own(), {"cdc": {}}, "pulsar", row)
    with pytest.raises(ConfigError, match="install the extra pulsar"):
        effective_config(own(), {"cdc": {}, "pulsar": row})


def test_files_of_secrets_are_protected_without_a_file_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.properties"
    secrets.write_text("rest=me:hunter2\n")
    reference = f"${{file:{secrets}:rest}}"
    monkeypatch.setenv("HELENUS_CONFIG_STORE", "cassandra")
    monkeypatch.setenv("HELENUS_REST_BASIC_AUTH_USER_INFO", reference)
    monkeypatch.setenv("HELENUS_CONFIG_PROVIDERS_FILE_PARAM_ALLOWED_PATHS", str(tmp_path))
    with pytest.raises(ConfigError, match="the agent's own files are not among them"):
        effective_config(OwnProperties.load(None), {"cdc": {}, "kafka": {**KAFKA, "client.id": reference}})


def test_where_events_go() -> None:
    pulsar = {"pulsar.service.url": "pulsar://p:6650"}

    def broker(own_properties: OwnProperties, **rows: dict[str, str]) -> str | None:
        settings = effective_config(own_properties, rows).settings
        return settings.log if settings else None

    assert broker(own(), cdc={}, kafka=KAFKA) == "kafka"
    assert broker(own(), cdc={}, pulsar=pulsar) == "pulsar"
    assert broker(own(), cdc={}, pulsar=pulsar, kafka=KAFKA) == "kafka"
    assert broker(own(), cdc={"log": "pulsar"}, pulsar=pulsar, kafka=KAFKA) == "pulsar"
    assert broker(own(log="pulsar"), cdc={}, pulsar=pulsar, kafka=KAFKA) == "pulsar"
    assert broker(own(bootstrap_servers="own:9092"), cdc={}) == "kafka"
    assert broker(own(), cdc={"log": "pulsar"}, kafka=KAFKA) is None
    assert broker(own(), kafka=KAFKA) is None
    assert broker(own(), cdc={"cdc_enabled": "false"}, kafka=KAFKA) is None


def test_a_row_of_the_sidecar() -> None:
    cdc = {"cdc_enabled": "true", "jobid": "x", "env": "prod", "watermark_seconds": "60", "max_commit_logs": "4"}
    kafka = {**KAFKA, "key.serializer": "org.apache.X", "security.protocol": "SSL", "linger.ms": "5"}
    settings = effective_config(own(), {"cdc": cdc, "kafka": kafka, "other": {"a": "b"}}).settings
    assert settings is not None
    assert settings.producer == {"security.protocol": "SSL", "linger.ms": "5"}


def test_two_rows_with_one_key() -> None:
    rows = {"cdc": {"topic.prefix": "a-"}, "kafka": {**KAFKA, "topic.prefix": "b-"}}
    with pytest.raises(ConfigError, match="service cdc has it too, with another value"):
        effective_config(own(), rows)


def test_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "HELENUS_CONFIG_STORE": "cassandra",
        "HELENUS_CASSANDRA_CONTACT_POINTS": "10.0.0.1",
        "HELENUS_KAFKA_SECURITY_PROTOCOL": "PLAINTEXT",
        "HELENUS_TYPO": "x",
        "HELENUS_FAILPOINT": "",
    }.items():
        monkeypatch.setenv(name, value)
    with structlog.testing.capture_logs() as logged:
        settings = load_settings(None)
    assert settings.cassandra_contact_points == ("10.0.0.1",)
    assert settings.kafka == {"security.protocol": "PLAINTEXT"}
    assert [line["key"] for line in logged if line["event"] == "config.ignored"] == ["HELENUS_TYPO"]


# Following it.


def test_a_wrong_row_keeps_the_last_good_one(tmp_path: Path) -> None:
    store = MemoryStore(cdc={"topic.prefix": "a-"}, kafka=KAFKA)
    following = follower(store, tmp_path)
    following.poll()
    good = following.config
    assert good.settings is not None
    assert good.settings.topic_prefix == "a-"
    assert following.changed.is_set()
    following.changed.clear()
    store.rows["cdc"] = {"topic.prefix": "a b"}
    following.poll()
    assert following.config is good
    assert not following.changed.is_set()
    assert "service cdc" in following.refusal or "topic.prefix" in following.refusal
    assert metrics.CONFIG_REFUSED._value.get() == 1
    # It is kept on the disk, too: a restart goes by it, whether the table answers or not.
    for away in (False, True):
        store.away = away
        restarted = follower(store, tmp_path)
        assert restarted.config.settings == good.settings
        restarted.poll()
        assert restarted.config.settings == good.settings
        assert restarted.trouble
    store.away, store.rows["cdc"] = False, {"topic.prefix": "b-"}
    following.poll()
    assert following.config.settings is not None
    assert following.config.settings.topic_prefix == "b-"
    assert (following.refusal, metrics.CONFIG_REFUSED._value.get()) == ("", 0)


def test_rows_that_nobody_foresaw_are_refused_and_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"cdc": {}, "kafka": KAFKA}
    store = MemoryStore(**good)
    following = follower(store, tmp_path)
    following.poll()

    def fail(*_: object) -> None:
        raise OverflowError("hunter2")

    monkeypatch.setattr(_service_configs, "check", fail)
    store.rows = {"cdc": {"headers": "none"}, "kafka": KAFKA}
    for _ in range(3):
        following.poll()
        assert "OverflowError" in following.refusal
        assert "hunter2" not in following.refusal
        assert _saved_configs.load(tmp_path) == good
    with pytest.raises(ConfigError):
        following.write("cdc", {"headers": "datastax"})
    restarted = follower(store, tmp_path)  # which can't use the saved ones either, and says so
    restarted.poll()
    assert "OverflowError" in restarted.refusal


def test_publishing_is_disabled_whatever_else_is_wrong(tmp_path: Path) -> None:
    store = MemoryStore(cdc={}, kafka={**KAFKA, "kafka.sasl.password": "in clear"})
    following = follower(store, tmp_path)
    following.poll()
    assert "in clear" in following.refusal
    assert following.config.reason == "publishing is disabled: configs is not read yet"
    del store.rows["cdc"]
    following.poll()
    following.poll()
    assert following.config.reason == "publishing is disabled: service cdc is not configured"


def test_a_row_is_gone_when_two_reads_in_turn_miss_it(tmp_path: Path) -> None:
    rows = {"cdc": {}, "kafka": KAFKA}
    none = {"helenus": {"rows": "deleted"}}
    store = MemoryStore(**rows)
    following = follower(store, tmp_path)
    for stored, is_publishing in ((rows, True), (none, True), (rows, True), (none, True), (none, False), (rows, True)):
        store.rows = stored  # type: ignore[assignment]
        following.poll()
        assert (following.config.settings is not None) is is_publishing
    store.rows = none  # type: ignore[assignment]
    restarted = follower(store, tmp_path)
    for is_publishing in (True, False):
        restarted.poll()
        assert (restarted.config.settings is not None) is is_publishing


def test_a_table_that_is_lost_is_no_configuration(tmp_path: Path) -> None:
    """Dropped, or lost with a disk, and created anew by an agent; and one that is emptied on purpose."""
    store = MemoryStore(cdc={}, kafka=KAFKA)
    following = follower(store, tmp_path)
    following.poll()
    store.rows = {}
    for this_follower in (following, follower(store, tmp_path)):
        for _ in range(3):
            this_follower.poll()
        assert this_follower.config.settings is not None
        assert "configs is empty, and was not" in this_follower.trouble
        assert _saved_configs.load(tmp_path) == {"cdc": {}, "kafka": KAFKA}
    following.write("cdc", {})
    following.write("kafka", KAFKA)
    following.poll()
    assert following.trouble == ""
    assert not following.delete("pulsar")
    assert [following.delete(service) for service in ("kafka", "cdc")] == [True, True]
    assert following.read() == {}
    for _ in range(2):
        following.poll()
    assert following.config.reason == "publishing is disabled: service cdc is not configured"
    assert _saved_configs.load(tmp_path) == {}


def test_a_wrong_row_is_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable or a file that it refers to may come later."""
    monkeypatch.setattr(_config_follower, "_RECHECK_S", 0.0)
    monkeypatch.delenv("HELENUS_TEST_LATER", raising=False)
    rows = {**KAFKA, "client.id": "${env:HELENUS_TEST_LATER}"}
    allowed = own(config_providers_env_param_allowlist_pattern="HELENUS_TEST_LATER")
    following = follower(MemoryStore(cdc={}, kafka=rows), tmp_path, allowed)
    following.poll()
    assert "the environment has no HELENUS_TEST_LATER" in following.refusal
    monkeypatch.setenv("HELENUS_TEST_LATER", "x")
    following.poll()
    assert following.config.settings is not None


def test_a_damaged_file_is_no_configuration(tmp_path: Path) -> None:
    _saved_configs.save(tmp_path, {"cdc": {}, "kafka": KAFKA})
    assert _saved_configs.load(tmp_path) == {"cdc": {}, "kafka": KAFKA}
    path = tmp_path / "configs.json"
    path.write_text(path.read_text().replace("k:9092", "j:9092"))
    assert _saved_configs.load(tmp_path) is None
    assert follower(MemoryStore(cdc={}, kafka=KAFKA), tmp_path).config.settings is None


# An agent that runs.


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """An agent on a store, a directory of segments and a Log in memory."""
    bench = Bench(tmp_path)
    bench.state.close()
    bench.cassandra.set(TABLE, table_of("u", "pk int pk, v int"))
    store = MemoryStore()
    monkeypatch.setattr(configured_agent, "ConfigStore", lambda _: store)
    for module in (agent_run, _agent_reporter):
        monkeypatch.setattr(module, "Cassandra", lambda _: bench.cassandra)
    monkeypatch.setattr(agent_run, "open_log", lambda _: bench.log)
    monkeypatch.setattr(configured_agent.logs, "configure", lambda *_: None)
    bench.log.hurry = lambda _: None  # type: ignore[method-assign]
    bench.log.close = bench.log.drop  # type: ignore[method-assign]
    properties = own(
        state_dir=str(tmp_path / "state"),
        cdc_raw_dir=str(bench.raw.path),
        config_store_poll_interval_ms="100",
        config_store_report_interval_ms="500",
    )
    agent = ConfiguredAgent(properties, AgentSettings.from_properties(properties.properties, "test"))
    thread = threading.Thread(target=agent.run)
    thread.start()
    yield SimpleNamespace(agent=agent, bench=bench, store=store)
    agent.stop.set()
    agent.hurry(1)
    thread.join(20)
    agent.close()
    assert not thread.is_alive()


def test_a_life(configured: SimpleNamespace) -> None:
    """Configured, with another set of tables, disabled and enabled again: nothing is lost, nothing sent twice."""
    agent, bench, store = configured.agent, configured.bench, configured.store
    raw: Raw = bench.raw
    raw.segment(10)
    raw.index(10)

    def write(first: int, last: int) -> None:
        raw.write(10, *(write_of(table, n) for n in range(first, last) for table in bench.cassandra.tables.values()))

    def sent(name: str) -> int:
        topics = [topic for topic, _, key, *_ in bench.log.acknowledged if key is not None]
        return topics.count(f"events-{TABLE.keyspace}.{name}")

    write(0, 5)
    eventually(lambda: agent.condition().trouble == "publishing is disabled: service cdc is not configured")
    eventually(lambda: store.agents and store.agents[-1].status == "disabled" and store.agents[-1].cdc_raw_bytes > 0)
    eventually(lambda: metrics.DISABLED._value.get() == 1)
    assert agent.ready() is None, "it does what it is configured to do"
    assert not bench.log.acknowledged
    store.write("cdc", {})
    eventually(lambda: agent.condition().trouble == "publishing is disabled: service kafka is not configured")
    store.write("kafka", KAFKA)
    eventually(lambda: (sent("t"), sent("u")) == (5, 5))
    eventually(lambda: agent.condition().status == "publishing")
    # Another set of tables.
    store.write("cdc", {"table.exclude.list": r"\w+\.u"})
    eventually(lambda: agent.condition().tables == (TABLE.full_name,))
    write(5, 8)
    eventually(lambda: sent("t") == 8)
    # Included again: what it wrote meanwhile is a gap, which is said.
    store.write("cdc", {})
    eventually(lambda: len(agent.condition().tables) == 2)
    eventually(lambda: [topic for topic, _, key, *_ in bench.log.acknowledged if key is None][-1:] == ["events-ks.u"])
    assert (sent("t"), sent("u")) == (8, 5)
    store.write("cdc", {"table.exclude.list": r"\w+\.u"})
    eventually(lambda: agent.condition().tables == (TABLE.full_name,))
    # Disabled: what is written stays, and is sent when it is enabled again.
    store.delete("cdc")
    eventually(lambda: "service cdc is not configured" in agent.condition().trouble)
    write(8, 10)
    store.write("cdc", {})
    eventually(lambda: sent("t") == 10)
    assert (sent("t"), sent("u")) == (10, 7)
    # A row that is wrong changes nothing, and is said.
    store.write("kafka", {"bootstrap.servers": "k:9092", "kafka.sasl.password": "clear"})
    eventually(lambda: "a secret is not stored in clear" in agent.condition().trouble)
    assert agent.ready() is None
    write(10, 11)
    eventually(lambda: (sent("t"), sent("u")) == (11, 8))
    eventually(lambda: store.agents[-1].status == "publishing" and "in clear" in store.agents[-1].last_error)


def test_a_change_leaves_nothing_behind(configured: SimpleNamespace) -> None:
    agent, bench, store = configured.agent, configured.bench, configured.store
    bench.raw.segment(10)
    bench.raw.index(10)
    store.rows = {"cdc": {}, "kafka": KAFKA}
    eventually(lambda: agent.condition().status == "publishing", every=0.05)
    files = len(list(Path("/proc/self/fd").iterdir()))
    agents: list[weakref.ref[Agent]] = []
    for partitions in range(5, 15):
        store.write("cdc", {"topic.partitions": str(partitions)})

        def is_taken_over(partitions: int = partitions) -> bool:
            agent_run = agent._agent_run
            is_next = agent_run is not None and agent_run._settings.topic_partitions == partitions
            return is_next and agent_run.ready() is None

        eventually(is_taken_over, every=0.05)
        agents.append(weakref.ref(agent._agent_run.agent))
        bench.raw.write(10, write_of(TABLE, partitions))
        eventually(lambda n=partitions: len(bench.log.acknowledged) == n - 4, every=0.05)
    assert sum(ended() is not None for ended in agents) <= 2
    assert abs(len(list(Path("/proc/self/fd").iterdir())) - files) <= 2


def test_an_agent_that_has_not_read_the_table_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    store.away = True
    monkeypatch.setattr(configured_agent, "ConfigStore", lambda _: store)
    properties = own(state_dir=str(tmp_path / "state"))
    agent = ConfiguredAgent(properties, AgentSettings.from_properties(properties.properties, "test"))
    agent._follower.poll()
    assert (agent.ready() or "").startswith("publishing is disabled: configs is not read yet; away")
    store.away = False
    agent._follower.poll()
    assert agent.ready() is None
    assert agent.condition().status == "disabled"


def test_an_error_that_is_not_ours_ends_no_process(
    configured: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, store = configured.agent, configured.store
    opened = agent_run.open_log

    def fail(_: object) -> None:
        raise AttributeError("logger")

    monkeypatch.setattr(agent_run, "open_log", fail)
    store.rows = {"cdc": {}, "kafka": KAFKA}
    eventually(lambda: agent.ready() == "AttributeError: logger")
    monkeypatch.setattr(agent_run, "open_log", opened)
    eventually(lambda: agent.condition().status == "publishing")


def test_a_run_that_can_not_start_closes_its_segments(
    configured: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, bench, store = configured.agent, configured.bench, configured.store
    bench.raw.segment(10)
    bench.raw.index(10)
    bench.raw.write(10, write_of(TABLE, 1))

    def fail(_: object) -> None:
        raise HelenusError(Kind.TABLE_UNSUPPORTED, "no schema", "test")

    def is_opened() -> bool:
        links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return any(link.is_relative_to(bench.raw.path) for link in links)

    monkeypatch.setattr(FollowedTables, "learn", fail)
    store.rows = {"cdc": {}, "kafka": KAFKA}
    eventually(lambda: "no schema" in agent._failure, every=0.01)
    assert not is_opened()


def test_a_run_that_fails_ends_no_process(configured: SimpleNamespace) -> None:
    agent, bench, store = configured.agent, configured.bench, configured.store
    bench.cassandra.settings = {"cdc_enabled": "false"}
    store.rows = {"cdc": {}, "kafka": KAFKA}
    eventually(lambda: "cdc_enabled: false" in agent.condition().trouble)
    eventually(lambda: store.agents and store.agents[-1].status == "failing")
    bench.cassandra.settings = {}
    eventually(lambda: agent.condition().status == "publishing")
    eventually(lambda: store.agents[-1].status == "publishing")
    assert "cdc_enabled: false" in store.agents[-1].last_error


def test_an_agent_whose_state_another_one_took_over_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run that is begun anew would take it back, and so on for ever."""

    def refuse(*_: object) -> None:
        raise HelenusError(Kind.NOT_OWNER, "another agent has taken over")

    monkeypatch.setattr(configured_agent, "ConfigStore", lambda _: MemoryStore())
    monkeypatch.setattr(configured_agent, "AgentRun", refuse)
    properties = own(state_dir=str(tmp_path))
    settings = AgentSettings.from_properties(properties.properties, "test")
    with pytest.raises(HelenusError, match="another agent has taken over"):
        ConfiguredAgent(properties, settings)._publish(settings)


def test_an_agent_that_misses_three_reports_is_dead(served: Served) -> None:
    host = uuid.uuid4()
    report = AgentReport(host, "10.0.0.1", "dc1", "1", "5.0", "publishing", "", ("a.b",), 1, 2, 3, None, "", 1000)
    assert [StoredReport(report, age, 0).is_alive for age in (0, 2999, 3000)] == [True, True, False]
    served.store.agents = [report] * 2
    status_code, answer = served.call("GET", "/api/v1/cdc/agents")
    assert status_code == 200
    first = answer["agents"][0]
    assert (first["host_id"], first["alive"], first["tables"]) == (str(host), True, ["a.b"])
    assert first["reported_at"] == "2023-11-14T22:13:20.000+00:00"


def cassandra_store(monkeypatch: pytest.MonkeyPatch, rows: list[Any]) -> ConfigStore:
    """Return a store whose statements all return the same rows."""
    store = ConfigStore(AgentSettings.from_properties(own().properties, "test"))
    monkeypatch.setattr(store, "_execute", lambda *_: rows)
    return store


def test_a_change_that_does_not_count_is_a_conflict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As when a node whose clock is ahead took the row before."""
    rows = [SimpleNamespace(service="cdc", config={"headers": "none"})]
    store = cassandra_store(monkeypatch, rows)
    store.write("cdc", {"headers": "none"})
    with pytest.raises(NotApplied):
        store.delete("cdc")
    with Served(tmp_path, store).listening(monkeypatch) as api:  # type: ignore[arg-type]
        status_code, answer = api.call("PUT", CONFIG.format("cdc"), {"config": {"headers": "datastax"}})
        assert (status_code, "is not what is read then" in answer["message"]) == (409, True)
        assert api.call("DELETE", CONFIG.format("cdc"))[0] == 409


def test_reports_with_times_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    values = dict.fromkeys(field.name for field in dataclasses.fields(AgentReport))
    values |= {"address": "10.0.0.1", "status": "publishing", "interval_ms": 1000}  # type: ignore[dict-item]
    now = 1_700_000_000_000

    def row(written_at: int | None, **more: object) -> SimpleNamespace:
        return SimpleNamespace(**{**values, "written_at": written_at, "read_at": now, **more})

    ages = (0, 2999, 3000, -5000, -60_000)
    rows = [row((now - age) * 1000) for age in ages]
    rows += [row(9 * 10**18), row(-1), row(None), row(now * 1000, status=None)]
    stored = cassandra_store(monkeypatch, rows).reports()
    assert [report.is_alive for report in stored] == [True, True, False, True, False]


def test_a_slow_cassandra_leaves_the_health_checks(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    answering = threading.Event()
    monkeypatch.setattr(served.store, "reports", lambda: answering.wait(20) and [])
    codes: list[int] = []
    calls = [
        threading.Thread(target=lambda: codes.append(served.call("GET", "/api/v1/cdc/agents")[0])) for _ in range(12)
    ]
    for call in calls:
        call.start()
    eventually(lambda: codes == [503] * 4)
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/health/live", timeout=5) as answer:
        assert answer.status == 200
    answering.set()
    for call in calls:
        call.join(20)
    assert sorted(codes) == [200] * 8 + [503] * 4
    assert served.call("GET", "/api/v1/services")[0] == 200


def test_certificates_do_not_close_an_http_listener(tmp_path: Path) -> None:
    properties = {**own(state_dir=str(tmp_path)).properties, "listeners": "http://0.0.0.0:1"}
    properties["listeners.https.ssl.cafile"] = "/unused.pem"
    assert Monitor(AgentSettings.from_properties(properties, "test"))._is_open


def test_replication_is_named_where_few_nodes_are_seen() -> None:
    store = ConfigStore(AgentSettings.from_properties(own().properties, "test"))
    assert store._default_replication(["a"] * 3 + ["b"] * 4) == "{'class': 'NetworkTopologyStrategy', 'a': 3, 'b': 3}"
    for seen in (["a"], ["a"] * 3 + ["b"] * 2):
        with pytest.raises(HelenusError, match=r"set config\.store\.replication, for these nodes"):
            store._default_replication(seen)


def test_the_statements_are_safe_and_the_same_on_all_nodes() -> None:
    def store(**more: str) -> ConfigStore:
        return ConfigStore(AgentSettings.from_properties({**own().properties, **more}, "test"))

    assert store()._table_statement("configs") == store()._table_statement("configs")
    assert "(service text PRIMARY KEY, config map<text, text>)" in store()._table_statement("configs")
    for key, text in (("replication", "{'class': 'x'}; DROP KEYSPACE a"), ("keyspace", "a; b"), ("keyspace", "Ab")):
        with pytest.raises(ConfigError, match=f"config.store.{key}"):
            store(**{f"config.store.{key}": text})
