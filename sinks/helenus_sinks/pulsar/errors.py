"""Pulsar's errors as ours: kinds by their codes in PulsarApi.proto, with advice about Pulsar's settings."""

from __future__ import annotations

from helenus_schemas.errors import HelenusError, Kind

AUTHENTICATION, AUTHORIZATION, NOT_READY, TOPIC_NOT_FOUND, INCOMPATIBLE_SCHEMA, FENCED = 3, 4, 6, 11, 18, 25
_REFUSED = {AUTHENTICATION, AUTHORIZATION, TOPIC_NOT_FOUND, 15, 17, 22, FENCED}  # also terminated, illegal, not allowed
_ADVICE = {
    Kind.BROKER_UNREACHABLE: "check pulsar.service.url and that the broker is up",
    Kind.BROKER_REFUSED: (
        "check pulsar.auth.token, pulsar.tls.*, the topic's name, and what the token's role may do in the namespace"
    ),
}
_MAX_TEXT = 400
_NO_UPDATES = "schema auto updating is disabled"
_STORAGE_ERROR = (
    ".SchemaException: "  # the class itself: schemas can't be read or stored just now; its subclasses refuse
)


def advice(kind: Kind) -> str:
    """Return what to do about an error of Pulsar's; empty: as for every error of this kind."""
    return _ADVICE.get(kind, "")


def pulsar_error(kind: Kind, message: str, where: str = "") -> HelenusError:
    """Return a HelenusError with advice about Pulsar."""
    return HelenusError(kind, message, where, advice(kind))


class Answered(HelenusError):
    """A broker's error answer, and its code."""

    def __init__(self, kind: Kind, message: str, where: str = "", code: int = 0) -> None:
        super().__init__(kind, message, where, advice(kind))
        self.code = code


def broker_error(code: int, message: str, where: str) -> HelenusError:
    """Return a broker's error answer as ours, with the broker's own words."""
    kind = Kind.BROKER_REFUSED if code in _REFUSED else Kind.BROKER_UNREACHABLE
    text = " ".join(message.split()) or "it says no more"
    if len(text) > _MAX_TEXT:  # with two schemas in it, say
        text = text.partition(" caused by ")[0][:_MAX_TEXT]
    if _NO_UPDATES in message:
        kind = Kind.BROKER_REFUSED
        text += "; allow it by isAllowAutoUpdateSchema of the namespace, or upload what helenus-connector schemas says"
    elif _STORAGE_ERROR in message:
        kind = Kind.BROKER_UNREACHABLE
    elif code == INCOMPATIBLE_SCHEMA or "SchemaParseException" in message or "SchemaException" in message:
        kind = Kind.REGISTRY_REFUSED
    return Answered(kind, f"Pulsar: {text}", where, code)
