"""Exports spans over OTLP, by the official SDK, which the extra `otel` brings: it is loaded where spans are exported.

Nobody waits for it. A span goes into a bounded queue, a thread of the SDK sends what is there, and what finds no room,
or no receiver, is counted and dropped. OpenTelemetry's own variables configure it, such as
`OTEL_EXPORTER_OTLP_ENDPOINT`; what they hold, headers among them, is never logged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import Counter

from helenus_schemas import __version__
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.spans import FinishedSpan, SpanContext
from helenus_schemas.settings.fields import http_address
from helenus_schemas.settings.shared import TraceSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

NO_OTEL = "install the extra otel: pip install '.[otel]' in a checkout, or 'helenus-….whl[otel]'"
_RATIO = 0.01
"""Of changes, unless it is set: one in a hundred shows where time goes. A span takes some 20 µs, so 0.2 µs an event."""
_RATIO_SAMPLERS = ("traceidratio", "parentbased_traceidratio")
_FIXED_SAMPLERS = {"always_on": 1.0, "parentbased_always_on": 1.0}
_OFF_SAMPLERS = ("always_off", "parentbased_always_off")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_CLOSE_S = 2.0  # s at the end for what is in the queue: an agent has ten to stop
_MAX_QUEUE = 2048  # the SDK's own default
_log = structlog.get_logger(__name__)


def traced_ratio(settings: TraceSettings, environment: Mapping[str, str] | None = None) -> float | None:
    """Return which part of the changes is traced; None if nothing is. Properties take precedence over OpenTelemetry's
    variables. Raises HelenusError(CONFIG), which never shows the value of a variable that may hold a login.
    """
    variables = os.environ if environment is None else environment
    exporter = settings.otel_traces_exporter or variables.get("OTEL_TRACES_EXPORTER", "").strip() or "none"
    if exporter == "none" or variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if exporter != "otlp":
        raise _wrong("OTEL_TRACES_EXPORTER", "there is otlp and none")
    if (protocol := _first(variables, _PROTOCOLS))[1] not in ("", "http/protobuf"):
        raise _wrong(protocol[0], "spans are sent by http/protobuf alone: leave it out, and name an endpoint for that")
    name, endpoint = _first(variables, _ENDPOINTS)
    try:
        if endpoint:
            http_address(endpoint)
    except ValueError as error:
        advice = "; a login goes into OTEL_EXPORTER_OTLP_HEADERS" if "login" in str(error) else ""
        raise _wrong(name, f"{error}{advice}") from None
    sampler = variables.get("OTEL_TRACES_SAMPLER", "").strip()
    if sampler in _OFF_SAMPLERS:
        return None
    if settings.otel_traces_sampler_arg is not None:
        return settings.otel_traces_sampler_arg
    if not sampler:
        return _RATIO
    if sampler in _RATIO_SAMPLERS:
        return _parse_ratio(variables.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1")
    if sampler not in _FIXED_SAMPLERS:
        raise _wrong(
            "OTEL_TRACES_SAMPLER", f"there is {', '.join((*_RATIO_SAMPLERS, *_FIXED_SAMPLERS, *_OFF_SAMPLERS))}"
        )
    return _FIXED_SAMPLERS[sampler]


def _first(variables: Mapping[str, str], names: Iterable[str]) -> tuple[str, str]:
    return next(((name, text) for name in names if (text := variables.get(name, "").strip())), ("", ""))


def _parse_ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise _wrong("OTEL_TRACES_SAMPLER_ARG", "give a number from 0 to 1")
    return ratio


def _wrong(variable: str, reason: str) -> HelenusError:
    return HelenusError(Kind.CONFIG, reason, f"the variable {variable}", "correct it, or set otel.traces.exporter=none")


def check_traces(settings: TraceSettings) -> None:
    """Raise HelenusError(CONFIG) for traces that are switched on and can't be exported, as without the extra `otel`."""
    if traced_ratio(settings) is None:
        return
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace.export  # noqa: F401
    except ImportError as error:
        raise HelenusError(Kind.CONFIG, f"traces need more than is installed ({error.msg})", advice=NO_OTEL) from None


