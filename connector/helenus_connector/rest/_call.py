"""What a request to the REST API asks for, read and checked as Kafka Connect does.

Whatever is wrong is an HTTPException with Kafka Connect's status and message. For a malformed body it answers 500,
though the caller is at fault; so do we, since its clients expect that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.responses import Response

from helenus_connector.config.connector import is_class
from helenus_connector.config.model import Model
from helenus_connector.control.connectors import UnknownConnector
from helenus_connector.rest import _definitions as plugin
from helenus_schemas.settings.properties import ConfigError, shown_key


@dataclass(frozen=True)
class RestCall:
    """A request: its URL, the parts of its path, its query, its body as JSON, None if it has none, and what
    it accepts."""

    base: str
    path: Mapping[str, str]
    query: QueryParams
    body: Any = None
    accept: str = ""

    @property
    def name(self) -> str:
        """Return the requested connector's name."""
        return self.path["name"]

    def wants(self, flag: str) -> bool:
        """Return whether a flag of the query is true."""
        return self.query.get(flag, "").lower() == "true"

    @property
    def task(self) -> int:
        """Return the requested task's number."""
        if not re.fullmatch(r"\d{1,9}", self.path["task"], re.ASCII):
            raise HTTPException(404)
        return int(self.path["task"])

    def texts(self) -> dict[str, str | None]:
        """The body, a flat JSON object, with its values as text."""
        return texts(self.body)

    def offsets(self) -> dict[str, dict[int, int | None]]:
        """Return topic -> partition -> offset of a body like GET's answer; None for an offset of null."""
        if not isinstance(self.body, dict):
            raise HTTPException(500, "a JSON object with offsets is expected")
        if not (entries := self.body.get("offsets")):
            raise HTTPException(400, "Partitions / offsets need to be provided for an alter offsets request")
        offsets: dict[str, dict[int, int | None]] = {}
        try:
            for entry in entries:
                topic, partition = str(entry["partition"]["topic"]), _whole(entry["partition"]["partition"])
                offset = entry.get("offset")
                offsets.setdefault(topic, {})[partition] = None if offset is None else _whole(offset["offset"])
        except (AttributeError, KeyError, TypeError, ValueError):
            problem = (
                'offsets: each is {"partition": {"topic": TEXT, "partition": NUMBER}, "offset": {"offset": NUMBER}}'
            )
            raise HTTPException(400, problem) from None
        return offsets


Handler = Callable[[RestCall], Response]
Resources = dict[str, dict[str, Handler]]
"""Path -> method -> handler."""


def texts(body: Any) -> dict[str, str | None]:
    """Return a flat JSON object with its values as text, as Kafka Connect takes them."""
    if not isinstance(body, dict):
        raise HTTPException(500, "the configuration is expected, as a JSON object of texts")
    return {key: _text(key, value) for key, value in body.items()}


def _whole(value: object) -> int:
    """Return a whole number of 64 bits, or of its text. Raises ValueError for all else that `int` takes: true, 3.9."""
    is_text = isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value, re.ASCII)
    if is_text or (isinstance(value, int) and not isinstance(value, bool)):
        number = int(cast("str | int", value))
        if -(1 << 63) <= number < 1 << 63:
            return number
    raise ValueError(f"not a whole number: {value!r}")


def _text(key: str, value: object) -> str | None:
    if isinstance(value, (dict, list)):
        raise HTTPException(500, f"{shown_key(key)}: a text is expected")
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def with_name(name: str, properties: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the properties with the connector's name among them. Raises 400 if they have another name."""
    given_name = properties.get("name")
    if given_name is not None and given_name != name:
        problem = f"Connector name configuration ({given_name}) doesn't match connector name in the URL ({name})"
        raise HTTPException(400, problem)
    return {**properties, "name": name}


def checked_properties(
    properties: Mapping[str, str | None],
    stored: Mapping[str, str],
    model: Model,
    file: Mapping[str, str],
    request: Mapping[str, str | None] | None = None,
) -> dict[str, str]:
    """Return properties that a connector can have, with its stored secrets in the place of stars; `file` as of
    `Model.read_settings`. `request` are those of a request that has not all of them.

    Raises 400.
    """
    if not properties.get("connector.class"):
        raise HTTPException(
            400, f"Connector config {{{', '.join(map(shown_key, properties))}}} contains no connector type"
        )
    if not is_class(str(properties["connector.class"])):
        raise HTTPException(400, plugin.unknown(str(properties["connector.class"])))
    texts = {key: value for key, value in properties.items() if value is not None}
    if len(texts) < len(properties):
        raise invalid(["Null value can not be supplied as the configuration value."])
    try:
        restored = plugin.restored(texts, stored)
        if file and not model.names_servers_of(file, restored):
            plugin.refuse_kept(texts, stored, file)
        plugin.refuse_carried(properties if request is None else request, restored, stored, model)
    except ConfigError as error:
        raise invalid(list(map(str, error.problems))) from None
    if problems := plugin.problems(restored, str(restored["name"]), model, file):
        raise invalid(list(map(str, problems)))
    return restored


@contextmanager
def not_found(otherwise: str) -> Iterator[None]:
    """Answer 404 for an unknown connector."""
    try:
        yield
    except UnknownConnector:
        raise HTTPException(404, otherwise) from None


def invalid(reasons: list[str]) -> HTTPException:
    problem = (
        f"Connector configuration is invalid and contains the following {len(reasons)} error(s):\n"
        + "".join(f"{reason}\n" for reason in reasons)
        + "You can also find the above list of errors at the endpoint "
        "`/connector-plugins/{connectorType}/config/validate`"
    )
    return HTTPException(400, problem)
