"""A real API server takes the chart's manifests, and helm renders what its library does. Both are built here by Go."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from chart import rendering
from chart.api_server import ApiServer, running
from chart.go_programs import BUILD_SECONDS, program
from chart.manifest_schemas import VERSIONS
from chart.rendering import CHART, HELM, VALUES, Manifest, documents, pick, read

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(3 * BUILD_SECONDS)]

NAMES = [path.stem for path in VALUES]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running(tmp_path_factory.mktemp("kubernetes")) as api:
        for kind in ("PodMonitor", "CassandraDatacenter", "K8ssandraCluster"):
            api.make_custom_kind(kind)
        api.make_namespace("cdc", "restricted")
        api.make_namespace("hosts", "privileged")
        yield api


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_helm_s_program_agrees_with_its_library(path: Path) -> None:
    helm = str(program("helm"))
    lint = subprocess.run([helm, "lint", "--strict", str(CHART), "-f", str(path)], capture_output=True, text=True)
    assert lint.returncode == 0, lint.stdout
    # A build of one's own knows no release of Kubernetes.
    command = [helm, "template", "helenus", str(CHART), "--namespace", "cdc", "--kube-version", "1.33.0"]
    rendered = subprocess.run([*command, "-f", str(path)], capture_output=True, text=True)
    assert rendered.returncode == 0, rendered.stderr

    def in_order(manifests: list[Manifest]) -> list[Manifest]:
        return sorted(manifests, key=lambda m: (m["kind"], m["metadata"]["name"]))

    assert in_order(documents(rendered.stdout)) == in_order(rendering.of_file(path.stem))


@pytest.mark.parametrize("name", NAMES)
def test_the_server_takes_what_the_chart_makes(api: ApiServer, name: str) -> None:
    namespace = "hosts" if name == "daemonset" else "cdc"
    for manifest in rendering.of_file(name):
        answer = api.create(manifest, namespace)
        assert answer.status_code == 201, answer.text
        assert "Warning" not in answer.headers, answer.headers["Warning"]


@pytest.mark.parametrize("name", ["cassandra-datacenter", "k8ssandra-cluster"])
def test_the_server_takes_the_operators_resources(api: ApiServer, name: str) -> None:
    answer = api.create(read(HELM / "k8ssandra" / f"{name}.yaml"))
    assert answer.status_code == 201, answer.text


def pod(manifests: list[Manifest], kind: str) -> Manifest:
    """What the controller of a StatefulSet or DaemonSet makes; its volume claims are left out."""
    owner = pick(manifests, kind)
    template = owner["spec"]["template"]
    claimed = [c["metadata"]["name"] for c in owner["spec"].get("volumeClaimTemplates", [])]
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claimed]
    spec = {**template["spec"], "volumes": [*template["spec"]["volumes"], *volumes]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": "helenus-0"}, "spec": spec}


@pytest.mark.parametrize("name", ["minimal", "full"])
def test_a_worker_s_pod_meets_the_restricted_standard(api: ApiServer, name: str) -> None:
    manifests = rendering.of_file(name)
    api.create(pick(manifests, "ServiceAccount"), dry_run=False)
    worker = pod(manifests, "StatefulSet")
    answer = api.create(worker)
    assert answer.status_code == 201, answer.text
    worker["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    assert api.create(worker).status_code == 403


def test_an_agent_s_pod_on_hosts_needs_a_privileged_namespace(api: ApiServer) -> None:
    manifests = rendering.of_file("daemonset")
    for namespace in ("cdc", "hosts"):
        api.create(pick(manifests, "ServiceAccount"), namespace, dry_run=False)
    answer = api.create(pod(manifests, "DaemonSet"), "cdc")
    assert answer.status_code == 403
    assert "hostPath" in answer.text
    assert api.create(pod(manifests, "DaemonSet"), "hosts").status_code == 201


def test_install_upgrade_go_back_and_uninstall(api: ApiServer) -> None:
    """By `helm`, as docs/kubernetes.md has it; no controller runs here, so no pods."""

    def helm(*arguments: str) -> str:
        command = [str(program("helm")), f"--kubeconfig={api.kubeconfig}", "--namespace=cdc", *arguments]
        process = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert process.returncode == 0, process.stderr
        return process.stdout

    def worker() -> Manifest:
        return dict(api.get("apis/apps/v1/namespaces/cdc/statefulsets/walk-helenus"))

    def values(name: str) -> str:
        return str(HELM / "values" / f"{name}.yaml")

    notes = helm("install", "walk", str(CHART), "-f", values("minimal"))
    assert "rollout status statefulset/walk-helenus" in notes
    assert "REST asks for no login" in notes
    assert worker()["spec"]["replicas"] == 1
    # The first step from a single worker to a group, and the second: nothing in them can't be changed.
    helm("upgrade", "walk", str(CHART), "-f", values("group"), "--set", "connector.replicas=1")
    helm("upgrade", "walk", str(CHART), "-f", values("group"))
    assert worker()["spec"]["replicas"] == 2
    helm("rollback", "walk", "1")
    assert worker()["spec"]["replicas"] == 1
    helm("uninstall", "walk")
    assert worker()["code"] == 404


def test_the_server_is_of_the_newest_release_whose_schemas_are_used(api: ApiServer) -> None:
    assert api.get("version")["gitVersion"].startswith(f"v{VERSIONS[-1]}.")


def test_what_the_server_refuses(api: ApiServer) -> None:
    """It looks: fields that it does not know, and values that can't be."""
    manifest = pick(rendering.of_file("minimal"), "StatefulSet")
    unknown = {**manifest, "spec": {**manifest["spec"], "replicaz": 1}}
    assert "unknown field" in api.create(unknown).text
    wrong = {**manifest, "spec": {**manifest["spec"], "podManagementPolicy": "Sometimes"}}
    assert api.create(wrong).status_code == 422
