"""The compose files, as far as that goes without an engine: their form, and that their parts fit each other.

What was run and what was not: compose/README.md.
"""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from helenus_agent.config import AgentSettings
from helenus_connector.config import ConnectorSettings, WorkerSettings, load

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose"
FILES = ["kafka.yaml", "observability.yaml"]


def read(name: str) -> dict[str, Any]:
    with open(COMPOSE / name) as file:
        return dict(yaml.safe_load(file))


@cache
def services() -> dict[str, Any]:
    """The services of all files together, as `-f kafka.yaml -f observability.yaml` has them."""
    return {name: service for file in FILES for name, service in read(file)["services"].items()}


def mounts(service: str) -> dict[str, str]:
    """Path in the container -> volume, or path of the file on this machine."""
    found = {}
    for mount in services()[service].get("volumes", []):
        source, target, *_ = mount.split(":")
        found[target] = str(COMPOSE / source) if source.startswith(".") else source
    return found


def here(service: str, path: str) -> Path:
    """The file on this machine that a service finds at a path."""
    target = next(t for t in mounts(service) if path == t or path.startswith(f"{t}/"))
    return Path(mounts(service)[target] + path[len(target) :])


def instruction(dockerfile: str, name: str) -> str:
    """The last instruction of this name."""
    lines = (ROOT / dockerfile).read_text().splitlines()
    return [line.partition(" ")[2] for line in lines if line.startswith(f"{name} ")][-1]


def arguments(service: str) -> list[str]:
    """What the program in a container of ours is started with."""
    given = services()[service].get("command")
    return given or json.loads(instruction(services()[service]["build"]["dockerfile"], "CMD"))


@cache
def agent() -> AgentSettings:
    (path,) = arguments("agent")
    return AgentSettings.load(here("agent", path))


@cache
def connector() -> tuple[WorkerSettings, list[ConnectorSettings]]:
    worker, *connectors = [here("connector", path) for path in arguments("connector")]
    return load(worker, connectors)


@pytest.mark.parametrize("name", FILES)
def test_files_are_of_the_schema(name: str) -> None:
    schema = jsonschema.Draft7Validator(json.loads((Path(__file__).parent / "compose-spec.json").read_text()))
    schema.validate(read(name))
    wrong = read(name)
    next(iter(wrong["services"].values()))["volums"] = []
    with pytest.raises(jsonschema.ValidationError):
        schema.validate(wrong)


def test_volumes_and_files_are_there() -> None:
    declared = {name for file in FILES for name in read(file)["volumes"]}
    used = {source for service in services() for source in mounts(service).values()}
    assert {source for source in used if "/" not in source} == declared
    assert [source for source in used if "/" in source and not Path(source).exists()] == []


def test_who_is_waited_for_is_there_and_says_when_it_is_ready() -> None:
    for name, service in services().items():
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] in ("service_healthy", "service_completed_successfully")
            built = "build" in services()[other]
            assert how["condition"] != "service_healthy" or built or "healthcheck" in services()[other], (name, other)


def test_every_port_is_this_machine_s_alone() -> None:
    ports = [port for service in services().values() for port in service.get("ports", [])]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
    assert len({port.split(":")[1] for port in ports}) == len(ports)


def test_the_agent_reads_the_log_of_its_node() -> None:
    settings = agent()
    assert settings.cassandra_contact_points == ("cassandra",)
    (script,) = services()["cassandra"]["entrypoint"][2:]
    told = yaml.safe_load(re.search(r"printf '(.*?)'", script)[1].replace("\\n", "\n"))  # type: ignore[index]
    assert told["cdc_enabled"] is True
    assert told["cdc_raw_directory"] == str(settings.cdc_raw_dir)
    # One volume at one path, because Cassandra links segments into cdc_raw.
    assert mounts("agent")["/var/lib/cassandra"] == mounts("cassandra")["/var/lib/cassandra"]
    assert str(settings.cdc_raw_dir).startswith("/var/lib/cassandra/")
    assert settings.cassandra_local_dc == services()["cassandra"]["environment"]["CASSANDRA_DC"]
    assert instruction("agent/Dockerfile", "USER") == "999:999"  # the user of Cassandra's image


def test_the_script_turns_cdc_on(tmp_path: Path) -> None:
    file = tmp_path / "cassandra.yaml"
    file.write_text("cluster_name: x\ncdc_enabled: false\n# cdc_raw_directory: /x\ncdc_block_writes: false\n")
    (script,) = services()["cassandra"]["entrypoint"][2:]
    script = script.replace("/etc/cassandra/cassandra.yaml", str(file)).replace("exec docker-entrypoint.sh", "echo")
    for _ in range(2):  # a container may be started again
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout == "cassandra -f\n"
        told = yaml.safe_load(file.read_text())
        assert told["cdc_enabled"] is True
        assert list(told) == ["cluster_name", "cdc_enabled", "cdc_raw_directory", "cdc_total_space"]


def test_what_lasts_is_on_volumes() -> None:
    worker, _ = connector()
    for service, path in (("agent", agent().state_dir), ("connector", worker.checkpoint_dir)):
        volume = mounts(service)[str(path)]
        assert "/" not in volume
        dockerfile = services()[service]["build"]["dockerfile"]
        # A new volume takes its owner from the image.
        assert instruction(dockerfile, "VOLUME") == str(path)
        assert (
            f"chown {'cassandra:cassandra' if service == 'agent' else 'helenus:helenus'} {path}"
            in (ROOT / dockerfile).read_text()
        )


def test_addresses_are_those_of_services() -> None:
    worker, connectors = connector()
    kafka = services()["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    for address in (agent().kafka_bootstrap_servers, worker.bootstrap_servers):
        assert f"INSIDE://{address}" in kafka
    listened = {}  # service -> ports
    for name, service in services().items():
        listened[name] = {int(port.split(":")[-1]) for port in service.get("ports", [])}
    for settings in connectors:
        registry = urlsplit(settings.value_converter_schema_registry_url)
        assert registry.port in listened[registry.hostname or ""]
        assert set(settings.cassandra_contact_points) <= services().keys()
        assert settings.cassandra_port in listened["cassandra"]
        assert f"{settings.keyspace}.{settings.table}" in (COMPOSE / "kafka" / "shop.cql").read_text()
    assert worker.rest_advertised_host_name in services()
    assert worker.listener[-1] in listened["connector"]
    assert agent().http_port in listened["agent"]
    ui = services()["ui"]["environment"]
    connect = urlsplit(ui["KAFKA_CLUSTERS_0_KAFKACONNECT_0_ADDRESS"])
    assert (connect.hostname, connect.port) == ("connector", worker.listener[-1])
    assert ui["KAFKA_CLUSTERS_0_SCHEMAREGISTRY"] == connectors[0].value_converter_schema_registry_url
    with open(COMPOSE / "observability" / "prometheus.yml") as file:
        jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in yaml.safe_load(file)["scrape_configs"]}
    ports = {"agent": agent().http_port, "connector": worker.listener[-1]}
    assert jobs == {f"helenus-{name}": [f"{name}:{port}"] for name, port in ports.items()}


@pytest.mark.parametrize("service", ["agent", "connector"])
def test_health_is_asked_where_it_is_answered(service: str) -> None:
    port = agent().http_port if service == "agent" else connector()[0].listener[-1]
    dockerfile = services()[service]["build"]["dockerfile"]
    assert f"http://127.0.0.1:{port}/health/live" in instruction(dockerfile, "HEALTHCHECK")
    assert instruction(dockerfile, "EXPOSE") == str(port)
