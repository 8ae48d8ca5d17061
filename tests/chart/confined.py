"""A command run as a container of a pod would be: a root file system that is read-only, the pod's volumes, its user, no
capabilities. Needs root, util-linux and overlayfs, and no container engine: the rest of the machine is as it is.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from chart.pods import Pod

_NEEDED = ("unshare", "setpriv", "nsenter", "mount")
ROOT = Path(__file__).resolve().parents[2]


class MountedPod(Pod):
    """A pod's files, which are mounted where its container has them: texts stay as they are."""

    def local(self, text: str) -> str:
        return text


class Confined:
    """A process in the container of a pod: its files, of `pod`, are below a directory of the test."""

    def __init__(self, pod: MountedPod, environment: Mapping[str, str]) -> None:
        if os.geteuid() or not all(map(shutil.which, _NEEDED)):
            pytest.skip(f"needs root, and {', '.join(_NEEDED)}")
        attempt = ["unshare", "--mount", "sh", "-c", "mount --make-rprivate / && mount -t tmpfs tmpfs /mnt"]
        if (process := subprocess.run(attempt, capture_output=True, text=True)).returncode:
            pytest.skip(f"needs a root that may mount: {process.stderr.strip()}")
        self._pod = pod
        security = pod.spec["securityContext"]
        self.user, self.group = security["runAsUser"], security["fsGroup"]
        self._own_secrets()
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        ids = f"--reuid {self.user} --regid {security['runAsGroup']} --groups {self.group}"
        self._prefix = f"setpriv {ids} --no-new-privs --bounding-set=-all --inh-caps=-all env -i {variables} "
        self._process: subprocess.Popen[bytes] | None = None

    def _own_secrets(self) -> None:
        """What kubelet does with `fsGroup`: root's files, which the group may read."""
        for path in self._pod.root.rglob("*"):
            os.chown(path, 0, self.group, follow_symlinks=False)
            if path.is_file() and not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o440)

    def start(self, command: Sequence[str], log: Path) -> None:
        script = "\n".join(["set -eu", *self._mounts(), f"cd / && exec {self._prefix}{shlex.join(command)}"])
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """As a probe of the container, or `kubectl exec`, does."""
        assert self._process is not None
        inside = ["nsenter", f"--target={self._process.pid}", "--mount", "sh", "-c"]
        return subprocess.run(
            [*inside, f"cd / && exec {self._prefix}{shlex.join(command)}"], capture_output=True, text=True
        )

    def written(self, path: str) -> set[str]:
        """Names below a path of the container."""
        assert self._process is not None
        return {file.name for file in Path(f"/proc/{self._process.pid}/root{path}").iterdir()}

    def ended(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def stop(self) -> int:
        """SIGTERM, as kubelet sends it."""
        if self._process is None:
            return 0
        self._process.terminate()
        return self._process.wait(60)

    def _mounts(self) -> list[str]:
        """Commands that lay out the container's file system, in a mount namespace of their own."""
        lines = ["mount --make-rprivate /", "mount -t tmpfs tmpfs /mnt"]
        private_paths = [
            path for path in {Path(sys.base_prefix), ROOT, Path(sys.prefix)} if path.is_relative_to("/root")
        ]
        for number, path in enumerate(private_paths):  # which nobody but root may enter
            lines += [f"mkdir /mnt/private{number}", f"mount --bind {path} /mnt/private{number}"]
        if private_paths:
            lines.append("mount -t tmpfs -o mode=755 tmpfs /root")
        for number, path in enumerate(private_paths):
            lines += [f"mkdir -p {path}", f"mount --bind /mnt/private{number} {path}"]
        for name in ("etc", "var"):  # a directory can be made there, without one on this machine
            lines += [f"mkdir -p /mnt/{name}/upper /mnt/{name}/work"]
            options = f"lowerdir=/{name},upperdir=/mnt/{name}/upper,workdir=/mnt/{name}/work"
            lines.append(f"mount -t overlay -o {options} overlay /{name}")
        lines += [f"mkdir /mnt/pod && mount --bind {self._pod.root} /mnt/pod"]
        entry = f"helenus:x:{self.user}:{self.group}::/home/helenus:/bin/sh"
        others = [line for line in map(_entry, pwd.getpwall()) if line.split(":")[2] != str(self.user)]
        text = "\n".join([entry, *others]) + "\n"
        lines.append(f"printf %s {shlex.quote(text)} > /etc/passwd")
        lines += ["mount -o remount,bind,ro /"]
        volumes: dict[str, Any] = {volume["name"]: volume for volume in self._pod.spec["volumes"]}
        for path, mount in self._pod.mounts.items():
            if mount.get("readOnly"):
                lines += [f"mkdir -p {path}", f"mount --bind /mnt/pod{path} {path}"]
                lines.append(f"mount -o remount,bind,ro {path}")
            elif "emptyDir" in volumes.get(mount["name"], {}):
                lines += [f"mkdir -p {path}", f"mount -t tmpfs -o mode=777,size=512m tmpfs {path}"]
            else:  # a claim
                options = f"mode=2775,uid=0,gid={self.group},size=512m"
                lines += [f"mkdir -p {path}", f"mount -t tmpfs -o {options} tmpfs {path}"]
        return [*lines, "mount -o remount,ro /etc", "mount -o remount,ro /var", "mount -o remount,ro /mnt"]


def _entry(user: pwd.struct_passwd) -> str:
    return ":".join(map(str, (user.pw_name, "x", user.pw_uid, user.pw_gid, "", user.pw_dir, user.pw_shell)))
