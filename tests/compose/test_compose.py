"""The compose files, as far as that goes without an engine: their form, and that their parts fit each other.

What was run and what was not: compose/README.md.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from helenus_agent.config import AgentSettings
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.files import load
from helenus_connector.config.worker import WorkerSettings
from helenus_stack import pulsar
from helenus_stack.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose"
LOGS = ["kafka", "pulsar"]
SHARED = "helenus.yaml"
OVER = "observability.yaml"


def read(name: str) -> dict[str, Any]:
    with open(COMPOSE / name) as file:
        return dict(yaml.safe_load(file))


def merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A service that extends another: mappings are merged, lists appended, all else is its own."""
    result = dict(base)
    for key, value in own.items():
        if isinstance(value, dict):
            result[key] = merged(result.get(key, {}), value)
        elif key in ("volumes", "ports"):
            result[key] = [*result.get(key, []), *value]
        else:
            assert key not in result, f"{key} goes before what is extended: a reader would not see that"
            result[key] = value
    return result


def instruction(dockerfile: str, name: str) -> str:
    """The last instruction of this name."""
    lines = (ROOT / dockerfile).read_text().splitlines()
    return [line.partition(" ")[2] for line in lines if line.startswith(f"{name} ")][-1]


class Stack:
    """What `docker compose -f <log>.yaml -f observability.yaml` starts."""

    def __init__(self, log: str) -> None:
        self.log = log
        self.files = [read(f"{log}.yaml"), read(OVER)]

    @cached_property
    def services(self) -> dict[str, Any]:
        """By name, with what they extend."""
        services = {}
        for file in self.files:
            for name, service in file["services"].items():
                own = {key: value for key, value in service.items() if key != "extends"}
                base = service.get("extends")
                services[name] = merged(read(base["file"])["services"][base["service"]], own) if base else own
        return services

    def mounts(self, service: str) -> dict[str, str]:
        """Path in the container -> volume, or path of the file on this machine."""
        sources = {}
        for mount in self.services[service].get("volumes", []):
            source, target, *_ = mount.split(":")
            assert target not in sources
            sources[target] = str(COMPOSE / source) if source.startswith(".") else source
        return sources

    def here(self, service: str, path: str) -> Path:
        """The file on this machine that a service finds at a path."""
        mounts = self.mounts(service)
        target = next(t for t in mounts if path == t or path.startswith(f"{t}/"))
        return Path(mounts[target] + path[len(target) :])

    def listens(self, service: str) -> set[int]:
        """The ports in a service's container that are open on this machine too."""
        return {int(port.split(":")[-1]) for port in self.services[service].get("ports", [])}

    def is_there(self, url: str) -> bool:
        """Whether an address is one of a service here."""
        host, port = urlsplit(url).hostname, urlsplit(url).port
        return host in self.services and port in self.listens(host)

    def dockerfile(self, service: str) -> str:
        return str(self.services[service]["build"]["dockerfile"])

    def arguments(self, service: str) -> list[str]:
        """What the program in a container of ours is started with."""
        command = self.services[service].get("command")
        return command or json.loads(instruction(self.dockerfile(service), "CMD"))

    @cached_property
    def agent(self) -> AgentSettings:
        (path,) = self.arguments("agent")
        return AgentSettings.load(self.here("agent", path))

    @cached_property
    def connector(self) -> tuple[WorkerSettings, list[ConnectorSettings]]:
        worker, *connectors = [self.here("connector", path) for path in self.arguments("connector")]
        return load(worker, connectors)

    @property
    def script(self) -> str:
        """What turns CDC on in Cassandra's container."""
        (script,) = self.services["cassandra"]["entrypoint"][2:]
        return str(script)


@pytest.fixture(scope="module", params=LOGS)
def stack(request: pytest.FixtureRequest) -> Stack:
    return Stack(request.param)


@pytest.mark.parametrize("name", [*(f"{log}.yaml" for log in LOGS), SHARED, OVER])
def test_files_are_of_the_schema(name: str) -> None:
    schema = jsonschema.Draft7Validator(json.loads((Path(__file__).parent / "compose-spec.json").read_text()))
    schema.validate(read(name))
    wrong = read(name)
    next(iter(wrong["services"].values()))["volums"] = []
    with pytest.raises(jsonschema.ValidationError):
        schema.validate(wrong)


