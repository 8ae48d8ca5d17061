"""`/connectors/{name}/verifications` of the REST API: begin verifications, see how far they are and what they found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from helenus_connector.control.connectors import UnderWay
from helenus_connector.rest._call import Resources, RestCall, not_found
from helenus_connector.verify.options import VerifyOptions
from helenus_connector.verify.verifications import Verification, Verifications
from helenus_schemas.errors import HelenusError


class VerificationResources:
    """The verifications of each connector, the last one of each table."""

    def __init__(self, verifications: Verifications) -> None:
        self._verifications = verifications

    def resources(self) -> Resources:
        return {"/connectors/{name}/verifications": {"GET": self._list, "POST": self._begin, "DELETE": self._stop}}

    def _list(self, call: RestCall) -> Response:
        with _not_found(call):
            return _answer(self._verifications.last_verifications(call.name))

    def _begin(self, call: RestCall) -> Response:
        """202 with the verifications; 400 for what can't be asked, 409 while another one is under way."""
        body = dict(call.body) if isinstance(call.body, dict) else {} if call.body is None else None
        if body is None:
            raise HTTPException(400, "a JSON object is expected")
        tables = body.pop("tables", [])
        if not isinstance(tables, list) or not all(isinstance(table, str) for table in tables):
            raise HTTPException(400, "tables: a list of names is expected")
        try:
            options = VerifyOptions.from_words(body)
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        try:
            with _not_found(call):
                return _answer(self._verifications.begin(call.name, tables, options), 202)
        except UnderWay as error:
            raise HTTPException(409, str(error)) from None
        except HelenusError as error:
            raise HTTPException(400, str(error)) from None

    def _stop(self, call: RestCall) -> Response:
        with _not_found(call):
            return _answer(self._verifications.stop(call.name))


def _not_found(call: RestCall) -> Any:
    return not_found(f"Connector {call.name} not found")


def _answer(verifications: Sequence[Verification], status: int = 200) -> Response:
    return JSONResponse({"verifications": [verification.shown() for verification in verifications]}, status)
