"""The Log against brokers that are made up: redirects, proxies, refusals, and what a single real one never does."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patience import eventually

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.pulsar import connection, errors
from helenus_sinks.pulsar import log as log_module
from helenus_sinks.pulsar.client import Client
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.log import PulsarLog
from helenus_sinks.pulsar.wire import command, commands

REDIRECT, CONNECT = 0, 1


class Broker:
    """Takes every producer and stores every batch, unless `answers` has something else to say to a command."""

    def __init__(self) -> None:
        self.port = 0
        self.heard: list[tuple[str, Any]] = []
        self.stored: list[int] = []
        self.open: list[asyncio.Transport] = []
        self.answers: dict[str, Callable[[Any], list[bytes] | None]] = {}

    def names(self) -> list[str]:
        return [name for name, _ in self.heard]

    def requests(self, name: str) -> list[Any]:
        return [request for heard, request in self.heard if heard == name]

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    def lookup(self, url: str, response: int = CONNECT, **more: Any) -> Callable[[Any], list[bytes]]:
        """An answer to LOOKUP."""
        return lambda request: [
            command("lookup_response", brokerServiceUrl=url, response=response, request_id=request.request_id, **more)
        ]

    def answer(self, name: str, request: Any) -> list[bytes]:
        self.heard.append((name, request))
        if name in self.answers:
            answer = self.answers[name](request)
            if answer is not None:
                return answer
        if name == "connect":
            return [command("connected", server_version="x", protocol_version=19, max_message_size=5 << 20)]
        if name == "lookup":
            return self.lookup(self.url)(request)
        if name == "producer":
            return [command("producer_success", request_id=request.request_id, producer_name="p")]
        if name == "send":
            self.stored.append(request.sequence_id)
            return [command("send_receipt", producer_id=request.producer_id, sequence_id=request.sequence_id)]
        return [command("pong")] if name == "ping" else []


class Served(asyncio.Protocol):
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.broker.open.append(transport)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        for name, request, _ in commands(self.buffer):
            for frame in self.broker.answer(name, request):
                self.transport.write(frame)


@pytest.fixture
def brokers() -> Iterator[list[Broker]]:
    """Three of them."""
    made = [Broker() for _ in range(3)]
    loop = asyncio.new_event_loop()

    async def serve() -> list[asyncio.Server]:
        servers = []
        for broker in made:
            server = await loop.create_server(lambda broker=broker: Served(broker), "127.0.0.1", 0)
            broker.port = server.sockets[0].getsockname()[1]
            servers.append(server)
        return servers

    thread = threading.Thread(target=loop.run_forever)
    servers = loop.run_until_complete(serve())
    thread.start()
    yield made

    async def end() -> None:
        for server in servers:
            server.close()
        for transport in [transport for broker in made for transport in broker.open]:
            transport.abort()
        await asyncio.sleep(0.05)
        loop.stop()

    asyncio.run_coroutine_threadsafe(end(), loop)
    thread.join()
    loop.close()


@pytest.fixture
def log(brokers: list[Broker]) -> Iterator[PulsarLog]:
    log = PulsarLog(PulsarConfig(brokers[0].url, token="t0ken"))
    yield log
    log.close()


def test_redirects_are_followed(brokers: list[Broker], log: PulsarLog) -> None:
    first, second, third = brokers
    first.answers["lookup"] = first.lookup(second.url, REDIRECT, authoritative=True)
    second.answers["lookup"] = second.lookup(third.url)
    log.append("t", 2, b"k", b"v")
    log.flush(10)
    assert third.stored == [0]
    assert [request.topic for request in second.requests("lookup")] == ["persistent://public/default/t-partition-2"]
    assert [broker.requests("lookup")[0].authoritative for broker in (first, second)] == [False, True]
    assert {broker.requests("connect")[0].auth_data for broker in brokers} == {b"t0ken"}


def test_a_proxy_gets_the_address_of_the_broker(brokers: list[Broker], log: PulsarLog) -> None:
    proxy = brokers[0]
    proxy.answers["lookup"] = proxy.lookup("pulsar://hidden:6650", proxy_through_service_url=True)
    log.append("t", 0, b"k", b"v")
    log.flush(10)
    assert [request.proxy_to_broker_url for request in proxy.requests("connect")] == ["", "hidden:6650"]
    assert proxy.stored == [0]


def test_redirects_in_a_circle(brokers: list[Broker], log: PulsarLog) -> None:
    first, second, _ = brokers
    first.answers["lookup"] = first.lookup(second.url, REDIRECT)
    second.answers["lookup"] = second.lookup(first.url, REDIRECT)
    log.append("t", 0, b"k", b"v")
    with pytest.raises(HelenusError, match="in circles") as error:
        log.flush(1)
    assert error.value.kind is Kind.APPEND_FAILED


def test_a_token_is_asked_for_again(brokers: list[Broker], log: PulsarLog) -> None:
    broker = brokers[0]
    challenge = command("auth_challenge", challenge={"auth_method_name": "token"})
    broker.answers["producer"] = lambda request: [
        challenge,
        command("producer_success", request_id=request.request_id, producer_name="p"),
    ]
    log.append("t", 0, b"k", b"v")
    log.flush(10)
    eventually(lambda: broker.requests("auth_response"), every=0.02)
    assert broker.requests("auth_response")[0].response.auth_data == b"t0ken"


def test_a_broker_that_takes_less(brokers: list[Broker], log: PulsarLog) -> None:
    connected = command("connected", server_version="x", max_message_size=10_000)
    brokers[0].answers["connect"] = lambda _: [connected]
    log.append("t", 0, b"k", bytes(20_000))
    with pytest.raises(HelenusError, match="20001 bytes, where the broker takes 8976") as error:
        log.flush(10)
    assert error.value.kind is Kind.RECORD_TOO_LARGE
    with pytest.raises(HelenusError, match="20001 bytes, where 8976 are allowed"):
        log.append("t", 0, b"k", bytes(20_000))
    log.extend("t", 0, [(b"k", bytes(4000))] * 5)
    log.flush(10)
    assert [request.num_messages for request in brokers[0].requests("send")] == [2, 2, 1]


def test_a_broker_that_takes_more(brokers: list[Broker], log: PulsarLog) -> None:
    """It is asked before the first record that is larger than usual is refused."""
    connected = command("connected", server_version="x", max_message_size=8_000_000)
    brokers[0].answers["connect"] = lambda _: [connected]
    log.append("t", 0, b"k", bytes(7_000_000))
    log.flush(10)
    assert brokers[0].stored == [0]
    with pytest.raises(HelenusError, match="where 7998976 are allowed"):
        log.append("t", 0, b"k", bytes(8_000_000))


NO_ID = 2**64 - 1


@pytest.mark.parametrize("unknown", [0, 2])
def test_where_values_are_that_a_broker_had_before(brokers: list[Broker], log: PulsarLog, unknown: int) -> None:
    """One that deduplicates does not say it: the batch is done again."""
    chunks = [(bytes(300_000), [("n", b"0")])] * 3

    def send(request: Any) -> list[bytes]:
        message_id = {"ledgerId": 7, "entryId": request.sequence_id}
        if request.sequence_id == unknown:
            message_id = {"ledgerId": NO_ID, "entryId": NO_ID}
        fields = {"producer_id": request.producer_id, "sequence_id": request.sequence_id}
        return [command("send_receipt", **fields, message_id=message_id)]

    brokers[0].answers["send"] = send
    with pytest.raises(HelenusError, match="does not say where") as error:
        log.store("t", 0, chunks, 10)
    assert error.value.kind is Kind.APPEND_FAILED
    assert log.store("t", 0, chunks, 10) == ((7, 3), (7, 5))


def test_an_acknowledgement_that_is_missing(brokers: list[Broker], log: PulsarLog) -> None:
    """All batches are sent again, as they were and in their order, by a new producer of the same name."""
    broker = brokers[0]
    unanswered = [0]

    def send(request: Any) -> list[bytes] | None:
        broker.stored.append(request.sequence_id)
        if request.sequence_id in unanswered:
            unanswered.remove(request.sequence_id)
            return []
        return [command("send_receipt", producer_id=request.producer_id, sequence_id=request.sequence_id)]

    broker.answers["send"] = send
    log.extend("t", 0, [(b"k", b"v")] * 1500)
    log.flush(10)
    resent_from = broker.stored.index(0, 1)
    sent, resent = broker.stored[:resent_from], broker.stored[resent_from:]
    assert sent == resent[: len(sent)]
    assert resent == sorted(set(resent))  # a batch that had to wait for the new producer comes after them
    first, other = broker.requests("producer")
    assert first.producer_name == other.producer_name
    assert (first.epoch, other.epoch) == (0, 1)
    assert broker.names().count("close_producer") == 1


def test_a_closed_producer_looks_up_again(brokers: list[Broker], log: PulsarLog) -> None:
    first, second, _ = brokers
    first.answers["send"] = lambda request: [command("close_producer", producer_id=request.producer_id, request_id=9)]
    moved = iter([first.url])
    first.answers["lookup"] = lambda request: first.lookup(next(moved, second.url))(request)
    log.append("t", 0, b"k", b"v")
    log.flush(10)
    assert second.stored == [0]
    assert len(first.open) == 1, "the connection stays"


def test_transient_refusals_do_not_cause_a_storm_of_requests(brokers: list[Broker], log: PulsarLog) -> None:
    broker = brokers[0]

    def refuse(request: Any) -> list[bytes] | None:
        if len(broker.requests("producer")) > 5:
            return None
        return [command("error", request_id=request.request_id, error=6, message="the topic is being unloaded")]

    broker.answers["producer"] = refuse
    log.append("t", 0, b"k", b"v")
    with pytest.raises(HelenusError, match="the topic is being unloaded") as error:
        log.flush(1)
    assert error.value.kind is Kind.APPEND_FAILED
    assert len(broker.requests("producer")) <= 5
    log.append("t", 0, b"k", b"v")
    log.flush(30)
    assert len(broker.stored) == 1


@pytest.mark.parametrize("code", [0, 6])
def test_a_topic_that_goes_to_another_broker_is_asked_for_again(
    brokers: list[Broker], log: PulsarLog, code: int
) -> None:
    broker = brokers[0]

    def refuse(request: Any) -> list[bytes]:
        return [command("error", request_id=request.request_id, error=code, message="redo the lookup")]

    def answer(request: Any) -> list[bytes]:
        if len(broker.requests("partitioned_metadata")) < 3:
            return refuse(request)
        fields = {"request_id": request.request_id, "partitions": 4, "response": 0}
        return [command("partitioned_metadata_response", **fields)]

    broker.answers["partitioned_metadata"] = answer
    assert log.create("t", 2, {}) == 4
    broker.answers["partitioned_metadata"] = refuse
    log.hurry(0.5)
    with pytest.raises(HelenusError, match="redo the lookup"):
        log.create("t", 2, {})


@pytest.mark.parametrize(
    ("code", "kind"), [(4, Kind.BROKER_REFUSED), (15, Kind.BROKER_REFUSED), (18, Kind.REGISTRY_REFUSED)]
)
def test_permanent_refusals_are_raised_at_once(brokers: list[Broker], log: PulsarLog, code: int, kind: Kind) -> None:
    refusal = {"error": code, "message": "because\n  it is so"}
    brokers[0].answers["producer"] = lambda request: [command("error", request_id=request.request_id, **refusal)]
    log.append("t", 0, b"k", b"v")
    with pytest.raises(HelenusError, match="Pulsar: because it is so") as error:
        log.flush(60)
    assert error.value.kind is kind
    assert len(brokers[0].requests("producer")) == 1


def test_a_broker_that_stops_answering(brokers: list[Broker], log: PulsarLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the connection and says nothing any more: another connection is made."""
    monkeypatch.setattr(connection, "_KEEP_ALIVE", 0.2)
    broker = brokers[0]
    broker.answers["send"] = broker.answers["ping"] = lambda _: [] if len(broker.open) == 1 else None
    log.append("t", 0, b"k", b"v")
    log.flush(30)
    assert len(broker.open) == 2
    assert broker.stored == [0]


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of who takes connections in and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def full() -> Iterator[str]:
    """The address of who takes nobody in: his queue is full."""
    waiting = []
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        for _ in range(3):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        for waiting_socket in waiting:
            waiting_socket.close()