def test_stacks_keep_apart() -> None:
    """Positions of one log are nothing on another: each project has volumes of its own, also with Grafana over it."""
    names = [read(f"{log}.yaml")["name"] for log in LOGS]
    assert len(set(names)) == len(LOGS)
    assert "name" not in read(OVER)


def test_shared_services_depend_on_nothing() -> None:
    """Whether `extends` takes dependencies along differs by the version of Compose: every file says its own."""
    shared = read(SHARED)["services"]
    assert [name for name, service in shared.items() if "depends_on" in service] == []
    for log in LOGS:
        extended = [s["extends"]["service"] for s in read(f"{log}.yaml")["services"].values() if "extends" in s]
        assert sorted(extended) == sorted(shared)


def test_volumes_and_files_are_there(stack: Stack) -> None:
    declared = {name for file in stack.files for name in file["volumes"]}
    used = {source for service in stack.services for source in stack.mounts(service).values()}
    assert {source for source in used if "/" not in source} == declared
    assert [source for source in used if "/" in source and not Path(source).exists()] == []


def test_images_are_of_a_version(stack: Stack) -> None:
    images = [service["image"] for service in stack.services.values() if "build" not in service]
    assert len(images) > 4
    assert [image for image in images if not re.search(r":v?\d+\.\d", image)] == []


def test_every_dependency_exists_and_has_a_health_check(stack: Stack) -> None:
    for name, service in stack.services.items():
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] in ("service_healthy", "service_completed_successfully")
            other_one = stack.services[other]
            assert how["condition"] != "service_healthy" or {"build", "healthcheck"} & other_one.keys(), (name, other)
    for program in ("agent", "connector"):
        assert stack.log in stack.services[program]["depends_on"]


def test_every_port_is_this_machine_s_alone(stack: Stack) -> None:
    ports = [port for service in stack.services.values() for port in service.get("ports", [])]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
    assert len({port.split(":")[1] for port in ports}) == len(ports)


def test_the_agent_reads_the_log_of_its_node(stack: Stack) -> None:
    settings = stack.agent
    assert settings.cassandra_contact_points == ("cassandra",)
    config = yaml.safe_load(re.search(r"printf '(.*?)'", stack.script)[1].replace("\\n", "\n"))  # type: ignore[index]
    assert config["cdc_enabled"] is True
    assert config["cdc_raw_directory"] == str(settings.cdc_raw_dir)
    # One volume at one path, because Cassandra links segments into cdc_raw.
    assert stack.mounts("agent")["/var/lib/cassandra"] == stack.mounts("cassandra")["/var/lib/cassandra"]
    assert str(settings.cdc_raw_dir).startswith("/var/lib/cassandra/")
    assert settings.cassandra_local_dc == stack.services["cassandra"]["environment"]["CASSANDRA_DC"]
    assert instruction("agent/Dockerfile", "USER") == "999:999"  # the user of Cassandra's image


def test_the_script_turns_cdc_on(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "cassandra.yaml"
    file.write_text("cluster_name: x\ncdc_enabled: false\n# cdc_raw_directory: /x\ncdc_block_writes: false\n")
    script = stack.script.replace("/etc/cassandra/cassandra.yaml", str(file))
    script = script.replace("exec docker-entrypoint.sh", "echo")
    for _ in range(2):  # a container may be started again
        process = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
        assert process.stdout == "cassandra -f\n"
        config = yaml.safe_load(file.read_text())
        assert config["cdc_enabled"] is True
        assert list(config) == ["cluster_name", "cdc_enabled", "cdc_raw_directory", "cdc_total_space"]


def test_persistent_data_is_on_volumes(stack: Stack) -> None:
    worker, _ = stack.connector
    for service, path in (("agent", stack.agent.state_dir), ("connector", worker.checkpoint_dir)):
        volume = stack.mounts(service)[str(path)]
        assert "/" not in volume
        dockerfile = stack.dockerfile(service)
        # A new volume takes its owner from the image.
        assert instruction(dockerfile, "VOLUME") == str(path)
        assert (
            f"chown {'cassandra:cassandra' if service == 'agent' else 'helenus:helenus'} {path}"
            in (ROOT / dockerfile).read_text()
        )


def test_addresses_are_those_of_services(stack: Stack) -> None:
    worker, connectors = stack.connector
    assert worker.log == worker.log_of_data == stack.agent.log == stack.log
    for settings in connectors:
        assert set(settings.cassandra_contact_points) <= stack.services.keys()
        assert settings.cassandra_port in stack.listens("cassandra")
        assert f"{settings.keyspace}.{settings.table}" in stack.here("schema", "/shop.cql").read_text()
    assert worker.rest_advertised_host_name in stack.services
    assert worker.listener[-1] in stack.listens("connector")
    assert stack.agent.listener[-1] in stack.listens("agent")
    with open(COMPOSE / "observability" / "prometheus.yml") as file:
        jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in yaml.safe_load(file)["scrape_configs"]}
    ports = {"agent": stack.agent.listener[-1], "connector": worker.listener[-1]}
    assert jobs == {f"helenus-{name}": [f"{name}:{port}"] for name, port in ports.items()}


