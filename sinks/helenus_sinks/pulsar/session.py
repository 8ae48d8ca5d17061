"""Connections to Pulsar's brokers: the handshake, requests and their answers, and which broker has a topic."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.fields import pulsar_addresses
from helenus_sinks.pulsar.wire import FRAME_MAX, PROTOCOL_VERSION, command, commands

_CONNECT_TIMEOUT = 5.0
_REQUEST_TIMEOUT = 20.0
_KEEP_ALIVE = 30.0  # s of silence after which the broker is asked whether it lives; as long until it counts as gone
_HOPS = 20
_CLIENT = "helenus"
_REDIRECT, _CONNECT = 0, 1
AUTHENTICATION, AUTHORIZATION, NOT_READY, TOPIC_NOT_FOUND, INCOMPATIBLE_SCHEMA, FENCED = 3, 4, 6, 11, 18, 25
_LONG = 400
_NO_UPDATES = "schema auto updating is disabled"
_STORAGE = ".SchemaException: "  # the class itself: schemas can't be read or kept just now; those of it say no
_REFUSED = {AUTHENTICATION, AUTHORIZATION, TOPIC_NOT_FOUND, 15, 17, 22, FENCED}  # also terminated, illegal, not allowed


@dataclass(frozen=True)
class Address:
    """Where to connect: a broker, or a proxy that takes us to the broker `behind` it."""

    host: str
    port: int
    tls: bool
    behind: str = ""

    @staticmethod
    def parse(url: str) -> list[Address]:
        """The addresses in `pulsar://host[:port][,host[:port]...]`, or `pulsar+ssl://`. Raises HelenusError(CONFIG)."""
        try:
            scheme, found = pulsar_addresses(url)
        except ValueError:
            what = f"pulsar.service.url: not pulsar://host:port or pulsar+ssl://host:port: {url}"
            raise HelenusError(Kind.CONFIG, what) from None
        tls = scheme == "pulsar+ssl"
        return [Address(host, port or (6651 if tls else 6650), tls) for host, port in found]

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Access:
    """How a client shows who it is, and knows who the brokers are. The token is kept out of the object's text."""

    token: str | None = None
    cafile: Path | None = None
    check_hostname: bool = True

    def __repr__(self) -> str:
        return "Access()"

    @property
    def bundle(self) -> str | None:
        """A file of authorities for a client that brings its own list of them; None where the system has no file."""
        if self.cafile:
            return str(self.cafile)
        system = ssl.get_default_verify_paths()
        # Debian's OpenSSL knows the directory alone, in which this is all of them.
        files = (system.cafile, f"{system.capath}/ca-certificates.crt")
        return next((file for file in files if file and Path(file).is_file()), None)

    def context(self) -> ssl.SSLContext:
        """For TLS. Raises HelenusError(CONFIG)."""
        try:
            context = ssl.create_default_context(cafile=str(self.cafile) if self.cafile else None)
        except OSError as error:
            raise HelenusError(Kind.CONFIG, f"pulsar.tls.cafile: cannot read it: {error}", str(self.cafile)) from None
        context.check_hostname = self.check_hostname
        return context


def broker_error(code: int, message: str, where: str) -> HelenusError:
    """An answer that says no: by its code in PulsarApi.proto, with the broker's own words."""
    kind = Kind.BROKER_REFUSED if code in _REFUSED else Kind.BROKER_UNREACHABLE
    text = " ".join(message.split()) or "it says no more"
    if len(text) > _LONG:  # with two schemas in it, say
        text = text.partition(" caused by ")[0][:_LONG]
    if _NO_UPDATES in message:
        kind = Kind.BROKER_REFUSED
        text += "; allow it by isAllowAutoUpdateSchema of the namespace, or upload what helenus-connector schemas says"
    elif _STORAGE in message:
        kind = Kind.BROKER_UNREACHABLE
    elif code == INCOMPATIBLE_SCHEMA or "SchemaParseException" in message or "SchemaException" in message:
        kind = Kind.REGISTRY_REFUSED
    return Answered(kind, f"Pulsar: {text}", where, code)


