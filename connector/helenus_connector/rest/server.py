"""The worker's listener: Kafka Connect's REST API, `/metrics` and `/health`, with TLS and a password where set."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import unquote

import structlog
import uvicorn
from anyio import CapacityLimiter, to_thread
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from helenus_connector import metrics
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.connectors import Connectors
from helenus_connector.history import History
from helenus_connector.log.choice import events_log
from helenus_connector.rest import _plugins as rest_plugins
from helenus_connector.rest._access import OPEN, LoginCheck, OwnPages, error_response
from helenus_connector.rest._call import Handler, Resources, RestCall
from helenus_connector.rest._connectors import ConnectorResources
from helenus_connector.rest._forwarding import LeaderForwarder
from helenus_connector.rest._limits import Protocol, RequestLimits, read_json
from helenus_connector.rest._node_losses import NodeLossResources
from helenus_connector.rest._overview import OverviewResources
from helenus_connector.rest._snapshots import SnapshotResources
from helenus_connector.rest._verifications import VerificationResources
from helenus_connector.rest.listener import listen
from helenus_connector.snapshot.snapshots import Snapshots
from helenus_connector.verify.verifications import Verifications
from helenus_schemas import __version__
from helenus_schemas.errors import HelenusError
from helenus_schemas.service import page
from helenus_schemas.service.connections import BACKLOG, HEAD_BYTES, BoundedListener
from helenus_schemas.service.listener_tls import server_tls
from helenus_schemas.service.monitoring import HEADERS, Ready, is_loopback

_log = structlog.get_logger(__name__)
_QUICK = ("/health", "/health/ready", "/metrics")
"""They ask no server, and have threads of their own: others may all wait for servers that are away."""
_QUICK_THREADS = 4
_PATH = 200  # characters of a path in a line of log
_TICK_S = 1.0
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_OTHER_FORMS = {"/", "/metrics", "/health/ready", OPEN}
"""Paths whose answers are not JSON, or not always."""
_PROCESS_RESOURCES: Resources = {
    OPEN: {"GET": lambda _: PlainTextResponse("live\n")},
    "/metrics": {"GET": lambda _: Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)},
}
"""Resources of every worker, whether it runs connectors or not."""


class _Server(uvicorn.Server):
    """uvicorn's own looks ten times a second whether it is to end, a fifth of what an idle worker takes. This one looks
    once a second, and when it is to end.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._wake: Callable[[], object] = lambda: None

    async def main_loop(self) -> None:
        ending = asyncio.Event()
        self._wake = partial(asyncio.get_running_loop().call_soon_threadsafe, ending.set)
        while not await self.on_tick(0):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ending.wait(), _TICK_S)

    def end(self) -> None:
        """From another thread."""
        self.should_exit = True
        with suppress(RuntimeError):  # its loop has ended
            self._wake()


