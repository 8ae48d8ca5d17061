"""Compiles query/LocalFiles.java, by the Eclipse compiler so that a JRE will do. `make local-files` packs it again."""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from pathlib import Path

import pyspark

from helenus_connector.query import session
from helenus_stack.jars import fetch, read_lock
from helenus_stack.java import java_home
from helenus_stack.progress import Silent
from helenus_stack.resolve import resolve

JAR = Path(session.__file__).with_name("local_files.jar")
_DATE = (2026, 1, 1, 0, 0, 0)


def compiled() -> dict[str, bytes]:
    """The classes by their names in the jar."""
    compiler = next(jar for jar in fetch(read_lock("avro"), Silent(), resolve) if jar.name.startswith("ecj-"))
    (hadoop,) = Path(pyspark.__file__).with_name("jars").glob("hadoop-client-api-*.jar")
    java = java_home(17, Silent(), newer=True) / "bin/java"
    with tempfile.TemporaryDirectory() as folder:
        options = ["-17", "-nowarn", "-proc:none", "-g:none", "-cp", str(hadoop), "-d", folder]
        main = "org.eclipse.jdt.internal.compiler.batch.Main"
        source = JAR.with_name("LocalFiles.java")
        subprocess.run([java, "-cp", compiler, main, *options, source], check=True)
        found = sorted(Path(folder).rglob("*.class"))
        return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def packed() -> dict[str, bytes]:
    """What the jar has."""
    with zipfile.ZipFile(JAR) as jar:
        return {name: jar.read(name) for name in jar.namelist()}


if __name__ == "__main__":
    classes = compiled()
    with zipfile.ZipFile(JAR, "w", zipfile.ZIP_DEFLATED) as jar:
        for name, content in classes.items():
            jar.writestr(zipfile.ZipInfo(name, _DATE), content)