class Answered(HelenusError):
    """An error that a broker answered with, and its code."""

    def __init__(self, kind: Kind, what: str, where: str = "", code: int = 0) -> None:
        super().__init__(kind, what, where)
        self.code = code


class Producing(Protocol):
    """Who hears what a broker says of a producer."""

    def receipt(self, sequence: int) -> None: ...
    def refused(self, code: int, message: str) -> None: ...
    def lost(self, why: str) -> None: ...


class Connection(asyncio.Protocol):
    """One connection. `largest` is the largest message that the broker takes.

    `consumers` are those that somebody here added and that the broker has not closed.
    """

    def __init__(self, address: Address, token: str | None, gone: Callable[[Connection], None]) -> None:
        self.address = address
        self.largest = FRAME_MAX
        self.producers: dict[int, Producing] = {}
        self.consumers: set[int] = set()
        self._token = token
        self._gone = gone
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._request = 0
        self._heard = True
        self._timer: asyncio.TimerHandle | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self.closed:  # nobody waits for it any more
            transport.abort()
            return
        login = {"auth_method_name": "token", "auth_data": self._token.encode()} if self._token else {}
        behind = {"proxy_to_broker_url": self.address.behind} if self.address.behind else {}
        flags = {"supports_auth_refresh": True, "supports_get_partitioned_metadata_without_auto_creation": True}
        self.write(
            command(
                "connect",
                client_version=_CLIENT,
                protocol_version=PROTOCOL_VERSION,
                feature_flags=flags,
                **login,
                **behind,
            )
        )
        self._timer = asyncio.get_running_loop().call_later(_KEEP_ALIVE, self._keep_alive)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        self._buffer += data
        try:
            for name, said in commands(self._buffer):
                self._take(name, said)
        except ValueError as error:
            self.fail(HelenusError(Kind.BROKER_UNREACHABLE, f"Pulsar: {error}", str(self.address)))

    def connection_lost(self, error: Exception | None) -> None:
        why = f": {error}" if error else ""
        self.fail(HelenusError(Kind.BROKER_UNREACHABLE, f"Pulsar: the connection was closed{why}", str(self.address)))

    def write(self, data: bytes) -> None:
        """Send bytes; they go nowhere if the connection is gone, which its producers hear."""
        if self._transport is not None and not self.closed:
            self._transport.write(data)

    async def ask(self, name: str, **fields: Any) -> Any:
        """The answer to a request. Raises HelenusError: the broker says no, or nothing."""
        self._request += 1
        number = self._request
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            if self.closed:
                raise HelenusError(Kind.BROKER_UNREACHABLE, "Pulsar: the connection was closed", str(self.address))
            self.write(command(name, request_id=number, **fields))
            return await asyncio.wait_for(answer, _REQUEST_TIMEOUT)
        except asyncio.TimeoutError:
            what = f"Pulsar does not answer within {_REQUEST_TIMEOUT:.0f} s"
            self.fail(HelenusError(Kind.BROKER_UNREACHABLE, what, str(self.address)))
            raise HelenusError(Kind.BROKER_UNREACHABLE, what, str(self.address)) from None
        finally:
            self._waiting.pop(number, None)

    def fail(self, error: HelenusError) -> None:
        """Close at once, and tell all who wait or produce."""
        if self.closed:
            return
        self.closed = True
        self._gone(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        for answer in [self.ready, *self._waiting.values()]:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # it is told to who waits, and there may be nobody
        for producer in list(self.producers.values()):
            producer.lost(error.what)
        self.producers.clear()

    def _take(self, name: str, said: Any) -> None:
        if name == "send_receipt":
            if producer := self.producers.get(said.producer_id):
                producer.receipt(said.sequence_id)
        elif name == "send_error":
            if producer := self.producers.get(said.producer_id):
                producer.refused(said.error, said.message)
        elif name == "close_producer":
            # The topic is unloaded, or deleted: the next lookup tells.
            if producer := self.producers.pop(said.producer_id, None):
                producer.lost("the broker closed the producer")
        elif name == "ping":
            self.write(command("pong"))
        elif name == "connected":
            self.largest = said.max_message_size or FRAME_MAX
            if not self.ready.done():
                self.ready.set_result(None)
        elif name == "auth_challenge":
            login = {"auth_method_name": "token", "auth_data": (self._token or "").encode()}
            told = {"client_version": _CLIENT, "response": login, "protocol_version": PROTOCOL_VERSION}
            self.write(command("auth_response", **told))
        elif name == "error" and not self.ready.done():
            self.fail(broker_error(said.error, said.message, str(self.address)))
        elif name == "close_consumer":
            self.consumers.discard(said.consumer_id)
        elif name != "pong":
            self._answer(name, said)

    def _answer(self, name: str, said: Any) -> None:
        if name == "producer_success" and said.HasField("producer_ready") and not said.producer_ready:
            return  # another one has exclusive access: the answer comes when that one is gone
        answer = self._waiting.get(said.request_id)
        if answer is None or answer.done():
            return
        code, message = ("error_code", "error_message") if name.endswith("schema_response") else ("error", "message")
        if code in said.DESCRIPTOR.fields_by_name and said.HasField(code):
            answer.set_exception(broker_error(getattr(said, code), getattr(said, message), str(self.address)))
        else:
            answer.set_result(said)

    def _keep_alive(self) -> None:
        if not self._heard:
            what = f"Pulsar does not answer for {_KEEP_ALIVE:.0f} s"
            self.fail(HelenusError(Kind.BROKER_UNREACHABLE, what, str(self.address)))
            return
        self._heard = False
        self.write(command("ping"))
        self._timer = asyncio.get_running_loop().call_later(_KEEP_ALIVE, self._keep_alive)


def end_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop that stands still, and leave nothing behind: what is under way in it is cancelled."""
    while left := asyncio.all_tasks(loop):  # one that ends may have begun another
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(asyncio.sleep(0))  # in which sockets are closed
    loop.close()


class Client:
    """Finds brokers and keeps one connection to each. Everything here runs in one event loop."""

    def __init__(self, url: str, access: Access) -> None:
        self._service = Address.parse(url)
        self._access = access
        self._tls = access.context() if any(address.tls for address in self._service) else None
        self._connections: dict[Address, asyncio.Future[Connection]] = {}

    async def service(self) -> Connection:
        """A connection to any address of the service. Raises HelenusError: the last one's, if none takes us."""
        for address in list(self._service):
            try:
                return await self.connection(address)
            except HelenusError as error:
                if error.kind is not Kind.BROKER_UNREACHABLE or len(self._service) == 1:
                    raise
                failed = error
                self._service.append(self._service.pop(0))  # the next one first, next time
        raise failed

    async def connection(self, address: Address) -> Connection:
        """The connection to an address; all who ask at a time get the same. Raises HelenusError."""
        opening = self._connections.get(address)
        if opening is None:
            opening = self._connections[address] = asyncio.ensure_future(self._open(address))
            opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            found = await asyncio.shield(opening)
        except HelenusError:
            if self._connections.get(address) is opening:
                del self._connections[address]
            raise
        return found

    async def broker(self, topic: str) -> Connection:
        """A connection to the broker that has the topic. Raises HelenusError."""
        asked = await self.service()
        authoritative = False
        for _ in range(_HOPS):
            said = await asked.ask("lookup", topic=topic, authoritative=authoritative)
            url = said.brokerServiceUrlTls if asked.address.tls else said.brokerServiceUrl
            (address,) = Address.parse(url)[:1]
            if said.proxy_through_service_url and (address.host, address.port) != (
                asked.address.host,
                asked.address.port,
            ):
                address = Address(asked.address.host, asked.address.port, asked.address.tls, str(address))
            found = await self.connection(address)
            if said.response == _CONNECT:
                return found
            asked, authoritative = found, said.authoritative
        raise HelenusError(Kind.BROKER_UNREACHABLE, f"Pulsar: brokers send us round in circles for {topic}")

    async def partitions(self, topic: str) -> int | None:
        """How many partitions a topic has, 0 if it is not partitioned; None if there is no such topic.

        Raises HelenusError.
        """
        service = await self.service()
        try:
            said = await service.ask("partitioned_metadata", topic=topic, metadata_auto_creation_enabled=False)
        except Answered as error:
            if error.code == TOPIC_NOT_FOUND:
                return None
            raise
        return int(said.partitions)

    async def register(self, topic: str, schema: Any) -> bytes:
        """The version of a schema among those of a topic, one of its partitions. Raises HelenusError."""
        connection = await self.broker(topic)
        try:
            said = await connection.ask("schema", topic=topic, schema=schema)
        except Answered as error:
            if error.code != TOPIC_NOT_FOUND:
                raise
            # A new topic's partitions are there when a producer has come to them.
            await connection.ask("producer", topic=topic, producer_id=0)
            connection.write(command("close_producer", producer_id=0, request_id=0))
            said = await connection.ask("schema", topic=topic, schema=schema)
        return bytes(said.schema_version)

    async def schema(self, topic: str) -> Any:
        """The latest schema of a topic. Raises HelenusError."""
        connection = await self.broker(topic)
        return (await connection.ask("get_schema", topic=topic)).schema

    def close(self) -> None:
        """Drop all connections at once."""
        for opening in list(self._connections.values()):
            if opening.done() and not opening.cancelled() and not opening.exception():
                opening.result().fail(HelenusError(Kind.BROKER_UNREACHABLE, "closed"))
            else:
                opening.cancel()

    async def _open(self, address: Address) -> Connection:
        loop = asyncio.get_running_loop()
        connection = Connection(address, self._access.token, self._forget)
        tls = {"ssl": self._tls, "server_hostname": address.host} if address.tls else {}
        try:
            opening = loop.create_connection(lambda: connection, address.host, address.port, **tls)  # type: ignore[call-overload]
            await asyncio.wait_for(opening, _CONNECT_TIMEOUT)
            await asyncio.wait_for(asyncio.shield(connection.ready), _CONNECT_TIMEOUT)
        except asyncio.TimeoutError:
            what = f"Pulsar does not answer within {_CONNECT_TIMEOUT:.0f} s"
            raise HelenusError(Kind.BROKER_UNREACHABLE, what, str(address)) from None
        except ssl.SSLCertVerificationError as error:
            advice = "does pulsar.tls.cafile name who signed the broker's certificate?"
            what = f"Pulsar: certificate verify failed: {error.verify_message}; {advice}"
            raise HelenusError(Kind.BROKER_REFUSED, what, str(address)) from None
        except ssl.SSLError as error:
            what = f"Pulsar: {error.reason or error}; is this the port for pulsar+ssl://?"
            raise HelenusError(Kind.BROKER_UNREACHABLE, what, str(address)) from None
        except (OSError, OverflowError, UnicodeError) as error:  # the last two for what is no port, and no host
            why = getattr(error, "strerror", None) or error
            raise HelenusError(Kind.BROKER_UNREACHABLE, f"Pulsar: {why}", str(address)) from None
        finally:
            if not connection.ready.done() or connection.ready.cancelled():
                connection.fail(HelenusError(Kind.BROKER_UNREACHABLE, "Pulsar: not connected", str(address)))
        return connection

    def _forget(self, connection: Connection) -> None:
        opening = self._connections.get(connection.address)
        with contextlib.suppress(asyncio.InvalidStateError, asyncio.CancelledError):
            if opening is not None and not opening.exception() and opening.result() is connection:
                del self._connections[connection.address]