def test_kafka_s_addresses() -> None:
    stack = Stack("kafka")
    worker, connectors = stack.connector
    kafka = stack.services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    for address in (stack.agent.bootstrap_servers, worker.bootstrap_servers):
        assert f"INSIDE://{address}" in kafka
    for settings in connectors:
        assert stack.is_there(settings.value_converter_schema_registry_url)
    ui = stack.services["ui"]["environment"]
    assert ui["KAFKA_CLUSTERS_0_KAFKACONNECT_0_ADDRESS"] == f"http://connector:{worker.listener[-1]}"
    assert ui["KAFKA_CLUSTERS_0_SCHEMAREGISTRY"] == connectors[0].value_converter_schema_registry_url


def test_pulsar_s_addresses() -> None:
    stack = Stack("pulsar")
    worker, connectors = stack.connector
    environment = stack.services["pulsar"]["environment"]
    for settings in (stack.agent, worker):
        # The broker answers with the name under which a client has to come back.
        assert urlsplit(settings.pulsar_service_url).hostname == environment["advertisedAddress"]
        assert stack.is_there(settings.pulsar_service_url)
        assert stack.is_there(settings.pulsar_admin_url or "")
        namespace = f"{settings.pulsar_tenant}/{settings.pulsar_namespace}"
        assert namespace in stack.services["pulsar"]["healthcheck"]["test"]
    assert [c.value_converter_schema_registry_url for c in connectors] == [""]
    # Configured as the one that the tests run.
    run = pulsar.configuration(Settings(log="pulsar"), Path("/none"))
    expected = {key: value for key, value in environment.items() if key != "PULSAR_MEM"}
    assert {key: run.get(key) for key in expected} == {**expected, "advertisedAddress": "127.0.0.1"}


@pytest.mark.parametrize("service", ["agent", "connector"])
def test_health_is_asked_where_it_is_answered(stack: Stack, service: str) -> None:
    port = (stack.agent if service == "agent" else stack.connector[0]).listener[-1]
    dockerfile = stack.dockerfile(service)
    assert f"http://127.0.0.1:{port}/health/live" in instruction(dockerfile, "HEALTHCHECK")
    assert instruction(dockerfile, "EXPOSE") == str(port)


@pytest.mark.parametrize("service", ["agent", "connector"])
def test_our_programs_may_write_little(stack: Stack, service: str) -> None:
    own = stack.services[service]
    assert own["read_only"] is True
    assert [mount.partition(":")[0] for mount in own["tmpfs"]] == ["/tmp"]
    assert own["cap_drop"] == ["ALL"]
    assert own["security_opt"] == ["no-new-privileges:true"]


def test_who_may_look_and_change() -> None:
    """What has no login is read only, and whoever changes something has given a password that is no default."""
    services = Stack("kafka").services
    assert services["ui"]["environment"]["KAFKA_CLUSTERS_0_READONLY"] == "true"
    grafana = services["grafana"]["environment"]
    assert grafana["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert grafana["GF_SECURITY_ADMIN_PASSWORD"].startswith("${GRAFANA_PASSWORD:?")
