"""The connector as Kafka Connect's `connector-plugins` show it: its keys, and the errors of a configuration.

All of it is read from `ConnectorSettings`. The shapes are those of a Kafka Connect 4.3.1 worker.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from helenus_connector.config.connector import CLASS, ConnectorSettings
from helenus_connector.config.model import SERVERS, Model
from helenus_connector.converters.catalog import CONVERTERS, ConverterPlugin
from helenus_connector.transforms.catalog import CLASSES, PluginClass
from helenus_connector.transforms.contract import REQUIRED, ConfigKey
from helenus_connector.transforms.properties import LISTED, keys_of, names_in
from helenus_schemas import __version__
from helenus_schemas.settings import masking
from helenus_schemas.settings.model import EXPERT, Group
from helenus_schemas.settings.properties import ConfigError, Problem, shown_key

Json = dict[str, Any]
INFO: Json = {"class": CLASS, "type": "source", "version": __version__}
TASK_CLASS = f"{CLASS}Task"

_PLUGINS: Sequence[PluginClass | ConverterPlugin] = (*CONVERTERS, *CLASSES.values())
_FIRST = ("name", "connector.class", "tasks.max")
_WIDTHS = {"INT": "SHORT", "DOUBLE": "SHORT", "BOOLEAN": "SHORT", "LIST": "LONG"}


def unknown(name: str) -> str:
    """Return the message for a class that is not this connector."""
    return f"Failed to find any class that implements Connector and which name matches {name}, available is: {CLASS}"


def problems(properties: Mapping[str, str], source: str, model: Model, file: Mapping[str, str]) -> list[Problem]:
    """Return all that is wrong with a connector's properties; `file` as of `Model.read_settings`."""
    try:
        model.read_settings(properties, source, file)
    except ConfigError as error:
        return list(error.problems)
    return []


