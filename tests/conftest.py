"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import longest
import pytest
import structlog
from hypothesis import settings
from shared_servers import SharedServers

# A test run in a shell's background ignores Ctrl-C, and so would the commands under test. With a handler here they
# start with the default again.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("long", max_examples=1000, deadline=None)  # `make test-long`
settings.register_profile("short", max_examples=25, deadline=None)  # the rest; Hypothesis itself would take 100
settings.load_profile("short")


OF_SERVERS = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.integration\b", re.MULTILINE)
"""All tests of such a file need servers."""


@pytest.fixture(scope="session", autouse=True)
def _without_fsync() -> Iterator[None]:
    """Only a power failure shows that it was called, and it is slow. Commands that tests start do call it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _without_java() -> Iterator[None]:
    """Where there is no Java, tests of `validate` are about all else that it says."""
    with pytest.MonkeyPatch.context() as patch:
        if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
            patch.setattr("helenus_connector.validate_command.check_java", lambda: None)
        yield


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """A command that runs in the test's process sets up its logs, for a standard error that is closed after it."""
    before = structlog.get_config()
    yield
    if structlog.get_config() != before:
        structlog.configure(**before)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of the two halves of `make test` neither imports the files of the other: each process would."""
    chosen = config.getoption("markexpr")
    if collection_path.suffix != ".py" or not chosen.startswith(("integration", "not integration")):
        return None
    text = collection_path.read_text()
    if chosen.startswith("integration"):
        return "pytest.mark.integration" not in text or None
    return OF_SERVERS.search(text) is not None or None


SHARED_SERVERS = SharedServers()


@pytest.fixture(scope="session")
def shared_servers() -> SharedServers:
    """What the files of a group share: tests/longest.py has the groups."""
    return SHARED_SERVERS


@pytest.fixture(scope="module")
def only_kafka(shared_servers: SharedServers, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A stack of a Kafka, for the group's files."""
    return shared_servers("kafka", lambda: _stack(tmp_path_factory, only=["kafka"]))


@pytest.fixture(scope="module")
def secure(shared_servers: SharedServers, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A stack with TLS and passwords of Cassandra, Kafka and a registry, for the group's files."""
    servers = ["cassandra", "kafka", "registry"]
    # A page of the driver's default size is refused to all but superusers.
    yaml = {"commitlog_sync_period": "1000ms", "page_size_fail_threshold": 100}
    return shared_servers("secure", lambda: _stack(tmp_path_factory, only=servers, secure=True, cassandra_yaml=yaml))


@pytest.fixture(scope="module")
def only_pulsar(shared_servers: SharedServers, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A stack of a Pulsar that asks often whether its clients live, for the group's files. A Cassandra is started where
    it is needed.
    """
    asks_often = {"keepAliveIntervalSeconds": "2"}
    small = {"commitlog_segment_size": "1MiB", "commitlog_sync_period": "1000ms", "materialized_views_enabled": "true"}
    options = {"only": ["pulsar"], "log": "pulsar", "pulsar_properties": asks_often, "cassandra_yaml": small}
    return shared_servers("pulsar", lambda: _stack(tmp_path_factory, **options))


def _stack(directories: pytest.TempPathFactory, **options: Any) -> Any:
    from helenus_stack.stack import Stack  # here: most tests need none

    return Stack(directories.mktemp("stack"), **options)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    try:
        yield  # fixtures end before what they use
    finally:
        if nextitem is None or longest.group(nextitem.path) != longest.group(item.path):
            SHARED_SERVERS.end()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    return longest.scheduler(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Searches for garbage wait until all tests are collected, and then pass by them: they stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest.put_first(items)


class Failures:
    """Shows each failure when it happens: pytest shows them when all is over, half an hour later."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message if crash else report.longreprtext
            where = "" if report.when == "call" else f" in its {report.when}"
            self.terminal.ensure_newline()
            self.terminal.write_line(f"FAILED{where}: {report.nodeid}: {' '.join(reason.split())[:300]}", red=True)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):  # workers of xdist hand on to the first process
        config.pluginmanager.register(Failures(terminal))
