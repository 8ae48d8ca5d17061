"""A real API server of Kubernetes with its etcd, on loopback: it checks manifests as in a cluster, and runs nothing."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import requests
import trustme
from chart.go_programs import program
from chart.manifest_schemas import crd
from chart.rendering import Manifest
from integration.pipeline import free_port
from patience import eventually

from helenus_stack.process import end_child

TOKEN = "of-these-tests"
_PATHS = {"v1": "api/v1"}
_CLUSTER_KINDS = {"Namespace", "CustomResourceDefinition"}


class ApiServer:
    """A client of a server that is up."""

    def __init__(self, url: str, certificate: Path) -> None:
        self._url = url
        self.kubeconfig = certificate.with_name("kubeconfig")
        self.kubeconfig.write_text(json.dumps(_kubeconfig(url, certificate)))
        self._session = requests.Session()
        self._session.trust_env = False  # REQUESTS_CA_BUNDLE would count before `verify`
        self._session.headers["Authorization"] = f"Bearer {TOKEN}"
        self._session.verify = str(certificate)

    def is_ready(self) -> bool:
        try:
            return self._session.get(f"{self._url}/readyz", timeout=10).status_code == 200
        except requests.ConnectionError:
            return False

    def get(self, path: str) -> Any:
        return self._session.get(f"{self._url}/{path}", timeout=30).json()

    def create(self, manifest: Manifest, namespace: str = "cdc", dry_run: bool = True) -> requests.Response:
        """Create a resource, or have the server do all but that. Fields that it does not know are errors."""
        version, kind = manifest["apiVersion"], manifest["kind"]
        plural = {"NetworkPolicy": "networkpolicies"}.get(kind, f"{kind.lower()}s")
        scope = "" if kind in _CLUSTER_KINDS else f"namespaces/{namespace}/"
        url = f"{self._url}/{_PATHS.get(version, f'apis/{version}')}/{scope}{plural}"
        parameters = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        return self._session.post(url, params=parameters, json=manifest, timeout=60)

    def make_namespace(self, name: str, level: str) -> None:
        """A namespace whose pods have to meet a level of the Pod Security Standards."""
        labels = {"pod-security.kubernetes.io/enforce": level}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        assert self.create(manifest, dry_run=False).status_code == 201

    def make_custom_kind(self, kind: str) -> None:
        """The resource of an operator, from its CustomResourceDefinition."""
        definition = crd(kind)
        answer = self.create(definition, dry_run=False)
        assert answer.status_code == 201, answer.text
        path = f"apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"

        def is_established() -> bool:
            conditions: list[Mapping[str, str]] = self.get(path).get("status", {}).get("conditions") or []
            return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

        eventually(is_established, f"{kind} is established")


@contextlib.contextmanager
def running(directory: Path) -> Iterator[ApiServer]:
    """Start etcd and the API server with their data in `directory`, and stop them at the end."""
    etcd, server = program("etcd"), program("kube-apiserver")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    certificate.private_key_pem.write_to_path(directory / "key.pem")
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(directory / "cert.pem", append=True)
    (directory / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
    etcd_port, peer_port, port = (free_port() for _ in range(3))
    etcd_url, peer_url = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peer_port}"
    commands = [
        [
            str(etcd),
            f"--data-dir={directory}/etcd",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=default={peer_url}",
        ],
        [
            str(server),
            f"--etcd-servers={etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={directory}/cert.pem",
            f"--tls-private-key-file={directory}/key.pem",
            f"--token-auth-file={directory}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={directory}/key.pem",
            f"--service-account-signing-key-file={directory}/key.pem",
            "--service-cluster-ip-range=10.0.0.0/24",
        ],
    ]
    processes: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        for command in commands:
            log = stack.enter_context(open(directory / f"{Path(command[0]).name}.log", "wb"))
            process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
            stack.callback(end_child, process)
            processes.append(process)
        api = ApiServer(f"https://127.0.0.1:{port}", directory / "ca.pem")

        def is_ready() -> bool:
            assert all(process.poll() is None for process in processes), f"it ended: see the logs in {directory}"
            return api.is_ready()

        eventually(is_ready, f"the API server is ready: see the logs in {directory}")
        yield api


def _kubeconfig(url: str, certificate: Path) -> dict[str, Any]:
    """What `helm` and `kubectl` find the server by."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": str(certificate)}}],
        "users": [{"name": "test", "user": {"token": TOKEN}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
