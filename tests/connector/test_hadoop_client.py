"""Hadoop's own client by Py4J, without Spark and without a server: a state goes to a directory by its URL, and back."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from helenus_connector.group._hadoop_files import HadoopFiles
from helenus_connector.group._state_backup import _OBSOLETE_MANIFESTS, StateBackup, restore
from helenus_schemas.errors import HelenusError, Kind
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent

JARS = Path(pyspark.__file__).with_name("jars")


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """What a session shows of its Java process."""
    port = launch_gateway(
        classpath=f"{JARS}/*",
        jarpath=str(next(JARS.glob("py4j*.jar"))),
        java_path=str(spark_java_home(Silent()) / "bin/java"),
        javaopts=["-XX:TieredStopAtLevel=1", "-Xmx256m"],
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    configuration = gateway.jvm.org.apache.hadoop.conf.Configuration()
    context = SimpleNamespace(
        _jvm=gateway.jvm, _jsc=SimpleNamespace(hadoopConfiguration=lambda configuration=configuration: configuration)
    )
    yield SimpleNamespace(sparkContext=context)
    gateway.shutdown()


def files_of(directory: Path) -> dict[Path, bytes]:
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_state_by_a_url(spark: Any, tmp_path: Path) -> None:
    source, url = tmp_path / "source", f"file://{tmp_path}/there"
    for name in ("about", "offsets/0", "commits/0", "state/0/0/1.changelog", "state/0/0/SSTs/a b%41.sst"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(name.encode() * 1000)
    files, root = HadoopFiles(spark, url), f"{url}/g/1-a/rows/shop%2Fx"
    with ThreadPoolExecutor(8) as pool:
        backup = StateBackup(files, root, source, "", pool)
        assert files.list_names(root) == []
        assert not restore(files, root, tmp_path / "none", "", pool)
        for number in range(_OBSOLETE_MANIFESTS + 3):
            (source / "offsets/0").write_text(str(number))
            backup.save()
        assert restore(files, root, tmp_path / "restored", "", pool)
    assert files_of(tmp_path / "restored") == files_of(source)
    assert len(files.list_names(f"{root}/manifests")) == _OBSOLETE_MANIFESTS + 1
    with pytest.raises(FileNotFoundError):
        files.download(f"{root}/none", tmp_path / "x")
    files.remove(root)
    assert files.list_names(root) == []


def test_a_file_system_without_a_client(spark: Any) -> None:
    with pytest.raises(HelenusError, match="Spark has no client for it") as error:
        HadoopFiles(spark, "s4://lake").list_names("s4://lake/x")
    assert error.value.kind is Kind.CONFIG
