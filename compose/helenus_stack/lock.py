"""Rewrites the lock files: `python -m helenus_stack.lock [NAME...]`, after a server's version was changed.

A lock's lines `# root COORDINATES` say what is wanted; Maven finds what that needs, and all of it is locked.
Needs Maven and a source checkout.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

from helenus_stack.jars import Artifact, digest
from helenus_stack.resolve import MAVEN_PLUGIN

FOLDER = Path(__file__).parent / "jars"
ROOT = "# root "


def main(names: list[str]) -> None:
    """Rewrites the named locks, or all."""
    for lock in [FOLDER / f"{name}.lock" for name in names] or sorted(FOLDER.glob("*.lock")):
        roots = [line.removeprefix(ROOT) for line in lock.read_text().splitlines() if line.startswith(ROOT)]
        artifacts = sorted(closure([Artifact.parse(root) for root in roots]), key=lambda artifact: artifact.coordinates)
        lines = [f"{ROOT}{root}" for root in roots] + [f"{a.sha256} {a.size} {a.coordinates}" for a in artifacts]
        lock.write_text("\n".join(lines) + "\n")
        print(f"{lock}: {len(artifacts)} files")


def closure(roots: list[Artifact]) -> list[Artifact]:
    """The roots and what they need at run time, with checksums. An archive has all it needs inside."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pom.xml").write_text(pom(roots))
        plugin = f"org.apache.maven.plugins:maven-dependency-plugin:{MAVEN_PLUGIN}:copy-dependencies"
        options = ["-DincludeScope=runtime", "-Dmdep.useRepositoryLayout=true", f"-DoutputDirectory={folder}/out"]
        subprocess.run(["mvn", "--batch-mode", "--quiet", plugin, *options], cwd=folder, check=True)
        repository = Path(folder) / "out"
        files = [path for path in repository.rglob("*") if path.name.endswith((".jar", ".tar.gz"))]
        return [from_repository(path.relative_to(repository), digest(path), path.stat().st_size) for path in files]


def pom(roots: list[Artifact]) -> str:
    """A Maven project that depends on the roots."""
    dependencies = ""
    for root in roots:
        everything = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        dependencies += (
            f"<dependency><groupId>{escape(root.group)}</groupId><artifactId>{escape(root.name)}</artifactId>"
            f"<version>{escape(root.version)}</version><type>{escape(root.type)}</type>"
            f"<classifier>{escape(root.classifier)}</classifier>"
            f"<exclusions>{everything if root.type != 'jar' else ''}</exclusions></dependency>"
        )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>helenus</groupId><artifactId>lock</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def from_repository(path: Path, sha256: str, size: int) -> Artifact:
    """The artifact that a Maven repository keeps at `group/as/folders/name/version/name-version[-classifier].type`."""
    *group, name, version, file = path.parts
    tail = file.removeprefix(f"{name}-{version}")
    classifier, _, kind = tail.removeprefix("-").partition(".")
    return Artifact(".".join(group), name, version, kind, classifier, sha256, size)


if __name__ == "__main__":
    main(sys.argv[1:])
