"""Schemas of manifests: those of Kubernetes' releases, and of the operators' resources. Unknown fields are errors."""

from __future__ import annotations

import gzip
import json
import re
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from chart import wheels
from referencing import Registry, Resource

VERSIONS = ["1.27", "1.32", "1.37"]
"""The oldest that the chart takes, one between, and the newest."""
CRDS = Path(__file__).parent / "crds"


@cache
def validator(version: str, api_version: str, kind: str) -> jsonschema.protocols.Validator:
    """Checks manifests of a kind of Kubernetes' own."""
    # rbac.authorization.k8s.io/v1 is rbac-v1 there.
    suffix = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    folder = f"kubernetes_validate/kubernetes-json-schema/v{version}.0-local-strict"
    (wheel,) = wheels.directory().glob("kubernetes_validate-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        schema = json.loads(archive.read(f"{folder}/{kind.lower()}-{suffix}.json"))
        definitions = json.loads(archive.read(f"{folder}/_definitions.json"))
    resources = [Resource.from_contents(schema), Resource.from_contents(definitions)]
    registry: Registry[Any] = Registry().with_resources([(r.id() or "", r) for r in resources])
    return jsonschema.Draft202012Validator(schema, registry=registry)


@cache
def crd(kind: str) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind; crds/README.md says where each is from."""
    return dict(json.loads(gzip.decompress((CRDS / f"{kind.lower()}.json.gz").read_bytes())))


@cache
def custom_validator(api_version: str, kind: str) -> jsonschema.protocols.Validator:
    """Checks manifests of a kind that an operator brings."""
    definition = crd(kind)["spec"]
    (version,) = [v for v in definition["versions"] if f"{definition['group']}/{v['name']}" == api_version]
    schema = _strict(version["schema"]["openAPIV3Schema"])
    for name in ("apiVersion", "kind", "metadata"):
        schema["properties"].setdefault(name, {})
    return jsonschema.Draft202012Validator(schema)


def _strict(schema: Any) -> Any:
    """The schema, with fields refused that it does not know, as the API server prunes them."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _strict(value) for key, value in schema.items()}
    is_object = schema.get("type") == "object" and "properties" in schema
    if is_object and "additionalProperties" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
    return result


def check(manifest: Mapping[str, Any], version: str) -> None:
    """Raises jsonschema.ValidationError."""
    api_version, kind = manifest["apiVersion"], manifest["kind"]
    if (CRDS / f"{kind.lower()}.json.gz").exists():
        custom_validator(api_version, kind).validate(manifest)
    else:
        validator(version, api_version, kind).validate(manifest)
