"""Schemas in a Confluent-compatible registry, with the ids kept on the host.

A worker process that Spark ends forgets its ids; files next to the cache keep them, so that a registry that is away
stops only the writing of schemas it has not seen. They are kept next to the checkpoint too, for a worker that starts
while the registry is away: one that answers is asked first, as it may have lost its schemas meanwhile. Each subject has
a file of its own: a connector may have a thousand tables, and each new id is written with all others of its file.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import structlog
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.schema_store.contract import SchemaId
from helenus_connector.shape.encoding._answer_limit import limit_answers
from helenus_connector.shape.encoding._logins import log_in, split_logins
from helenus_connector.shape.encoding._references import avro_text
from helenus_connector.shape.encoding.record_schemas import RecordSchemas as RecordSchemas
from helenus_connector.shape.encoding.record_schemas import SchemaIds as SchemaIds
from helenus_schemas.avro.compare import (
    has_times,
    incompatibility,
    other_form,
    other_times,
    parsed,
    recreated,
    without_names,
)
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings import regular_files

_CONFLICT = 409
_REFUSED = {_CONFLICT, 422}
_LOGIN_REFUSED = {401, 403}
SchemaType = Literal["AVRO", "PROTOBUF", "JSON"]
_log = structlog.get_logger(__name__)
_UNAVAILABLE_S = 30.0
"""For how long a registry that did not answer is not asked for ids that the backup has: each request may take seconds.
"""
_LONGEST_NAME = 240
"""Of a subject as a file's name, which may have 255 bytes; a topic's name alone has up to 249."""
_KEY = "value.converter.schema.registry"
_PATH = f"check the path in {_KEY}.url, which is none for Confluent's registry and /apis/ccompat/v7 for Apicurio's"

_PRINTED_SCHEMAS = "register what `helenus-connector schemas WORKER_PROPERTIES CONNECTOR_PROPERTIES` prints for it"
_OWN_SCHEMAS = "what transforms or converters make is known from records only: let the connector register it once"


class Registry:
    """Registers schemas under a subject; ids are cached in `memory`, a directory. Records in JSON need none.

    `backup_directory` keeps the ids for when the registry is unavailable. Raises HelenusError CONFIG for two logins.
    """

    def __init__(self, settings: ConnectorSettings, memory: Path, backup_directory: Path | None = None) -> None:
        # The client gets the login apart from the address: its errors, and the log of its library, show addresses.
        self._url, self._logins = split_logins(settings.value_converter_schema_registry_url)
        config: dict[str, Any] = {"url": self._url, "timeout": 5, "max.retries": 0}
        if login := settings.value_converter_schema_registry_basic_auth_user_info:
            if self._logins:
                problem = f"{_KEY}.url has a login, and {_KEY}.basic.auth.user.info is another: leave one out"
                raise HelenusError(Kind.CONFIG, problem, self._url)
            config["basic.auth.user.info"] = login.get_secret_value()
        for key, file in (
            ("ssl.ca.location", settings.value_converter_schema_registry_ssl_cafile),
            ("ssl.certificate.location", settings.value_converter_schema_registry_ssl_certfile),
            ("ssl.key.location", settings.value_converter_schema_registry_ssl_keyfile),
        ):
            if file is not None:
                config[key] = str(file)
        self._config = config
        self._may_register = settings.value_converter_auto_register_schemas
        self._way_to_register = _OWN_SCHEMAS if settings.has_transforms else _PRINTED_SCHEMAS
        self._normalizes = settings.value_converter_normalize_schemas
        self._memory = memory
        self._backup_directory = backup_directory
        self._is_needed = settings.is_avro
        self._unavailable_until = 0.0

    @property
    def identity(self) -> object:
        """Identify the registry, and the login that is used."""
        return self._is_needed, *sorted(self._config.items()), *self._logins.items()

    def check(self) -> None:
        """Raise HelenusError if the registry does not answer, where there has to be one."""
        if self._url and self._is_needed:
            self._request(self._client.get_subjects)

    def knows(self, subject: str) -> bool:
        """Return whether a schema of this subject was ever registered: a worker may run while the registry is away."""
        return bool(self._backup_ids(subject))

    def register(self, subject: str, schema: str) -> int:
        """Return the id of a schema in a subject; register it if it is new. A subject without a compatibility level is
        set to BACKWARD first, unless the registry has a global one: what an operator chose stays.

        With `auto.register.schemas=false` it has to be there, and nothing is set.
        Raises HelenusError REGISTRY_UNREACHABLE, on which the batch is done again, REGISTRY_REFUSED or SCHEMA_MISSING.
        """
        return self._cached_id(subject, self._cache_name(subject, schema), lambda: self._register(subject, schema))

    def _register(self, subject: str, schema: str) -> int:
        avro = Schema(schema, "AVRO")
        if self._may_register:
            self._check_times(subject, schema)
            self._choose_level(subject)
            try:
                return self._request_id(lambda: self._client.register_schema(subject, avro, self._normalizes), subject)
            except HelenusError as error:
                raise self._explain_mode(error, subject, schema) from None
        return self._request_id(lambda: self._client.lookup_schema(subject, avro, self._normalizes).schema_id, subject)

    def keep(self, subject: str, schema: str, value: str) -> int:
        """Return the id of the subject's latest schema, if this one gives the same bytes; else as `register`.

        For keys: their bytes decide on compaction and partition, so a renamed column changes nothing.
        `value` is the schema of the values that go with them. Raises REGISTRY_REFUSED too where names would be wrong.
        """

        def request() -> int:
            schema_id = self._latest_compatible_id(subject, schema, value)
            return self.register(subject, schema) if schema_id is None else schema_id

        return self._cached_id(subject, self._cache_name(subject, schema + value), request)

    def register_as(
        self, schema_type: SchemaType, subject: str, schema: str, may_register: bool, normalizes: bool
    ) -> int:
        """Return the id of a schema of another kind than Avro, in a subject; register it if it `may_register`, as
        `register` does.
        """
        typed = Schema(schema, schema_type)

        def request() -> int:
            if may_register:
                self._choose_level(subject)
                return self._request_id(lambda: self._client.register_schema(subject, typed, normalizes), subject)
            return self._request_id(lambda: self._client.lookup_schema(subject, typed, normalizes).schema_id, subject)

        return self._cached_id(subject, self._cache_name(subject, f"{schema_type} {schema}"), request)

    def latest_as(self, schema_type: SchemaType, subject: str, schema: str | None) -> tuple[int, str]:
        """Return the id and the text of a subject's latest schema, that of Protobuf as the Base64 of its descriptor.

        In Avro it has the types of the schemas that it refers to. With a `schema` the registry is asked whether it is
        compatible. Raises as `register`, REGISTRY_REFUSED too for a subject with a schema of another kind, or in Avro
        with a reference that leads nowhere.
        """
        form = "serialized" if schema_type == "PROTOBUF" else None
        latest = self._look_up(lambda: self._client.get_latest_version(subject, form), subject)
        where = f"{self._url}, subject {subject}"
        if latest is None:
            raise HelenusError(Kind.SCHEMA_MISSING, "use.latest.version=true, and the subject has no schema", where)
        latest_type = latest.schema.schema_type or "AVRO"
        if latest_type != schema_type:
            raise self._refusal(f"the subject's latest schema is {latest_type}", where)
        try:
            text = str(latest.schema.schema_str) if latest_type != "AVRO" else self._avro_text(latest, subject)
        except ValueError as error:
            problem = f"the subject's latest schema can't be used: {error}"
            raise HelenusError(Kind.REGISTRY_REFUSED, problem, where, "register another version") from None
        is_compatible = schema is None or self._request(
            lambda: self._client.test_compatibility(subject, Schema(schema, schema_type)), subject
        )
        if not is_compatible:
            raise self._refusal("the records' schema is not compatible with the subject's latest", where)
        return self._request_id(lambda: latest.schema_id, subject), text

    @property
    def is_registration_due(self) -> bool:
        """Return False: what the registry does not take waits."""
        return False

    def remembered_id(self, subject: str, schema: str) -> int | None:
        """Return the id of a schema that was registered, without asking; None if this host does not know it. For one
        that was given to `keep`, the schema of the values follows it.
        """
        name = self._cache_name(subject, schema)
        return self._cached_ids(subject).get(name, self._backup_ids(subject).get(name))

    def remembered_ids(self, subject: str) -> frozenset[int]:
        """Return all ids under which this host knows schemas of a subject, without asking."""
        return frozenset(self._backup_ids(subject).values())

    def schema(self, schema_id: SchemaId) -> str | None:
        """Return the schema with this id as text, with the types of those that it refers to; None if the registry has
        none in Avro. Raises HelenusError if it can't be asked.
        """
        if not isinstance(schema_id, int):
            return None
        schema = self._look_up(lambda: self._client.get_schema(schema_id), f"of the schema with the id {schema_id}")
        if schema is None or schema.schema_type not in (None, "AVRO"):
            return None
        try:
            return avro_text(schema, "", self._version)
        except ValueError as error:  # a record names the id, which may be any
            _log.warning("registry.schema_unusable", schema_id=schema_id, error=str(error))
            return None

    def close(self) -> None:
        """Close the connections to the registry."""
        if "_client" in self.__dict__:
            self._client.close()

    @cached_property
    def _client(self) -> SchemaRegistryClient:
        config = {**self._config}
        if "https:" not in self._url:
            # To load the certificates that it never needs takes 35 ms of CPU, for each of hundreds of tables.
            config.setdefault("ssl.ca.location", False)
        try:
            regular_files.check(*(Path(value) for key, value in self._config.items() if key.startswith("ssl.")))
            client = SchemaRegistryClient(config)
            limit_answers(client)
        except (OSError, ValueError) as error:
            files = ", ".join(str(value) for key, value in self._config.items() if key.startswith("ssl."))
            problem = f"cannot use value.converter.schema.registry.*: {error}"
            raise HelenusError(Kind.CONFIG, problem, files or self._url) from None
        if self._logins:
            # The library would send the first address's login to all. It follows no redirects.
            client._rest_client.session.auth = partial(log_in, self._logins)
        return client

    def _choose_level(self, subject: str) -> None:
        """Set a subject's level of compatibility, where neither it nor the registry has one.

        Apicurio's registry has none by default, and says NONE. A login that may not set it goes on without.
        """
        if self._look_up(lambda: self._client.get_compatibility(subject), subject) is not None:
            return
        if self._look_up(self._client.get_compatibility, subject) not in (None, "NONE"):
            return
        try:
            self._request(lambda: self._set_compatibility(subject), subject)
        except HelenusError as error:
            if error.kind is not Kind.REGISTRY_AUTH:
                raise
            _log.warning("registry.level_not_set", subject=subject, error=error.what)

    def _set_compatibility(self, subject: str) -> None:
        try:
            self._client.set_compatibility(subject, "BACKWARD")
        except SchemaRegistryError as error:
            if error.http_status_code != _CONFLICT:
                raise
            # Apicurio's answer where another task sets it at the same moment.
            self._client.set_compatibility(subject, "BACKWARD")

    def _latest_compatible_id(self, subject: str, schema: str, value: str) -> int | None:
        latest = self._look_up(lambda: self._client.get_latest_version(subject), subject)
        if latest is None:
            return None
        try:
            latest_schema, key = parsed(self._avro_text(latest, subject)), parsed(schema)
        except ValueError:  # not an Avro schema: the registry decides whether ours is compatible
            return None
        is_kept = without_names(latest_schema) == without_names(key)
        if problem := incompatibility(latest_schema, key, parsed(value)) if is_kept else recreated(latest_schema, key):
            raise self._refusal(problem, f"{self._url}, subject {subject}")
        return self._request_id(lambda: latest.schema_id, subject) if is_kept else None

    def _check_times(self, subject: str, schema: str) -> None:
        """Raise REGISTRY_REFUSED for a schema whose times are of another unit than the subject's, as of records that
        DataStax's connector wrote: the registry takes it.
        """
        new = parsed(schema)
        if not has_times(new):
            return
        latest = self._look_up(lambda: self._client.get_latest_version(subject), subject)
        try:
            problem = latest and other_times(parsed(self._avro_text(latest, subject)), new)
        except ValueError:  # of another kind than Avro
            return
        if problem:
            raise self._refusal(problem, f"{self._url}, subject {subject}")

    def _avro_text(self, latest: Any, subject: str) -> str:
        return avro_text(latest.schema, subject, self._version)

    def _version(self, subject: str, version: int) -> Any:
        # One that was deleted softly is still there for the schemas that refer to it.
        return self._look_up(lambda: self._client.get_version(subject, version, deleted=True), subject)

    def _explain_mode(self, error: HelenusError, subject: str, schema: str) -> HelenusError:
        """Return a refusal with its cause if a handling mode was changed; other errors as they are."""
        latest = None
        if error.kind is Kind.REGISTRY_REFUSED:
            latest = self._look_up(lambda: self._client.get_latest_version(subject), subject)
        if latest is None:
            return error
        try:
            type_name = other_form(parsed(self._avro_text(latest, subject)), parsed(schema))
        except ValueError:
            type_name = None
        if type_name is None:
            return error
        problem = f"{error.what}; {type_name}s have another form in it: was {type_name}.handling.mode changed?"
        advice = (
            f"set {type_name}.handling.mode back, choose another data.topic, or let schema.on.incompatible=new-topic "
            "go on in another"
        )
        return HelenusError(error.kind, problem, error.where, advice)

    def _look_up(self, call: Callable[[], Any], subject: str) -> Any:
        """Return what the registry has; None if it answers 404."""

        def request() -> Any:
            try:
                return call()
            except SchemaRegistryError as error:
                if error.http_status_code == 404:
                    return None
                raise

        return self._request(request, subject)

    def _cached_id(self, subject: str, name: str, request: Callable[[], int]) -> int:
        """Return an id by its name: from the cache, from the registry, or from the backup if the registry is away."""
        cached = self._cached_ids(subject)
        if name in cached:
            return cached[name]
        backup = self._backup_ids(subject)
        if name in backup and time.monotonic() < self._unavailable_until:
            return backup[name]
        try:
            schema_id = request()
        except HelenusError as error:
            if error.kind is not Kind.REGISTRY_UNREACHABLE or name not in backup:
                raise
            self._unavailable_until = time.monotonic() + _UNAVAILABLE_S
            _log.warning("registry.away", subject=subject, schema_id=backup[name], error=error.what)
            return backup[name]
        self._cache_ids(subject, {**self._cached_ids(subject), name: schema_id})
        self._back_up_ids(subject, {**self._backup_ids(subject), name: schema_id})
        return schema_id

    def _backup_ids(self, subject: str) -> dict[str, int]:
        """Return the ids of what was registered under a subject in this registry, by name."""
        if self._backup_directory is None:
            return {}
        try:
            ids = json.loads((self._backup_directory / _ids_file(subject)).read_text())
        except (OSError, ValueError):  # it is only for when the registry is away
            return {}
        return {name: schema_id for name, schema_id in ids.items() if name.startswith(f"{self._url} ")}

    def _back_up_ids(self, subject: str, ids: Mapping[str, int]) -> None:
        # Executors on other hosts need not have the checkpoint.
        if self._backup_directory is None or not self._backup_directory.parent.is_dir():
            return
        try:
            self._backup_directory.mkdir(mode=0o700, exist_ok=True)
            _write_ids(self._backup_directory / _ids_file(subject), ids)
        except OSError as error:
            _log.warning("registry.not_kept", subject=subject, error=str(error))

    def _cache_name(self, subject: str, schema: str) -> str:
        return f"{self._url} {subject} {hashlib.md5(schema.encode(), usedforsecurity=False).hexdigest()}"

    def _request(self, call: Callable[[], Any], subject: str = "") -> Any:
        try:
            return call()
        except HelenusError:
            raise
        # The client lets the errors of its HTTP library through, and which library that is changes with its version.
        except Exception as error:
            raise self._to_helenus_error(error, subject) from None

    def _request_id(self, call: Callable[[], Any], subject: str) -> int:
        """Return an id that the registry answers, checked to fit into a record's 4 bytes."""

        def request() -> int:
            schema_id = call()
            if not isinstance(schema_id, int) or not 0 <= schema_id < 1 << 32:
                raise ValueError(f"it answered the id {str(schema_id)[:40]}, which is none")
            return schema_id

        return int(self._request(request, subject))

    def _refusal(self, problem: str, where: str) -> HelenusError:
        for ids in self._memory.glob("*.json"):  # the advice is to delete subjects, and their ids go with them
            ids.unlink(missing_ok=True)
        return HelenusError(Kind.REGISTRY_REFUSED, problem, where)

    def _to_helenus_error(self, error: Exception, subject: str) -> HelenusError:
        where = f"{self._url}, subject {subject}" if subject else self._url
        if isinstance(error, SchemaRegistryError) and error.http_status_code in _LOGIN_REFUSED:
            problem = f"the registry refused the login: {error.http_status_code} {error.error_message}"
            return HelenusError(Kind.REGISTRY_AUTH, problem, where)
        if "[SSL" in str(error):
            return HelenusError(Kind.REGISTRY_AUTH, f"no TLS connection to the registry: {error}", where)
        if isinstance(error, SchemaRegistryError) and error.http_status_code in _REFUSED:
            return self._refusal(f"the registry refuses the schema: {error.error_message}", where)
        if isinstance(error, SchemaRegistryError) and error.http_status_code == 404 and not self._may_register:
            problem = "the registry has not this schema, and value.converter.auto.register.schemas=false"
            return HelenusError(Kind.SCHEMA_MISSING, f"{problem}: {self._way_to_register}", where)
        if isinstance(error, SchemaRegistryError):
            problem = f"the registry answered {error.http_status_code} {str(error.error_message)[:200]}"
            advice = _PATH if error.http_status_code == 404 else "read the registry's log"
            return HelenusError(Kind.REGISTRY_UNREACHABLE, problem, where, advice)
        return HelenusError(Kind.REGISTRY_UNREACHABLE, f"the registry does not answer: {error}", where)

    def _cached_ids(self, subject: str) -> dict[str, int]:
        try:
            return dict(json.loads((self._memory / _ids_file(subject)).read_text()))
        except FileNotFoundError:
            return {}

    def _cache_ids(self, subject: str, ids: Mapping[str, int]) -> None:
        self._memory.mkdir(mode=0o700, exist_ok=True)
        _write_ids(self._memory / _ids_file(subject), ids)


def registry_memory(checkpoint_dir: Path) -> Path:
    """Return the directory in which a worker keeps which schemas were registered."""
    return checkpoint_dir.absolute() / "schemas.registered"  # a name that no query.group has


def _ids_file(subject: str) -> str:
    name = quote(subject, safe="")
    if len(name) > _LONGEST_NAME:
        name = hashlib.md5(subject.encode(), usedforsecurity=False).hexdigest()
    return f"{name}.json"


def _write_ids(path: Path, ids: Mapping[str, int]) -> None:
    file, new = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(file, "w") as out:
            json.dump(ids, out)
        Path(new).replace(path)
    except OSError:  # as of a full disk, on which each try would leave a file
        Path(new).unlink(missing_ok=True)
        raise
