"""The chart's manifests: right by the schemas of three releases of Kubernetes, and the programs start with them.

Not run on Kubernetes: docs/kubernetes.md says what was.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import requests
import trustme
from chart import manifest_schemas, rendering
from chart.pods import Pod
from chart.rendering import HELM, VALUES, pick, read
from compose.test_compose import instruction
from connector.test_rest import served
from integration.pipeline import free_port

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.rest.server import serve_member
from helenus_schemas.service import monitoring

pytestmark = pytest.mark.integration  # downloads Helm's library

NAMES = [path.stem for path in VALUES]
CONNECTORS = [
    name for name in NAMES if read(HELM / "values" / f"{name}.yaml").get("connector", {}).get("enabled", True)
]
CONTAINERS = {
    "cassandra-datacenter": lambda m: m["spec"]["podTemplateSpec"]["spec"],
    "k8ssandra-cluster": lambda m: {**m["spec"]["cassandra"], **m["spec"]["cassandra"]["extraVolumes"]},
}
FIELDS = {"metadata.name": "helenus-0", "status.podIP": "127.0.0.1", "status.hostIP": "127.0.0.1"}
LOGIN = ("operator", "let:me=in")


@pytest.fixture(scope="module")
def secrets() -> Mapping[str, Mapping[str, str]]:
    """The Secrets that the values files name."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "helenus.cdc.svc")
    ca = authority.cert_pem.bytes().decode()
    login = {"username": LOGIN[0], "password": LOGIN[1], "login.properties": f"rest={':'.join(LOGIN)}\n"}
    tls = {
        "tls.crt": "".join(pem.bytes().decode() for pem in certificate.cert_chain_pems),
        "tls.key": certificate.private_key_pem.bytes().decode(),
        "ca.crt": ca,
    }
    return {
        "helenus-ca": {"ca.crt": ca},
        "helenus-logins": {"secrets.properties": "kafka=k\ncassandra=c\nregistry=user:password\n"},
        "registry.login": {"secrets.properties": "registry=user:password\n"},
        "helenus-pulsar": {"secrets.properties": "token=t\n"},
        "helenus-agent": {"secrets.properties": "cassandra=c\n"},
        "helenus-agent-logins": {"secrets.properties": "cassandra=c\n"},
        "helenus-connector": {"password": "k"},
        "helenus-rest": login,
        "helenus-rest-tls": tls,
    }


def worker_pod(name: str, secrets: Mapping[str, Mapping[str, str]], root: Path) -> Pod:
    manifests = rendering.of_file(name)
    return Pod(pick(manifests, "StatefulSet")["spec"]["template"]["spec"], manifests, secrets, root)


def agent_pods(secrets: Mapping[str, Mapping[str, str]], root: Path) -> Iterator[tuple[str, Pod]]:
    """The DaemonSet's, and those of the operators, whose configuration is the chart's too."""
    manifests = rendering.of_file("daemonset")
    yield "daemonset", Pod(pick(manifests, "DaemonSet")["spec"]["template"]["spec"], manifests, secrets, root / "0")
    manifests = rendering.of_file("sidecar")
    for name, pod_spec in CONTAINERS.items():
        spec = pod_spec(read(HELM / "k8ssandra" / f"{name}.yaml"))
        yield name, Pod(spec, manifests, secrets, root / name, "helenus-agent")