def shown(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties with stars for their secrets, also for those that are in keys."""
    names = shown_names(properties)
    return {names[key]: masking.shown(value, ConnectorSettings.hides(key, value)) for key, value in properties.items()}


def shown_names(keys: Iterable[str]) -> dict[str, str]:
    """Return keys as they may be shown. Of several that differ by their salts alone, the later ones have a number."""
    names: dict[str, str] = {}
    counts = Counter[str]()
    for key in sorted(keys):
        name = shown_key(key)
        counts[name] += 1
        names[key] = name if counts[name] == 1 else f"{name}{counts[name]}"
    return names


def restored(properties: Mapping[str, str], stored: Mapping[str, str]) -> dict[str, str]:
    """Return properties with the stored secret in place of the stars that were shown for it.

    Raises ConfigError for stars without a stored secret: they would be taken for the secret.
    """
    masked, names = shown(stored), {name: key for key, name in shown_names(stored).items()}
    unknown = [
        key
        for key, value in properties.items()
        if (masking.STARS in value and value != masked.get(key)) or (masking.STARS in key and key not in names)
    ]
    if unknown:
        problem = "give the secret itself, there is none to keep"
        raise ConfigError([Problem("", key, properties[key], problem) for key in unknown])
    texts: dict[str, str] = {}
    for name, value in properties.items():
        key = names.get(name, name)
        texts[key] = stored[key] if masking.STARS in value else value
    return texts


def refuse_kept(properties: Mapping[str, str], stored: Mapping[str, str], file: Mapping[str, str]) -> None:
    """Raise ConfigError for stars that stand for a secret of the connector's `file`, whose servers are others."""
    problem = "give the secret itself: the one in the connector's file is for the servers that the file names"
    keys = [key for key, value in properties.items() if masking.STARS in value and stored[key] == file.get(key)]
    if keys := [key for key in keys if ConnectorSettings.key_of(key) not in SERVERS]:
        raise ConfigError([Problem("", key, properties[key], problem) for key in keys])


def refuse_carried(
    request: Mapping[str, str | None], properties: Mapping[str, str], stored: Mapping[str, str], model: Model
) -> None:
    """Raise ConfigError for secrets that a connector has, if a request names other servers for it and does not give
    them again: who makes the request may not know them, and the other servers would be told.

    `properties` are all properties that it would have, with the secrets in the place of stars.
    """
    if not stored or model.names_servers_of(stored, properties):
        return
    problem = "give it again, and not as stars: it was given for other servers"
    keys = [
        key
        for key, value in properties.items()
        if value == stored.get(key)
        and ConnectorSettings.key_of(key) not in SERVERS
        and (
            masking.refers(value)
            or masking.shown(value, ConnectorSettings.hides(key, value)) != value
            or shown_key(key) != key
        )
        and masking.STARS in (request.get(key) or masking.STARS)
    ]
    if keys:
        raise ConfigError(
            [
                Problem("", key, masking.shown(stored[key], ConnectorSettings.hides(key, stored[key])), problem)
                for key in keys
            ]
        )


def definitions() -> list[Json]:
    """Return the definitions of the keys, by group."""
    fields, texts = _fields(), ConnectorSettings.texts()
    order: dict[str, int] = {}
    entries = []
    for key, field in fields.items():
        group = _group_of(field)
        order[group.section] = order.get(group.section, 0) + 1
        entries.append(
            _definition(
                key,
                _kind(key, field),
                field.is_required(),
                None if field.is_required() else _text(field.default),
                group.importance,
                texts.get(key),
                group.section,
                order[group.section],
            )
        )
    return entries


def _definition(
    key: str,
    kind: str,
    is_required: bool,
    default: str | None,
    importance: str,
    documentation: str | None,
    group: str | None,
    order: int,
) -> Json:
    return {
        "name": key,
        "type": kind,
        "required": is_required,
        "default_value": default,
        "importance": importance,
        "documentation": documentation,
        "group": group,
        "order_in_group": order,
        "width": _WIDTHS.get(kind, "MEDIUM"),
        "display_name": key.replace(".", " ").capitalize(),
        "dependents": [],
    }


def plugin_infos() -> list[Json]:
    """Return the converters, and the classes of transforms and predicates, as `/connector-plugins` lists them."""
    return [{"class": plugin.name, "type": plugin.type, "version": __version__} for plugin in _PLUGINS]


def plugin_keys(name: str) -> Sequence[ConfigKey] | None:
    """Return the keys of a converter, a transform or a predicate; None for another class."""
    return next((plugin.keys for plugin in _PLUGINS if plugin.name == name), None)


def plugin_definitions(keys: Iterable[ConfigKey], prefix: str = "", group: str | None = None) -> list[Json]:
    """Return the definitions of the keys of a transform or predicate, whose names begin with `prefix`."""
    return [
        _definition(
            f"{prefix}{key.name}",
            key.type,
            key.default is REQUIRED,
            None if key.default is REQUIRED else _text(key.default),
            key.importance,
            key.documentation,
            group,
            order,
        )
        for order, key in enumerate(keys, 1)
    ]


def _definitions_of_plugins(properties: Mapping[str, str]) -> list[Json]:
    """Return the definitions of the keys of the transforms and predicates that properties list."""
    entries: list[Json] = []
    for kind, title in (("transforms", "Transforms"), ("predicates", "Predicates")):
        below = {key[len(kind) + 1 :]: text for key, text in properties.items() if key.startswith(f"{kind}.")}
        for name in dict.fromkeys(names_in({LISTED: properties.get(kind, "")})):
            entries += plugin_definitions(keys_of(kind, name, below), f"{kind}.{name}.", f"{title}: {name}")
    return entries


def validated(properties: Mapping[str, str], model: Model, file: Mapping[str, str]) -> Json:
    """Return the answer to `config/validate`: every key with its value, and the errors of each."""
    fields = _fields()
    found_problems = problems(properties, "config", model, file)
    values = {ConnectorSettings.key_of(key): value for key, value in shown(properties).items()}
    configs: list[Json] = []
    foreign_keys = model.foreign_classes(properties, file)  # which are not imported
    of_plugins = _definitions_of_plugins({key: text for key, text in properties.items() if key not in foreign_keys})
    for definition in [*definitions(), *of_plugins]:
        key = definition["name"]
        errors = [problem.reason for problem in found_problems if problem.key == key]
        options = _options(fields[key]) if key in fields else []
        value = _value(key, values.get(key, definition["default_value"]), errors, options)
        configs.append({"definition": definition, "value": value})
    # A key that is not ours has no definition.
    defined = {*fields, *(definition["name"] for definition in of_plugins)}
    unknown = (
        _value(problem.key, problem.value, [problem.reason], [])
        for problem in found_problems
        if problem.key not in defined
    )
    configs += [{"definition": None, "value": value} for value in unknown]
    return {
        "name": CLASS,
        "error_count": sum(len(config["value"]["errors"]) for config in configs),
        "groups": list(
            dict.fromkeys(
                [*(_group_of(field).section for field in fields.values()), *(entry["group"] for entry in of_plugins)]
            )
        ),
        "configs": configs,
    }


def _value(key: str, value: str | None, errors: list[str], recommended: list[str]) -> Json:
    return {"name": key, "value": value, "recommended_values": recommended, "errors": errors, "visible": True}


def _fields() -> dict[str, FieldInfo]:
    """Return the fields by key: those that every connector of Kafka Connect has first, those for experts last."""
    fields = {field.alias or name: field for name, field in ConnectorSettings.model_fields.items()}
    sections = [section for field in fields.values() if (section := _group_of(field).section) != EXPERT]
    order = list(dict.fromkeys(["Common", *sections, EXPERT]))
    ordered = sorted(fields, key=lambda key: order.index(_group_of(fields[key]).section))
    return {key: fields[key] for key in dict.fromkeys([*_FIRST, *ordered])}


def _group_of(field: FieldInfo) -> Group:
    return next(metadata for metadata in field.metadata if isinstance(metadata, Group))


def _types(field: FieldInfo) -> tuple[Any, ...]:
    """Return the types that a field can be, without None."""
    union = get_origin(field.annotation) in (Union, types.UnionType)
    members = get_args(field.annotation) if union else (field.annotation,)
    return tuple(kind for kind in members if kind is not types.NoneType)


def _kind(key: str, field: FieldInfo) -> str:
    """Return the type as Kafka Connect calls it."""
    if key in ConnectorSettings.listed:
        return "LIST"
    kind = _types(field)[0]
    names = {bool: "BOOLEAN", int: "INT", float: "DOUBLE", SecretStr: "PASSWORD", tuple: "LIST"}
    return names.get(get_origin(kind) or kind, "STRING")


def _options(field: FieldInfo) -> list[str]:
    kind = _types(field)[0]
    return list(get_args(kind)) if get_origin(kind) is Literal else []


def _text(value: object) -> str | None:
    """Return a default as a properties file would have it; None for one that stands for nothing."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return None if value in (None, "", {}) else str(value)