class _ShownApplication:
    """An ASGI application that another one can replace between two requests."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class RestListener:
    """Serves in a thread of its own until `shutdown`."""

    def __init__(self, config: uvicorn.Config, listening: BoundedListener, shown: _ShownApplication) -> None:
        self.port: int = listening.getsockname()[1]
        self._shown = shown
        self._server = _Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listening]}, name="rest", daemon=True
        )
        self._thread.start()
        while self._thread.is_alive() and not self._server.started:
            time.sleep(0.005)

    def show(self, app: ASGIApp) -> None:
        """Serve another application from the next request on: `application`'s for a worker that begins to lead its
        group, `member_application`'s for one that no longer does. Requests that are under way end with the one that
        they began with. From any thread.
        """
        self._shown.app = app

    def shutdown(self) -> None:
        """Stop; returns when requests that are under way are answered, or after some seconds."""
        self._server.end()
        self._thread.join(5)


def serve(
    settings: WorkerSettings,
    connectors: Connectors,
    snapshots: Snapshots,
    verifications: Verifications,
    history: History,
    ready: Ready,
    health: Ready,
) -> RestListener:
    """Listen on `listeners`. Raises HelenusError CONFIG for an address that is taken, and for certificates.

    `ready` is about all the work of the worker, `health` about the worker itself.
    """
    return _serve(settings, application(settings, connectors, snapshots, verifications, history, ready, health))


@contextmanager
def serve_standby(settings: WorkerSettings, reason: Callable[[], str]) -> Iterator[None]:
    """Listen on `listeners` meanwhile, as `serve`, for a worker that waits for another one: it is alive and not ready,
    and has nothing else to show. `reason` says what it waits for.
    """

    def standby() -> str:
        return f"standby: {reason()}"

    def refused(_: RestCall) -> Response:
        return error_response(503, standby())

    resources: Resources = {
        "/health": {"GET": lambda _: JSONResponse({"status": "starting", "message": standby()}, 503)},
        "/health/ready": {"GET": lambda _: PlainTextResponse(f"{standby()}\n", 503)},
        **_PROCESS_RESOURCES,
        "/{path:path}": dict.fromkeys(("GET", "POST", "PUT", "PATCH", "DELETE"), refused),
    }
    listener = None
    try:
        listener = _serve(settings, _guarded(settings, resources))
    except HelenusError as error:  # the other worker may be on this machine, and listen there
        _log.warning("standby.not_listening", reason=str(error))
    try:
        yield
    finally:
        if listener is not None:
            listener.shutdown()


def serve_member(
    settings: WorkerSettings, leader: Callable[[], str | None], standby: Callable[[], str]
) -> RestListener:
    """Listen on `listeners` as `serve`, with `member_application`, for a worker of a group that another one leads."""
    return _serve(settings, member_application(settings, leader, standby))


def _serve(settings: WorkerSettings, app: ASGIApp) -> RestListener:
    host, _ = settings.listener
    secret = settings.rest_basic_auth_user_info
    context = server_tls(settings) if settings.secure else None
    listening = listen(settings)
    shown = _ShownApplication(app)
    config = uvicorn.Config(
        RequestLimits(shown, listening),
        lifespan="off",
        ws="none",
        http=Protocol,
        loop="asyncio",  # which accepts by the listener's own method
        log_config=None,
        access_log=False,
        server_header=False,
        headers=list(HEADERS.items()),
        backlog=BACKLOG,
        h11_max_incomplete_event_size=HEAD_BYTES,
        timeout_graceful_shutdown=2,
    )
    config.load()
    config.ssl = context
    if _is_open(settings):
        advice = "set rest.basic.auth.user.info: everybody who reaches it may change connectors"
        _log.warning("rest.open", listeners=settings.listeners, advice=advice)
    elif not is_loopback(host) and secret and not settings.secure:
        _log.warning("rest.plain", listeners=settings.listeners, advice="use https: passwords can be read on the way")
    if settings.config_providers_file_param_allowed_paths and not _has_login(settings):
        advice = "set rest.basic.auth.user.info: whoever reaches the listener may have these files sent anywhere"
        folders = ",".join(settings.config_providers_file_param_allowed_paths)
        _log.warning("rest.references_open", folders=folders, advice=advice)
    return RestListener(config, listening, shown)


def application(
    settings: WorkerSettings,
    connectors: Connectors,
    snapshots: Snapshots,
    verifications: Verifications,
    history: History,
    ready: Ready,
    health: Ready,
) -> ASGIApp:
    """Return what is served, as an ASGI application."""
    resources: Resources = {
        **_Worker(settings, ready, health).resources(),
        **ConnectorResources(connectors, settings.worker_id).resources(),
        **SnapshotResources(snapshots).resources(),
        **VerificationResources(verifications).resources(),
        **NodeLossResources(settings, connectors).resources(),
        **rest_plugins.resources(connectors),
        **OverviewResources(connectors, snapshots, history, ready, writable=not _is_open(settings)).resources(),
    }
    return _guarded(settings, resources)


def member_application(
    settings: WorkerSettings, leader: Callable[[], str | None], standby: Callable[[], str]
) -> ASGIApp:
    """Return what a worker serves that does not lead its group, as an ASGI application: its own health and metrics; all
    else is forwarded to the leader.

    `leader` returns the leader's `http://host:port`, None while it is not known. `standby` says who leads, or begins
    with "starting": only then is the worker not ready. Threads of requests call both.
    """

    def health(_: RestCall) -> Response:
        message = standby()
        if message.startswith("starting"):
            return JSONResponse({"status": "starting", "message": message}, 503)
        return JSONResponse({"status": "healthy", "message": message})

    def is_ready(_: RestCall) -> Response:
        message = standby()
        return PlainTextResponse(f"{message}\n", 503 if message.startswith("starting") else 200)

    forwarder = LeaderForwarder(settings, leader)

    async def forward(request: Request) -> Response:
        answer = await forwarder.forward(request)
        _log_change(request, answer)
        return answer

    resources: Resources = {"/health": {"GET": health}, "/health/ready": {"GET": is_ready}, **_PROCESS_RESOURCES}
    return _guarded(settings, resources, [Route("/{path:path}", forward, methods=_METHODS)])


def _guarded(settings: WorkerSettings, resources: Resources, further_routes: Sequence[Route] = ()) -> ASGIApp:
    """Return these resources, for those who may see them. Those of `further_routes` come after them."""
    secret = settings.rest_basic_auth_user_info
    host, _ = settings.listener
    names = {name.lower() for name in (host, settings.rest_advertised_host_name) if name}
    quick = CapacityLimiter(_QUICK_THREADS)
    app = Starlette(
        routes=[
            *(
                Route(
                    path,
                    _endpoint(handlers, path not in _OTHER_FORMS, quick if path in _QUICK else None),
                    methods=_METHODS,
                )
                for path, handlers in resources.items()
            ),
            *further_routes,
        ],
        middleware=[
            Middleware(OwnPages, names=names if is_loopback(host) else None, writable=not _is_open(settings)),
            Middleware(LoginCheck, user_info=secret.get_secret_value() if secret else None),
        ],
        exception_handlers={HTTPException: _refused, HelenusError: _failed, Exception: _failed},
    )
    app.router.redirect_slashes = False
    return app


class _Worker:
    """What concerns the worker as a whole."""

    def __init__(self, settings: WorkerSettings, ready: Ready, health: Ready) -> None:
        self._log = events_log(settings)
        self._ready = ready
        self._trouble = health
        self._cluster: str | None = None
        self._page = page.load("helenus_connector.rest", "page.html")

    def resources(self) -> Resources:
        return {
            "/": {"GET": self._root},
            "/health": {"GET": self._health},
            "/health/ready": {"GET": self._is_ready},
            **_PROCESS_RESOURCES,
        }

    def _root(self, call: RestCall) -> Response:
        """The page for browsers, and for all others what Kafka Connect answers."""
        if page.is_wanted(call.accept):
            return Response(self._page.body, media_type="text/html", headers=dict(self._page.headers))
        if self._cluster is None:
            self._cluster = self._log.cluster()
        return JSONResponse(
            {"version": __version__, "commit": "unknown", "kafka_cluster_id": self._cluster}, headers={"Vary": "Accept"}
        )

    def _health(self, _: RestCall) -> Response:
        """As in Kafka Connect: a check of this may restart the worker, which helps no connector that failed."""
        reason = self._trouble()
        if reason is None:
            message = f"Worker has completed startup and is ready to handle requests.{metrics.schemas_note()}"
            return JSONResponse({"status": "healthy", "message": message})
        status = "starting" if reason.startswith("starting") else "unhealthy"
        return JSONResponse({"status": status, "message": reason}, 503 if status == "starting" else 500)

    def _is_ready(self, _: RestCall) -> Response:
        reason = self._ready()
        return PlainTextResponse(f"{reason or 'ready'}\n", 200 if reason is None else 503)


def _endpoint(handlers: dict[str, Handler], is_json: bool, limiter: CapacityLimiter | None) -> Callable[[Request], Any]:
    """`limiter` bounds the threads; None for the one that the rest share, which has forty."""

    async def endpoint(request: Request) -> Response:
        if request.method == "OPTIONS":
            allowed = ", ".join([*handlers, *(["HEAD"] if "GET" in handlers else []), "OPTIONS"])
            return PlainTextResponse(allowed, headers={"Allow": allowed})
        handler = handlers.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            raise HTTPException(405)
        path = {key: unquote(value) for key, value in request.path_params.items()}
        accept = request.headers.get("accept", "")
        if is_json and not _takes_json(accept):
            raise HTTPException(406)
        call = RestCall(str(request.base_url), path, request.query_params, await read_json(request), accept)
        # However busy the threads are, this process lives.
        is_inline = request.scope["path"] == OPEN
        answer = handler(call) if is_inline else await to_thread.run_sync(handler, call, limiter=limiter)
        _log_change(request, answer)
        return answer

    return endpoint


def _log_change(request: Request, answer: Response) -> None:
    """Log a call that was to change something."""
    if request.method not in ("GET", "HEAD"):
        client = request.client.host if request.client else ""
        _log.info(
            "rest.call", method=request.method, path=request.url.path[:_PATH], status=answer.status_code, client=client
        )


def _takes_json(accept: str) -> bool:
    """Return whether a header `Accept` allows JSON; a missing one allows all."""
    ranges = [part.replace(" ", "").lower().partition(";") for part in accept.split(",") if part.strip()]
    accepted = {name for name, _, parameters in ranges if not re.search(r"(^|;)q=0(\.0*)?(;|$)", parameters)}
    return not ranges or not accepted.isdisjoint(("*/*", "application/*", "application/json"))


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    has_own = error.detail != HTTPException(error.status_code).detail
    return error_response(error.status_code, error.detail if has_own else f"HTTP {error.status_code} {error.detail}")


def _failed(_: Request, error: Exception) -> Response:
    return error_response(500, str(error))


def _is_open(settings: WorkerSettings) -> bool:
    """Return whether more than this machine reach the listener, and it asks for no login."""
    return not (is_loopback(settings.listener[0]) or _has_login(settings))


def _has_login(settings: WorkerSettings) -> bool:
    return bool(settings.rest_basic_auth_user_info or settings.listeners_https_ssl_cafile)
