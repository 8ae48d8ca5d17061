"""A pod's files as kubelet mounts them, below a directory of the test: links of ConfigMaps and Secrets included."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chart.rendering import Manifest, pick

_ABSOLUTE = re.compile(r"(?<![\w/.-])/(?=(etc|var)/)")


class Pod:
    """The first container of a pod, or one by name, with its mounts below `root`.

    `secrets` has the files of each Secret by name. Paths of the container in texts are those below `root` then.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        config_maps: Sequence[Manifest],
        secrets: Mapping[str, Mapping[str, str]],
        root: Path,
        container: str = "",
    ) -> None:
        self.root = root
        self.spec = spec
        self.container = next(c for c in spec["containers"] if container in ("", c["name"]))
        self.mounts = {mount["mountPath"]: mount for mount in self.container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        for path, mount in self.mounts.items():
            volume = volumes.get(mount["name"], {})
            if "configMap" in volume:
                data = pick(config_maps, "ConfigMap", volume["configMap"]["name"])["data"]
                self._project(path, data, volume["configMap"].get("items"), 0o644)
            elif "secret" in volume:
                secret = volume["secret"]
                self._project(path, secrets[secret["secretName"]], secret.get("items"), secret["defaultMode"])
            else:
                self.here(path).mkdir(parents=True, mode=0o700)

    def here(self, path: str) -> Path:
        """Where a path of the container is."""
        return self.root / path.lstrip("/")

    def local(self, text: str) -> str:
        """A text with the container's paths as they are here."""
        return _ABSOLUTE.sub(f"{self.root}/", text)

    def _project(
        self, path: str, data: Mapping[str, str], items: Sequence[Mapping[str, str]] | None, mode: int
    ) -> None:
        directory = self.here(path)
        version = directory / "..2026_11_29_09_00_00.1"
        version.mkdir(parents=True)
        (directory / "..data").symlink_to(version.name)
        for item in items or [{"key": key, "path": key} for key in data]:
            file = version / item["path"]
            file.parent.mkdir(exist_ok=True)
            file.write_text(self.local(data[item["key"]]))
            file.chmod(mode)
            first = Path(item["path"]).parts[0]
            if not (directory / first).is_symlink():
                (directory / first).symlink_to(f"..data/{first}")

    @property
    def arguments(self) -> list[str]:
        return [self.local(argument) for argument in self.container["args"]]

    def environment(self, fields: Mapping[str, str], secrets: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        """The container's variables; `fields` are those that refer to the pod, such as `status.podIP`."""
        variables = {}
        for variable in self.container["env"]:
            source = variable.get("valueFrom", {})
            if "fieldRef" in source:
                variables[variable["name"]] = fields[source["fieldRef"]["fieldPath"]]
            elif "secretKeyRef" in source:
                reference = source["secretKeyRef"]
                variables[variable["name"]] = secrets[reference["name"]][reference["key"]]
            else:
                variables[variable["name"]] = self.local(variable["value"])
        return variables

    def is_mounted(self, path: str) -> bool:
        """Return whether a path of the container is on one of its volumes."""
        return any(path == mount or path.startswith(f"{mount}/") for mount in self.mounts)