@pytest.mark.parametrize("scheme", ["pulsar", "pulsar+ssl"])
@pytest.mark.parametrize("who", ["silent", "full"])
@pytest.mark.parametrize("wait", [0.0, 0.006])
def test_an_end_in_the_middle_of_opening_leaves_nothing_behind(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, scheme: str, who: str, wait: float
) -> None:
    """No task, no socket: pytest makes errors of what Python warns of, asyncio logs tasks that are destroyed."""
    url = f"{scheme}://{request.getfixturevalue(who)}"
    threads = threading.active_count()
    for start in (True, False):
        log = PulsarLog(PulsarConfig(url.replace("127.0.0.1", "localhost") if start else url))
        if start:
            log.start()
        for partition in range(3):
            log.append("t", partition, b"k", b"v")
        time.sleep(wait)
        log.close()
    gc.collect()
    assert threading.active_count() <= threads + 1, "but for the one that looks names up"
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_an_end_while_nobody_answers_leaves_nothing_behind(
    silent: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was not answered in time, and the question gave up before that."""
    monkeypatch.setattr(log_module, "_ANSWER_TIMEOUT_S", 0.1)
    log = PulsarLog(PulsarConfig(f"pulsar://{silent}"))
    with pytest.raises(HelenusError, match="does not answer in time") as error:
        log.topics()
    assert error.value.kind is Kind.BROKER_UNREACHABLE
    log.close()
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (18, "IncompatibleSchemaException: Incompatible: exists schema", Kind.REGISTRY_REFUSED),
        (0, "org.apache.avro.SchemaParseException: Illegal character in: my col", Kind.REGISTRY_REFUSED),
        (18, "Schema not found and schema auto updating is disabled", Kind.BROKER_REFUSED),
        # While a broker starts, its schemas can't be read.
        (0, "o.a.p.exceptions.SchemaException: Bookie handle is not available - ledger=5", Kind.BROKER_UNREACHABLE),
    ],
)
def test_every_refusal_has_a_kind(code: int, message: str, kind: Kind) -> None:
    assert errors.broker_error(code, message, "here").kind is kind


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 66500), ("broker..local", 6650)])
def test_an_invalid_address_is_an_error_of_ours(host: str, port: int) -> None:
    """A broker may name one."""

    async def ask() -> None:
        client = Client("pulsar://127.0.0.1:1", connection.Access())
        await client.connection(connection.Address(host, port, tls=False))

    with pytest.raises(HelenusError, match=f"{host}:{port}") as error:
        asyncio.run(ask())
    assert error.value.kind is Kind.BROKER_UNREACHABLE


@pytest.mark.parametrize(
    "url", ["pulsar://127.0.0.1:66500", "pulsar://broker..local:6650", "pulsar://a,", "broker:6650", ""]
)
def test_addresses_that_are_no_service(url: str) -> None:
    with pytest.raises(HelenusError, match=r"pulsar\.service\.url") as error:
        connection.Address.parse(url)
    assert error.value.kind is Kind.CONFIG


def test_where_a_service_is() -> None:
    parse = connection.Address.parse
    assert parse("PULSAR+SSL://a,[::1]:2") == [
        connection.Address("a", 6651, tls=True),
        connection.Address("::1", 2, tls=True),
    ]
    assert parse("pulsar://a/") == [connection.Address("a", 6650, tls=False)]


def test_the_system_s_authorities_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system, debian = tmp_path / "system.pem", tmp_path / "ca-certificates.crt"
    system.touch()

    def paths(cafile: str | None, capath: str | None) -> None:
        verify_paths = SimpleNamespace(cafile=cafile, capath=capath)
        monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: verify_paths)

    paths(str(system), None)
    assert connection.Access().bundle == str(system)
    assert connection.Access(cafile=Path("/mine.pem")).bundle == "/mine.pem"
    paths(None, str(tmp_path))
    assert connection.Access().bundle is None
    debian.touch()
    assert connection.Access().bundle == str(debian)
