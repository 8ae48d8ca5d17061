"""A YARN of one node with an HDFS, as Hadoop's own tests start them: real servers in one Java process, which is that of
a PySpark without Spark. Containers are processes of this machine.

Run as a program, it serves in a directory until its standard input ends.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
from bench.processes import contents

from helenus_stack.jars import fetch, parse_lock
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent
from helenus_stack.resolve import resolve

SPARK_HOME = Path(pyspark.__file__).parent
_LOCK = Path(__file__).with_suffix(".lock")
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_NODES_S = 120
_SETTINGS = {
    "yarn.resourcemanager.hostname": "127.0.0.1",
    "yarn.nodemanager.hostname": "127.0.0.1",
    "yarn.minicluster.yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.scheduler.minimum-allocation-mb": "128",
    # It ends containers that take more memory than they asked for, as every YARN does: Hadoop's tests switch it off.
    "yarn.minicluster.control-resource-monitoring": "true",
    "yarn.nodemanager.vmem-check-enabled": "false",  # Java reserves addresses by gigabytes
    "yarn.nodemanager.disk-health-checker.enable": "false",
    # What a capacity-scheduler.xml has.
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.root.default.acl_submit_applications": "*",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
}


class YarnCluster:
    """The servers, in a directory, and what their clients are told."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def variables(self) -> dict[str, str]:
        """What Spark's commands take: where the cluster is, and Spark."""
        return {
            "HADOOP_CONF_DIR": str(self._directory / "conf"),
            "SPARK_HOME": str(SPARK_HOME),
            "JAVA_HOME": str(spark_java_home(Silent())),
        }

    def __enter__(self) -> YarnCluster:
        (self._directory / "conf").mkdir(parents=True)
        log = self._directory / "yarn.log"
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(self._directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self._directory,  # where Hadoop's tests have the files of nodes
                env={**os.environ, **self.variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"started\n":
            self.__exit__()
            raise AssertionError(log.read_text()[-3000:])
        return self

    def __exit__(self, *_: object) -> None:
        """End the servers, and the containers with them."""
        assert self._process is not None
        try:
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)

    def call(self, *arguments: str) -> str:
        """What `yarn` prints: the class that this command runs."""
        main = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
        command = [str(SPARK_HOME / "bin/spark-class"), main, *arguments]
        environment = {**os.environ, **self.variables}
        called = subprocess.run(command, capture_output=True, text=True, timeout=_NODES_S, env=environment)
        assert called.returncode == 0, called.stdout + called.stderr
        return called.stdout

    def processes(self, part: str = "") -> list[int]:
        """The processes of containers, or those whose command has this part."""
        of_containers = b"\0LOCAL_DIRS=" + str(self._directory).encode()  # a variable by which YARN starts them
        return [
            int(path.name)
            for path in Path("/proc").glob("[0-9]*")
            if part.encode() in contents(path, "cmdline") and of_containers in b"\0" + contents(path, "environ")
        ]

    def drivers(self) -> list[int]:
        """The Java processes of application masters that are drivers."""
        return self.processes("org.apache.spark.deploy.yarn.ApplicationMaster\0--class")

    def executors(self) -> list[int]:
        """The Java processes of executors."""
        return self.processes("YarnCoarseGrainedExecutorBackend\0--driver-url")

    def container_logs(self, name: str) -> str:
        """What containers wrote to a file, such as `stderr`, one after the other."""
        files = sorted(self._directory.rglob(f"container_*/{name}"), key=lambda file: file.stat().st_mtime)
        return "\n".join(f"{file}:\n{file.read_text(errors='replace')}" for file in files)


def application_id(text: str) -> str:
    """The id of the application that a command speaks of."""
    match = re.search(r"application_\d+_\d+", text)
    assert match is not None, text
    return match[0]


def _serve(directory: Path) -> None:
    from pyspark.java_gateway import launch_gateway

    jars = ":".join(map(str, fetch(parse_lock(_LOCK.read_text(), _LOCK.name), Silent(), resolve)))
    options = f"--driver-class-path '{jars}' --driver-memory 384m --driver-java-options '{_JAVA_OPTIONS}'"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{options} pyspark-shell"
    jvm: Any = launch_gateway().jvm
    hadoop = jvm.org.apache.hadoop
    configuration = hadoop.yarn.conf.YarnConfiguration()
    for key, value in {**_SETTINGS, "hdfs.minidfs.basedir": str(directory / "hdfs")}.items():
        configuration.set(key, value)
    hdfs = getattr(hadoop.hdfs, "MiniDFSCluster$Builder")(configuration).numDataNodes(1).build()
    hdfs.waitActive()
    configuration.set("fs.defaultFS", str(hdfs.getFileSystem().getUri()))
    cluster = hadoop.yarn.server.MiniYARNCluster("helenus", 1, 1, 1)
    cluster.init(configuration)
    cluster.start()
    cluster.waitForNodeManagersToConnect(1000 * _NODES_S)
    clients = hadoop.yarn.conf.YarnConfiguration(cluster.getConfig())
    clients.unset("net.topology.node.switch.mapping.impl")  # a class of tests, which Spark has not
    for name in ("core-site", "hdfs-site", "yarn-site"):  # each goes before the defaults of its own
        out = jvm.java.io.FileOutputStream(str(directory / f"conf/{name}.xml"))
        clients.writeXml(out)
        out.close()
    sys.stdout.write("started\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.stop()
    hdfs.shutdown()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