class SpanQueue:
    """Takes finished spans of a command named `service`. `spans_total` counts what becomes of them, by outcome:
    exported, failed (the receiver did not take them), dropped (the queue was full). Raises as `check_traces`.
    """

    def __init__(self, settings: TraceSettings, service: str, spans_total: Counter) -> None:
        check_traces(settings)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        # It logs a line for each attempt, and headers that it can't parse. What an operator needs is in lines of ours.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._total = spans_total
        self._lock = threading.Lock()
        self._waiting = 0
        self._failed = False
        self._limit = _positive(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", ""), _MAX_QUEUE)
        own = {"service.instance.id": f"{socket.gethostname()}:{os.getpid()}", "service.version": __version__}
        # What OpenTelemetry's variables say of the process takes precedence.
        own["service.name"] = os.environ.get("OTEL_SERVICE_NAME") or service
        self._resource = Resource.create({**own, **OTELResourceDetector().detect().attributes})
        try:
            self._processor = BatchSpanProcessor(_counted(OTLPSpanExporter(), self), max_queue_size=self._limit)
        except (ValueError, OSError) as error:  # of a variable, or a file of certificates; headers raise none
            problem = f"OpenTelemetry refuses a variable OTEL_…: {error}"
            raise HelenusError(Kind.CONFIG, problem, service) from None

    def add(self, spans: Iterable[FinishedSpan]) -> None:
        """Add spans to the queue, as far as there is room. Any thread may call it; it never waits for the receiver."""
        for span in spans:
            with self._lock:
                has_room = self._waiting < self._limit
                self._waiting += has_room
            if has_room:
                self._processor.on_end(_readable(span, self._resource))
            else:
                self._total.labels("dropped").inc()

    def close(self) -> None:
        """Export what is in the queue, for two seconds at most, and end."""
        ending = threading.Thread(target=self._processor.shutdown, name="spans", daemon=True)
        ending.start()
        ending.join(_CLOSE_S)
        if ending.is_alive():
            self._processor.span_exporter.shutdown()

    def note_export(self, count: int, is_exported: bool) -> None:
        """Note what became of so many spans. The thread that exports calls it."""
        with self._lock:
            self._waiting -= count
        self._total.labels("exported" if is_exported else "failed").inc(count)
        if is_exported == self._failed:
            self._failed = not is_exported
            if is_exported:
                _log.info("traces.exported")
            else:
                _log.warning(
                    "traces.not_exported",
                    spans=count,
                    then="changes are published all the same; spans that find no receiver are dropped and counted",
                )


def _positive(text: str, default: int) -> int:
    return int(text) if text.isdigit() and int(text) else default


def _counted(exporter: SpanExporter, queue: SpanQueue) -> SpanExporter:
    """Return an exporter that tells the queue what becomes of spans."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class CountedExporter(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = SpanExportResult.FAILURE
            with contextlib.suppress(Exception):  # of whatever kind: the next spans may well arrive
                result = exporter.export(spans)
            queue.note_export(len(spans), result is SpanExportResult.SUCCESS)
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

    return CountedExporter()


def _readable(span: FinishedSpan, resource: Any) -> ReadableSpan:
    """Return a span as the SDK has it. It made no such span: those of a change were not begun where they are ended."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode

    return ReadableSpan(
        name=span.name,
        context=_sdk_context(span.context, is_remote=False),
        parent=None if span.parent is None else _sdk_context(span.parent),
        resource=resource,
        attributes=span.attributes,
        links=[Link(_sdk_context(context)) for context in span.links],
        kind=SpanKind[span.kind.upper()],
        status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.start_ns,
        end_time=max(span.start_ns, span.end_ns),
        instrumentation_scope=InstrumentationScope("helenus", __version__),
    )


def _sdk_context(context: SpanContext, is_remote: bool = True) -> Any:
    from opentelemetry.trace import SpanContext as SdkContext
    from opentelemetry.trace import TraceFlags

    return SdkContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote, TraceFlags(TraceFlags.SAMPLED))
