"""A client of a Pulsar cluster: which broker has a topic, a connection to each, and questions about topics."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from typing import Any

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.pulsar.connection import Access, Address, Connection
from helenus_sinks.pulsar.errors import TOPIC_NOT_FOUND, Answered, pulsar_error
from helenus_sinks.pulsar.wire import command

_CONNECT_TIMEOUT = 5.0
_MAX_LOOKUPS = 20
_CONNECT = 1


def end_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop that is not running; its tasks are cancelled first."""
    while tasks := asyncio.all_tasks(loop):  # one that ends may have begun another
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(asyncio.sleep(0))  # in which sockets are closed
    loop.close()


class Client:
    """Finds brokers and keeps one connection to each. Everything here runs in one event loop.

    Whoever makes a consumer or a producer takes the next of `numbers` for it: a broker knows those of a connection by
    them.
    """

    def __init__(self, url: str, access: Access) -> None:
        self._service = Address.parse(url)
        self._access = access
        self._tls = access.context() if any(address.tls for address in self._service) else None
        self._connections: dict[Address, asyncio.Future[Connection]] = {}
        self.numbers = itertools.count(1)

    async def service(self) -> Connection:
        """Return a connection to any address of the service. Raises the last address's HelenusError if all fail."""
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
        """Return the connection to an address, shared by all callers. Raises HelenusError."""
        opening = self._connections.get(address)
        if opening is None:
            opening = self._connections[address] = asyncio.ensure_future(self._open(address))
            opening.add_done_callback(lambda future: future.cancelled() or future.exception())
        try:
            connection = await asyncio.shield(opening)
        except HelenusError:
            if self._connections.get(address) is opening:
                del self._connections[address]
            raise
        return connection

    async def broker(self, topic: str) -> Connection:
        """Return a connection to the broker that has the topic. Raises HelenusError."""
        connection = await self.service()
        authoritative = False
        for _ in range(_MAX_LOOKUPS):
            reply = await connection.ask("lookup", topic=topic, authoritative=authoritative)
            url = reply.brokerServiceUrlTls if connection.address.tls else reply.brokerServiceUrl
            (address,) = Address.parse(url)[:1]
            if reply.proxy_through_service_url and (address.host, address.port) != (
                connection.address.host,
                connection.address.port,
            ):
                address = Address(
                    connection.address.host, connection.address.port, connection.address.tls, str(address)
                )
            next_connection = await self.connection(address)
            if reply.response == _CONNECT:
                return next_connection
            connection, authoritative = next_connection, reply.authoritative
        raise pulsar_error(Kind.BROKER_UNREACHABLE, f"Pulsar: brokers send us round in circles for {topic}")

    async def partitions(self, topic: str) -> int | None:
        """Return how many partitions a topic has, 0 if it is not partitioned; None if there is no such topic.

        Raises HelenusError.
        """
        service = await self.service()
        try:
            reply = await service.ask("partitioned_metadata", topic=topic, metadata_auto_creation_enabled=False)
        except Answered as error:
            if error.code == TOPIC_NOT_FOUND:
                return None
            raise
        return int(reply.partitions)

    async def register(self, topic: str, schema: Any) -> bytes:
        """Register a schema at a topic, or one of its partitions; return its version. Raises HelenusError."""
        connection = await self.broker(topic)
        try:
            reply = await connection.ask("schema", topic=topic, schema=schema)
        except Answered as error:
            if error.code != TOPIC_NOT_FOUND:
                raise
            # A new topic's partition exists once it had a producer.
            await connection.ask("producer", topic=topic, producer_id=0)
            connection.write(command("close_producer", producer_id=0, request_id=0))
            reply = await connection.ask("schema", topic=topic, schema=schema)
        return bytes(reply.schema_version)

    async def schema(self, topic: str, version: int | None = None) -> Any:
        """Return a version of a topic's schema, by default the latest. Raises HelenusError."""
        connection = await self.broker(topic)
        wanted = {} if version is None else {"schema_version": version.to_bytes(8, "big")}
        return (await connection.ask("get_schema", topic=topic, **wanted)).schema

    def drop_idle_connections(self) -> None:
        """Close the connections on which nobody waits for an answer. The next request makes new ones."""
        for connection in self._open_connections():
            if not connection.is_asked:
                connection.fail(pulsar_error(Kind.BROKER_UNREACHABLE, "closed"))

    def close(self) -> None:
        """Drop all connections at once, and those that are being made."""
        for connection in self._open_connections():
            connection.fail(pulsar_error(Kind.BROKER_UNREACHABLE, "closed"))
        for opening in list(self._connections.values()):
            opening.cancel()

    def _open_connections(self) -> list[Connection]:
        return [
            opening.result()
            for opening in self._connections.values()
            if opening.done() and not opening.cancelled() and not opening.exception()
        ]

    async def _open(self, address: Address) -> Connection:
        loop = asyncio.get_running_loop()
        connection = Connection(address, self._access.token, self._forget)
        tls = {"ssl": self._tls, "server_hostname": address.host} if address.tls else {}
        try:
            opening = loop.create_connection(lambda: connection, address.host, address.port, **tls)  # type: ignore[call-overload]
            await asyncio.wait_for(opening, _CONNECT_TIMEOUT)
            await asyncio.wait_for(asyncio.shield(connection.ready), _CONNECT_TIMEOUT)
        except asyncio.TimeoutError:
            message = f"Pulsar does not answer within {_CONNECT_TIMEOUT:.0f} s"
            raise pulsar_error(Kind.BROKER_UNREACHABLE, message, str(address)) from None
        except ssl.SSLCertVerificationError as error:
            advice = "does pulsar.tls.cafile name who signed the broker's certificate?"
            message = f"Pulsar: certificate verify failed: {error.verify_message}; {advice}"
            raise pulsar_error(Kind.BROKER_REFUSED, message, str(address)) from None
        except ssl.SSLError as error:
            message = f"Pulsar: {error.reason or error}; is this the port for pulsar+ssl://?"
            raise pulsar_error(Kind.BROKER_UNREACHABLE, message, str(address)) from None
        except (OSError, OverflowError, UnicodeError) as error:  # the last two for an illegal port or host
            why = getattr(error, "strerror", None) or error
            raise pulsar_error(Kind.BROKER_UNREACHABLE, f"Pulsar: {why}", str(address)) from None
        finally:
            if not connection.ready.done() or connection.ready.cancelled():
                connection.fail(pulsar_error(Kind.BROKER_UNREACHABLE, "Pulsar: not connected", str(address)))
        return connection

    def _forget(self, connection: Connection) -> None:
        opening = self._connections.get(connection.address)
        with contextlib.suppress(asyncio.InvalidStateError, asyncio.CancelledError):
            if opening is not None and not opening.exception() and opening.result() is connection:
                del self._connections[connection.address]
