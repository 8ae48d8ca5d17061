"""Writes what README.md says is tested of servers and Spark, from the versions that tests start and the locks of their
files.

`make reference` runs it. A test compares them.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from helenus_stack import cassandra, kafka, pulsar
from helenus_stack.settings import Settings

ROOT = Path(__file__).resolve().parents[1]


def readme(page: str) -> str:
    """Return the text of README.md with what is tested of servers and Spark as tests and locks have it now. What stands
    in the other cells, and in rows of other things, is written by hand and kept.
    """
    for name, versions in _tested().items():
        page, rows = re.subn(rf"^(\| {name} \|) [^|]* \|", rf"\1 {versions} |", page, flags=re.MULTILINE)
        if rows != 1:
            raise ValueError(f"README.md has {rows} rows {name} in what is tested")
    return page


def _tested() -> dict[str, str]:
    """Return, by the name of its row, which versions of a server the tests start, and in which run."""
    of_cassandra = {name: _locked_version(version.lock) for name, version in cassandra.VERSIONS.items()}
    usual = Settings()
    broker_versions = dict(_constant("test_broker_versions", "VERSIONS"))
    alone, long = (
        ", ".join(of_cassandra[version] for version in _constant("test_cassandra_versions", name))
        for name in ("VERSIONS", "LONG_VERSIONS")
    )
    upgraded = " → ".join(of_cassandra[version] for version in _constant("test_rolling_upgrade", "VERSIONS"))
    kafka_version, older_kafka, pulsar_version, older_pulsar = (
        _locked_version(versions[version])
        for versions, version in (
            (kafka.VERSIONS, usual.kafka),
            (kafka.VERSIONS, broker_versions["kafka"]),
            (pulsar.VERSIONS, usual.pulsar),
            (pulsar.VERSIONS, broker_versions["pulsar"]),
        )
    )
    spark = re.findall(r"^pyspark==([\d.]+); python_version (\S+) \"([\d.]+)\"", _read("constraints.txt"), re.MULTILINE)
    newest, older = (next(version for version, sign, _ in spark if sign == wanted) for wanted in (">=", "<"))
    return {
        "Cassandra": f"{of_cassandra[usual.cassandra]}, both storage modes, plain and compressed; {alone} with a "
        f"connector of each mode; `make test-long`: {long}; `make test-cluster`: three nodes, and {upgraded} one node "
        "at a time under writes and kills ([what differs](docs/versions.md))",
        "Kafka": f"{kafka_version}, also with TLS and logins; `make test-long`: {older_kafka}, and three "
        f"brokers of {kafka_version}",
        "Pulsar": f"{pulsar_version} standalone, also with TLS and logins; `make test-long`: {older_pulsar}, and two "
        f"brokers of {pulsar_version}",
        "cassandra-driver": f"{_driver('constraints.txt', '==')}; `make test-long`: "
        f"{_driver('pyproject.toml', '>=')}, the oldest that is allowed",
        "schema registry": f"Apicurio {_locked_version('registry')}, through Confluent's API",
        "Spark": f"{newest} ({older} on Python 3.10), local and on a standalone cluster, also by `spark-submit`; "
        f"`make test-long`: on a YARN of Hadoop {_locked_version('yarn_cluster', 'tests/integration')}",
    }


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _driver(file: str, sign: str) -> str:
    """Return the version of the driver for Cassandra in a file of requirements."""
    (version,) = re.findall(rf'^ *"?cassandra-driver{sign}([\d.]+)', _read(file), re.MULTILINE)
    return str(version)


def _locked_version(lock: str, folder: str = "compose/helenus_stack/jars") -> str:
    """Return the version of what a lock is for, by default one of the stack: that of its first root."""
    lines = _read(f"{folder}/{lock}.lock").splitlines()
    return next(line for line in lines if line.startswith("# root ")).split(":")[2]


def _constant(test: str, name: str) -> Any:
    """Return a constant of a module of the integration tests."""
    for node in ast.parse(_read(f"tests/integration/{test}.py")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            return ast.literal_eval(node.value)
    raise ValueError(f"{test}.py has no {name}")


if __name__ == "__main__":
    readme_page = ROOT / "README.md"
    readme_page.write_text(readme(readme_page.read_text(encoding="utf-8")), encoding="utf-8")
