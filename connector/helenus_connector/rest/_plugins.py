"""`/connector-plugins` and `/admin/loggers` of the REST API, shaped as those of a Kafka Connect 4.3.1 worker."""

from __future__ import annotations

import re
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from helenus_connector.config.connector import is_class
from helenus_connector.control.connectors import Connectors
from helenus_connector.rest import _definitions as plugin
from helenus_connector.rest._call import Resources, RestCall
from helenus_schemas.service import logs
from helenus_schemas.settings.properties import shown_key

_LOGGER = re.compile(r"[\w$]+([.-][\w$]+)*", re.ASCII)
_LOGGER_LENGTH = 200
_LOGGERS = 500  # there are some hundred of ours; each that is named is kept, with its level
_log = structlog.get_logger(__name__)


def resources(connectors: Connectors) -> Resources:
    """Return the resources by path and method."""
    return {
        "/connector-plugins": {"GET": _plugins},
        "/connector-plugins/{plugin}/config": {"GET": _definitions},
        "/connector-plugins/{plugin}/config/validate": {"PUT": lambda call: _validate(call, connectors)},
        "/admin/loggers": {"GET": _loggers},
        "/admin/loggers/{logger}": {"GET": _logger, "PUT": _set_level},
    }


def _plugins(call: RestCall) -> Response:
    only_connectors = call.query.get("connectorsOnly", "true").lower() != "false"
    return JSONResponse([plugin.INFO, *([] if only_connectors else plugin.plugin_infos())])


def _definitions(call: RestCall) -> Response:
    if (keys := plugin.plugin_keys(call.path["plugin"])) is not None:
        return JSONResponse(plugin.plugin_definitions(keys))
    if not is_class(call.path["plugin"]):
        raise HTTPException(404, f"Unknown plugin {call.path['plugin']}.")
    return JSONResponse(plugin.definitions())


def _validate(call: RestCall, connectors: Connectors) -> Response:
    properties = {key: value for key, value in call.texts().items() if value is not None}
    plugin_name, named = call.path["plugin"], properties.get("connector.class")
    if named is not None and not _short(named).endswith(_short(plugin_name)):
        raise HTTPException(400, f"Included connector type {named} does not match request type {plugin_name}")
    if not named:
        raise HTTPException(
            500, f"Connector config {{{', '.join(map(shown_key, properties))}}} contains no connector type"
        )
    if not is_class(named):
        raise HTTPException(500, plugin.unknown(named))
    return JSONResponse(plugin.validated(properties, connectors.model, connectors.file(properties.get("name", ""))))


def _short(name: str) -> str:
    """A class's name is known with and without `Connector` at its end."""
    return name.removesuffix("Connector") or name


def _loggers(_: RestCall) -> Response:
    return JSONResponse({name: _shown(level) for name, level in logs.levels().items()})


def _logger(call: RestCall) -> Response:
    name = call.path["logger"]
    level = logs.levels().get(name)
    if level is None:
        raise HTTPException(404, f"Logger {name} not found.")
    return JSONResponse(_shown(level))


def _set_level(call: RestCall) -> Response:
    level = call.texts().get("level")
    if level is None:
        raise HTTPException(400, "Desired 'level' parameter was not specified in request.")
    loggers = logs.parse(level)
    if loggers is None:
        raise HTTPException(404, f"invalid log level '{level}'.")
    name, levels = call.path["logger"], logs.levels()
    is_known = name in levels or any(other.startswith(f"{name}.") for other in levels)
    if not is_known and not (_LOGGER.fullmatch(name) and len(name) <= _LOGGER_LENGTH):
        raise HTTPException(400, "a logger is named as a module: names with dots between them")
    if not is_known and len(levels) >= _LOGGERS:
        raise HTTPException(400, f"{_LOGGERS} loggers have levels: restart the worker to begin anew")
    changed = logs.change(name, loggers)
    _log.info("logs.level", logger_name=name, set_to=loggers)
    # There is one worker, so the scope makes no difference but for the answer.
    return Response(status_code=204) if call.query.get("scope", "").lower() == "cluster" else JSONResponse(changed)


def _shown(level: logs.Level) -> dict[str, Any]:
    return {"level": level.name, "last_modified": level.modified}