def run(program: str, pod: Pod, secrets: Mapping[str, Mapping[str, str]]) -> subprocess.CompletedProcess[str]:
    """`validate` of a pod's files, with its variables. Whatever the pod, this machine's ports are taken by others."""
    for file in pod.root.glob("etc/helenus/config/..data/*.properties"):
        text = re.sub(r"(listeners=https?)://0\.0\.0\.0:\d+", rf"\1://127.0.0.1:{free_port()}", file.read_text())
        file.write_text(text)
    here = Path(sys.executable).parent
    paths = f"{here}:/usr/local/bin:/usr/bin:/bin"
    environment = {"PATH": paths, "HOME": "/nonexistent", **pod.environment(FIELDS, secrets)}
    command = [str(here / f"helenus-{program}"), "validate", *pod.arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_helm_finds_nothing_to_mend() -> None:
    answers = rendering.ask([{"lint": True, "values": {}}, *({"lint": True, "values": read(path)} for path in VALUES)])
    assert [answer["messages"] for answer in answers] == [[]] * (1 + len(VALUES))


@pytest.mark.parametrize("version", manifest_schemas.VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_manifests_are_of_kubernetes_schemas(name: str, version: str) -> None:
    manifests = rendering.of_file(name)
    assert manifests
    for manifest in manifests:
        manifest_schemas.check(manifest, version)


@pytest.mark.parametrize("name", CONTAINERS)
def test_operators_resources_are_of_their_schemas(name: str) -> None:
    manifest_schemas.check(read(HELM / "k8ssandra" / f"{name}.yaml"), manifest_schemas.VERSIONS[-1])


def test_a_field_that_no_schema_knows_is_found() -> None:
    manifest = pick(rendering.of_file("full"), "StatefulSet")
    manifest["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(jsonschema.ValidationError, match="readinesProbe"):
        manifest_schemas.check(manifest, manifest_schemas.VERSIONS[0])
    monitor = {**pick(rendering.of_file("daemonset"), "PodMonitor")}
    monitor["spec"] = {**monitor["spec"], "podMetricEndpoints": []}
    with pytest.raises(jsonschema.ValidationError, match="podMetricEndpoints"):
        manifest_schemas.check(monitor, manifest_schemas.VERSIONS[0])


@pytest.mark.parametrize("name", CONNECTORS)
def test_a_worker_takes_its_pod_s_files(name: str, secrets: Mapping[str, Mapping[str, str]], tmp_path: Path) -> None:
    pod = worker_pod(name, secrets, tmp_path)
    process = run("connector", pod, secrets)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count(" is valid") == len(pod.arguments)


def test_an_agent_takes_its_pod_s_files(secrets: Mapping[str, Mapping[str, str]], tmp_path: Path) -> None:
    for name, pod in agent_pods(secrets, tmp_path):
        raw = pod.here("/var/lib/cassandra/cdc_raw")
        raw.mkdir(exist_ok=True)
        pod.here("/etc/cassandra").mkdir(exist_ok=True)
        settings = f"cdc_enabled: true\ncdc_raw_directory: {raw}\ncommitlog_directory: {raw.with_name('commitlog')}\n"
        pod.here("/etc/cassandra/cassandra.yaml").write_text(settings)
        process = run("agent", pod, secrets)
        assert process.returncode == 0, (name, process.stderr)


@pytest.mark.parametrize("name", CONNECTORS)
def test_a_worker_writes_to_volumes_alone(name: str, secrets: Mapping[str, Mapping[str, str]], tmp_path: Path) -> None:
    pod = worker_pod(name, secrets, tmp_path)
    writable = {path for path, mount in pod.mounts.items() if not mount.get("readOnly")}
    state = text_of(name, "worker.properties").get("state.checkpoint.dir")
    assert (state is not None) == (name == "full")
    assert writable == {"/var/lib/helenus", "/tmp", "/dev/shm", *filter(None, [state])}
    assert pod.container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod.is_mounted(pod.environment(FIELDS, secrets)["SPARK_LOCAL_DIRS"].removeprefix(str(tmp_path)))
    assert pod.is_mounted(text_of(name, "worker.properties")["checkpoint.dir"])


def text_of(name: str, file: str) -> dict[str, str]:
    """The properties of a file in the ConfigMaps of a values file."""
    for manifest in rendering.of_file(name):
        if manifest["kind"] == "ConfigMap" and file in manifest["data"]:
            lines = [line for line in manifest["data"][file].splitlines() if "=" in line and not line.startswith("#")]
            return dict(line.split("=", 1) for line in lines)
    raise AssertionError(f"no {file} in {name}")


def test_pods_run_as_the_user_of_their_image() -> None:
    security = pick(rendering.of_file("minimal"), "StatefulSet")["spec"]["template"]["spec"]["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == instruction("connector/Dockerfile", "USER")
    assert security["fsGroup"] == security["runAsGroup"]
    for name, pod_spec in CONTAINERS.items():
        containers = pod_spec(read(HELM / "k8ssandra" / f"{name}.yaml"))["containers"]
        (own,) = [c["securityContext"] for c in containers if c["name"] == "helenus-agent"]
        assert f"{own['runAsUser']}:{own['runAsGroup']}" == instruction("agent/Dockerfile", "USER")


def test_the_two_operators_containers_are_the_same() -> None:
    pairs = []
    for name, pod_spec in CONTAINERS.items():
        spec = pod_spec(read(HELM / "k8ssandra" / f"{name}.yaml"))
        pairs.append(([c for c in spec["containers"] if c["name"] == "helenus-agent"], spec["volumes"]))
    assert pairs[0] == pairs[1]
    (container,), _ = pairs[0]
    assert "readinessProbe" not in container  # it would take Cassandra out of service


def test_images_are_of_this_version() -> None:
    from helenus_schemas import __version__

    assert read(HELM / "helenus" / "Chart.yaml")["appVersion"] == __version__
    for name in CONTAINERS:
        assert f"image: helenus-agent:{__version__}\n" in (HELM / "k8ssandra" / f"{name}.yaml").read_text()


def http_probes(container: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    probes = [probe for name, probe in container.items() if name.endswith("Probe")]
    return [probe["httpGet"] for probe in probes if "httpGet" in probe]


def test_a_worker_answers_its_probes(tmp_path: Path, secrets: Mapping[str, Mapping[str, str]]) -> None:
    """Alone, and in a group."""
    for name in ("minimal", "group"):
        container = pick(rendering.of_file(name), "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
        probes = http_probes(container)
        assert len(probes) == 3
        port = container["ports"][0]["containerPort"]
        assert text_of(name, "worker.properties")["listeners"] == f"http://0.0.0.0:{port}"
        keys = {"bootstrap.servers": "127.0.0.1:1", "checkpoint.dir": str(tmp_path), "listeners": "http://127.0.0.1:0"}
        worker = WorkerSettings.from_properties(keys, "worker")
        if name == "minimal":
            with served(worker) as api:
                answers = [api.call("GET", probe["path"]).status_code for probe in probes]
        else:
            listener = serve_member(worker, lambda: None, lambda: "standing by")
            base = f"http://127.0.0.1:{listener.port}"
            answers = [requests.get(base + probe["path"], timeout=10).status_code for probe in probes]
            listener.shutdown()
        assert answers == [200, 200, 200]


def test_an_agent_answers_its_probes(tmp_path: Path, secrets: Mapping[str, Mapping[str, str]]) -> None:
    listener = monitoring.serve("127.0.0.1", 0, lambda: None)
    base = f"http://127.0.0.1:{listener.port}"
    try:
        for name, pod in agent_pods(secrets, tmp_path):
            probes = http_probes(pod.container)
            assert [requests.get(base + probe["path"], timeout=10).status_code for probe in probes] == [200] * len(
                probes
            )
            (port,) = pod.container["ports"]
            assert {probe["port"] for probe in probes} == {port["name"]}
            values = "daemonset" if name == "daemonset" else "sidecar"
            assert text_of(values, "agent.properties")["listeners"] == f"http://0.0.0.0:{port['containerPort']}"
            (endpoint,) = pick(rendering.of_file(values), "PodMonitor")["spec"]["podMetricsEndpoints"]
            assert endpoint["port"] == port["name"]
    finally:
        listener.shutdown()


def test_readiness_with_tls_and_a_login(tmp_path: Path, secrets: Mapping[str, Mapping[str, str]]) -> None:
    """The program that the probe calls, against a listener that asks for the login."""
    pod = worker_pod("kafka-tls", secrets, tmp_path)
    python, script, url, *login = map(pod.local, pod.container["readinessProbe"]["exec"]["command"])
    assert (python, url) == ("python", "https://127.0.0.1:8083/health")
    keys = text_of("kafka-tls", "worker.properties")
    worker = WorkerSettings.from_properties(
        {
            **{key: pod.local(keys[key]) for key in keys if key.startswith(("listeners.", "rest.basic"))},
            "bootstrap.servers": "127.0.0.1:1",
            "checkpoint.dir": str(tmp_path),
            "listeners": "https://127.0.0.1:0",
        },
        "worker",
    )

    def probe() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, script, url.replace("8083", str(api.listener.port)), *login]
        environment = {
            **os.environ,
            **dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:1"),
            "no_proxy": "",
        }
        return subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment)

    with served(worker) as api:
        assert probe().returncode == 0
        api.trouble = "starting: Spark is not there yet"
        process = probe()
        assert process.returncode == 1
        assert process.stderr.startswith("503: ")
        assert api.trouble in process.stderr
        api.trouble = None
        pod.here("/etc/helenus/rest-login/login.properties").chmod(0o600)
        pod.here("/etc/helenus/rest-login/login.properties").write_text("rest=operator:wrong\n")
        assert probe().stderr.startswith("401: ")
    assert "refused" in probe().stderr
