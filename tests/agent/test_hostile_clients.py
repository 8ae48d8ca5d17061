"""The agent's listener under clients that mean harm: when the agent ends, writes to Cassandra stop."""

from __future__ import annotations

import itertools
import resource
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent.fakes import write_of
from agent.standalone import TABLE
from agent.test_operations import Agents, get
from hostile_clients import answer_to, connected, has_ended
from patience import eventually, wait_for_error

LIMIT = 256


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    agents = Agents(tmp_path)
    yield agents
    for process in agents.processes:
        process.kill()
        process.communicate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def agent(agents: Agents) -> subprocess.Popen[str]:
    """A running one, whose limit of open files is low, and that has read one write."""
    agents.raw.segment(10)
    agents.raw.write(10, write_of(TABLE, 0))
    agents.raw.index(10)
    agents.properties = {"http.port": str(free_port())}
    process = agents.start()
    soft = LIMIT // 2  # it raises that to the hard one
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (soft, LIMIT))
    eventually(lambda: agents.keys == [0] and "python_info" in get(port_of(agents), "/metrics"), every=0.1)
    return process


def port_of(agents: Agents) -> int:
    return int(agents.properties["http.port"])


def threads_of(process: subprocess.Popen[str]) -> int:
    return len(list(Path(f"/proc/{process.pid}/task").iterdir()))


def descriptors_of(process: subprocess.Popen[str]) -> list[int]:
    return [int(entry.name) for entry in Path(f"/proc/{process.pid}/fd").iterdir()]


def steady_descriptors_of(process: subprocess.Popen[str]) -> set[int]:
    """Those that are left once the connections of earlier requests are closed."""
    latest: list[int] = []

    def are_steady() -> set[int] | None:
        nonlocal latest
        before, latest = latest, descriptors_of(process)
        return set(latest) if latest == before else None

    descriptors: set[int] = eventually(are_steady, every=0.3)
    return descriptors


@pytest.mark.parametrize(
    ("count", "sent"), [(1000, b""), (1000, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: "), (10_000, b"")]
)
def test_idle_connections_cost_nothing(agents: Agents, agent: subprocess.Popen[str], count: int, sent: bytes) -> None:
    """Events go on, metrics are answered meanwhile, and neither threads, descriptors nor the log grow."""
    assert resource.prlimit(agent.pid, resource.RLIMIT_NOFILE) == (LIMIT, LIMIT), "it raised the soft one"
    threads = threads_of(agent)
    with connected(port_of(agents), count, sent):
        for key in range(1, 4):
            agents.raw.write(10, write_of(TABLE, key))
            agents.raw.index(10)
            eventually(lambda key=key: agents.keys[-1] == key, every=0.05)  # type: ignore[misc]
            assert "python_info" in get(port_of(agents), "/metrics")
            ready = answer_to(port_of(agents), b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert ready[0] == 200, ready[2]
        assert threads_of(agent) <= threads + 2
        assert len(descriptors_of(agent)) < LIMIT
    assert agents.stop(agent).count("\n") < 20
    assert agents.keys == [0, 1, 2, 3]


def test_a_connection_has_a_deadline(agents: Agents, agent: subprocess.Popen[str]) -> None:
    """Also one that goes on to send a byte now and then."""
    with connected(port_of(agents), 3, b"GET / HTTP/1.1\r\n") as clients:
        trickling = clients[0]

        def trickle() -> bool:
            try:
                trickling.sendall(b"x")
                trickling.settimeout(0.2)
                return not trickling.recv(100)
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        eventually(trickle, every=0.3)
        assert all(map(has_ended, clients[1:]))
    foreign = answer_to(port_of(agents), b"GET /metrics HTTP/1.1\r\nHost: attacker.example\r\n\r\n")
    assert foreign[0] == 403, "a page of that name resolves to 127.0.0.1"
    agents.stop(agent)


def test_no_descriptor_is_left(agents: Agents, agent: subprocess.Popen[str]) -> None:
    """Not even for its files: it says so, goes on trying, and loses nothing."""
    used = steady_descriptors_of(agent)
    first_free = next(number for number in itertools.count() if number not in used)
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (first_free, LIMIT))
    with connected(port_of(agents), 100):
        agents.raw.segment(11)
        agents.raw.write(11, write_of(TABLE, 1))
        agents.raw.index(11)
        wait_for_error(agent, "LimitNOFILE")
        assert agent.poll() is None
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    eventually(lambda: 1 in agents.keys, every=0.05)
    agents.stop(agent)
