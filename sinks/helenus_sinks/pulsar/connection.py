"""One connection to a Pulsar broker: the handshake, requests and their answers, and reports to its producers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.fields import pulsar_addresses
from helenus_sinks.pulsar.errors import broker_error, pulsar_error
from helenus_sinks.pulsar.wire import FRAME_MAX, PROTOCOL_VERSION, command, commands

_REQUEST_TIMEOUT = 20.0
_KEEP_ALIVE = 30.0  # s of silence after which a ping is sent; as long again until the broker counts as gone
_CLIENT = "helenus"


@dataclass(frozen=True)
class Address:
    """Where to connect: a broker, or a proxy that takes us to the broker `behind` it."""

    host: str
    port: int
    tls: bool
    behind: str = ""

    @staticmethod
    def parse(url: str) -> list[Address]:
        """Return the addresses in `pulsar://host[:port][,host[:port]...]`, or `pulsar+ssl://`. Raises
        HelenusError(CONFIG).
        """
        try:
            scheme, hosts = pulsar_addresses(url)
        except ValueError:
            message = f"pulsar.service.url: not pulsar://host:port or pulsar+ssl://host:port: {url}"
            raise HelenusError(Kind.CONFIG, message) from None
        tls = scheme == "pulsar+ssl"
        return [Address(host, port or (6651 if tls else 6650), tls) for host, port in hosts]

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Access:
    """A client's token, and how it verifies brokers. The token is left out of the object's text."""

    token: str | None = None
    cafile: Path | None = None
    check_hostname: bool = True

    def __repr__(self) -> str:
        return "Access()"

    @property
    def bundle(self) -> str | None:
        """Return a file of authorities, for a client that does not use the system's; None if the system has no such
        file.
        """
        if self.cafile:
            return str(self.cafile)
        system = ssl.get_default_verify_paths()
        # Debian's OpenSSL knows the directory alone; this file in it has all of them.
        files = (system.cafile, f"{system.capath}/ca-certificates.crt")
        return next((file for file in files if file and Path(file).is_file()), None)

    def context(self) -> ssl.SSLContext:
        """Return the context for TLS. Raises HelenusError(CONFIG)."""
        try:
            context = ssl.create_default_context(cafile=str(self.cafile) if self.cafile else None)
        except OSError as error:
            raise HelenusError(Kind.CONFIG, f"pulsar.tls.cafile: cannot read it: {error}", str(self.cafile)) from None
        context.check_hostname = self.check_hostname
        return context


class Producing(Protocol):
    """A producer, as its connection sees it: called with a broker's messages about it."""

    def receipt(self, sequence: int, message_id: Any) -> None: ...
    def refused(self, code: int, message: str) -> None: ...
    def lost(self, why: str) -> None: ...


class Consuming(Protocol):
    """A consumer, as its connection sees it: called with the messages that the broker pushes, and what follows them in
    their frames.
    """

    def message(self, message: Any, data: bytes) -> None: ...
    def lost(self, why: str) -> None: ...


