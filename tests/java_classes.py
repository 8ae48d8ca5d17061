"""Compiles the classes of Java that are ours, by the Eclipse compiler so that a JRE will do. `make java-classes` packs
their jars again.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pyspark

from helenus_connector.query import spark_session
from helenus_sinks import chunk_reader
from helenus_stack import cassandra
from helenus_stack.jars import fetch, read_lock
from helenus_stack.java import java_home
from helenus_stack.progress import Silent
from helenus_stack.resolve import resolve

HELENUS = Path(spark_session.__file__).with_name("helenus.jar")
NODETOOL = Path(cassandra.__file__).with_name("nodetool.jar")
OLD_CASSANDRA = Path(cassandra.__file__).with_name("old-cassandra.jar")
CHUNKS = Path(chunk_reader.__file__).with_name("java") / "helenus-chunks.jar"
SOURCES = {
    HELENUS: (
        [
            *("LocalFiles.java", "Job.java", "BatchHandover.java", "BatchPlanning.java", "EventsSource.java"),
            "BatchSink.java",
            "StateStores.java",
        ],
        17,
    ),
    NODETOOL: (["Nodetool.java"], 11),
    OLD_CASSANDRA: (["OldCassandra.java"], 11),
    CHUNKS: (["ChunkReader.java", "ChunkDeserializer.java", "ChunkConverter.java", "PulsarChunkReader.java"], 11),
}
"""By jar the sources beside it, and for which Java."""
MANIFESTS = {OLD_CASSANDRA: b"Manifest-Version: 1.0\nPremain-Class: helenus.OldCassandra\n"}
_OF_KAFKA = ("kafka-clients-", "connect-api-")
_DATE = (2026, 1, 1, 0, 0, 0)


def compiled(jar: Path) -> dict[str, bytes]:
    """The classes by their names in a jar."""
    names, version = SOURCES[jar]
    compiler = next(jar for jar in fetch(read_lock("avro"), Silent(), resolve) if jar.name.startswith("ecj-"))
    asm = next(jar for jar in fetch(read_lock("cassandra-3.11"), Silent(), resolve) if jar.name.startswith("asm-"))
    kafka = [jar for jar in fetch(read_lock("connect"), Silent(), resolve) if jar.name.startswith(_OF_KAFKA)]
    pulsar = [jar for jar in fetch(read_lock("pulsar-client"), Silent(), resolve) if jar.name.startswith("pulsar-")]
    libraries = os.pathsep.join(
        map(str, [*kafka, *pulsar, *Path(pyspark.__file__).with_name("jars").glob("*.jar"), asm])
    )
    java = java_home(17, Silent(), newer=True) / "bin/java"
    with tempfile.TemporaryDirectory() as folder:
        options = [f"-{version}", "-nowarn", "-proc:none", "-g:none", "-cp", libraries, "-d", folder]
        main = "org.eclipse.jdt.internal.compiler.batch.Main"
        subprocess.run([java, "-cp", compiler, main, *options, *map(jar.with_name, names)], check=True)
        class_files = sorted(Path(folder).rglob("*.class"))
        classes = {str(path.relative_to(folder)): path.read_bytes() for path in class_files}
    manifest = {"META-INF/MANIFEST.MF": MANIFESTS[jar]} if jar in MANIFESTS else {}
    return {**manifest, **classes}


def packed(jar: Path) -> dict[str, bytes]:
    """What a jar has."""
    with zipfile.ZipFile(jar) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


if __name__ == "__main__":
    for path in SOURCES:
        classes = compiled(path)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
            for entry, content in classes.items():
                opened.writestr(zipfile.ZipInfo(entry, _DATE), content)