class Connection(asyncio.Protocol):
    """One connection. `largest` is the largest message that the broker takes.

    `consumers`: added by their users, removed when the broker closes them; None for one that reads nothing.
    """

    def __init__(self, address: Address, token: str | None, on_close: Callable[[Connection], None]) -> None:
        self.address = address
        self.largest = FRAME_MAX
        self.producers: dict[int, Producing] = {}
        self.consumers: dict[int, Consuming | None] = {}
        self._token = token
        self._on_close = on_close
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._pending_answers: dict[int, asyncio.Future[Any]] = {}
        self._request_number = 0
        self._received = True
        self._timer: asyncio.TimerHandle | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self.closed:  # meanwhile nobody waits for it
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
        self._received = True
        self._buffer += data
        try:
            for name, reply, payload in commands(self._buffer):
                if name == "message":
                    if consumer := self.consumers.get(reply.consumer_id):
                        consumer.message(reply, payload)
                else:
                    self._handle_command(name, reply)
        except ValueError as error:
            self.fail(pulsar_error(Kind.BROKER_UNREACHABLE, f"Pulsar: {error}", str(self.address)))

    def connection_lost(self, error: Exception | None) -> None:
        why = f": {error}" if error else ""
        self.fail(pulsar_error(Kind.BROKER_UNREACHABLE, f"Pulsar: the connection was closed{why}", str(self.address)))

    def write(self, data: bytes) -> None:
        """Send bytes; dropped if the connection is gone: its producers know."""
        if self._transport is not None and not self.closed:
            self._transport.write(data)

    @property
    def is_asked(self) -> bool:
        """Return whether somebody waits for an answer."""
        return bool(self._pending_answers)

    async def ask(self, name: str, **fields: Any) -> Any:
        """Send a request; return its answer. Raises HelenusError: an error answer, or none in time."""
        self._request_number += 1
        number = self._request_number
        answer = self._pending_answers[number] = asyncio.get_running_loop().create_future()
        try:
            if self.closed:
                raise pulsar_error(Kind.BROKER_UNREACHABLE, "Pulsar: the connection was closed", str(self.address))
            self.write(command(name, request_id=number, **fields))
            return await asyncio.wait_for(answer, _REQUEST_TIMEOUT)
        except asyncio.TimeoutError:
            message = f"Pulsar does not answer within {_REQUEST_TIMEOUT:.0f} s"
            self.fail(pulsar_error(Kind.BROKER_UNREACHABLE, message, str(self.address)))
            raise pulsar_error(Kind.BROKER_UNREACHABLE, message, str(self.address)) from None
        finally:
            self._pending_answers.pop(number, None)

    def fail(self, error: HelenusError) -> None:
        """Close at once, and report the error to all requests and producers."""
        if self.closed:
            return
        self.closed = True
        self._on_close(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        for answer in [self.ready, *self._pending_answers.values()]:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # marks it as seen: nobody may wait for it
        for producer in list(self.producers.values()):
            producer.lost(error.what)
        self.producers.clear()
        for consumer in list(self.consumers.values()):
            if consumer is not None:
                consumer.lost(error.what)
        self.consumers.clear()

    def _handle_command(self, name: str, reply: Any) -> None:
        if name == "send_receipt":
            if producer := self.producers.get(reply.producer_id):
                producer.receipt(reply.sequence_id, reply.message_id)
        elif name == "send_error":
            if producer := self.producers.get(reply.producer_id):
                producer.refused(reply.error, reply.message)
        elif name == "close_producer":
            # The topic is unloaded, or deleted: the next lookup shows which.
            if producer := self.producers.pop(reply.producer_id, None):
                producer.lost("the broker closed the producer")
        elif name == "ping":
            self.write(command("pong"))
        elif name == "connected":
            self.largest = reply.max_message_size or FRAME_MAX
            if not self.ready.done():
                self.ready.set_result(None)
        elif name == "auth_challenge":
            login = {"auth_method_name": "token", "auth_data": (self._token or "").encode()}
            fields = {"client_version": _CLIENT, "response": login, "protocol_version": PROTOCOL_VERSION}
            self.write(command("auth_response", **fields))
        elif name == "error" and not self.ready.done():
            self.fail(broker_error(reply.error, reply.message, str(self.address)))
        elif name == "close_consumer":
            if consumer := self.consumers.pop(reply.consumer_id, None):
                consumer.lost("the broker closed the consumer")
        elif name != "pong":
            self._answer(name, reply)

    def _answer(self, name: str, reply: Any) -> None:
        if name == "producer_success" and reply.HasField("producer_ready") and not reply.producer_ready:
            return  # another one has exclusive access: the answer comes when that one is gone
        answer = self._pending_answers.get(reply.request_id)
        if answer is None or answer.done():
            return
        code, message = ("error_code", "error_message") if name.endswith("schema_response") else ("error", "message")
        if code in reply.DESCRIPTOR.fields_by_name and reply.HasField(code):
            answer.set_exception(broker_error(getattr(reply, code), getattr(reply, message), str(self.address)))
        else:
            answer.set_result(reply)

    def _keep_alive(self) -> None:
        if not self._received:
            message = f"Pulsar does not answer for {_KEEP_ALIVE:.0f} s"
            self.fail(pulsar_error(Kind.BROKER_UNREACHABLE, message, str(self.address)))
            return
        self._received = False
        self.write(command("ping"))
        self._timer = asyncio.get_running_loop().call_later(_KEEP_ALIVE, self._keep_alive)
