"""Keys of the converters of Confluent, Apicurio and Kafka, and what becomes of them here.

A key that has a counterpart is taken as that. One whose other value would change what is published, or where its schema
is, is refused with that value; all others mean nothing here, and are named. Sources: `AvroConverterConfig`,
`AvroDataConfig` and `AbstractKafkaSchemaSerDeConfig` of Confluent 7 and 8, `SerdeConfig` of Apicurio 2 and 3,
`JsonConverterConfig` of Kafka 4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from helenus_connector.converters.subjects import CONTEXT, NO_CONTEXT
from helenus_schemas.settings.model import Alias

_REGISTRY = "value.converter.schema.registry"
_ANSWERS = "how the registry is asked: it answers within five seconds, or is asked again"
_CONNECT = "it says how Kafka Connect's schemas become Avro; here they are made from the table"
_CACHE = "schemas and their ids are kept"
_OWN = "a record has its table's own schema, which is looked up as it is"
_CERTIFICATES = "a file of certificates needs none"
_PEM = f"export it as PEM, and name that file in {_REGISTRY}.ssl"
_RULES = "rules of data contracts are not run"
_APICURIO = "how Apicurio's own client works, which is not used"


def _only(reason: str, *accepted: str) -> Alias:
    """Return an alias for a key that may have these values alone, in any case of letters, or be empty."""

    def check(value: str) -> str:
        if value.strip() and value.strip().lower() not in accepted:
            raise ValueError(reason)
        return value

    return Alias(why=reason, convert=check)


def _strategy(value: str) -> str:
    if value.strip() and not value.strip().endswith((".TopicNameStrategy", ".TopicIdStrategy")):
        raise ValueError("subjects are named TOPIC-key and TOPIC-value, as by TopicNameStrategy: leave it out")
    return value


def _ca(value: str) -> str:
    if value.lower().endswith((".jks", ".p12", ".pfx")):
        raise ValueError(f"a Java trust store is not read: {_PEM}.cafile")
    return value


def _confluent_url(value: str) -> str:
    """Return the address at which Apicurio's registry answers as Confluent's. Raises ValueError for
    versions before 3.
    """
    addresses = [address.strip().rstrip("/") for address in value.split(",")]
    urls = [re.sub(r"/apis/registry/v\d+$", "", address) + "/apis/ccompat/v7" for address in addresses]
    if any(re.search(r"/(apis/registry/v[12]|api)$", address) for address in addresses):
        raise ValueError(
            "readers of Apicurio 2 expect ids of 8 bytes by default, and records have 4 as Confluent's: set "
            f"{_REGISTRY}.url={','.join(urls)}, and in readers apicurio.registry.as-confluent=true and "
            "apicurio.registry.use-id=contentId"
        )
    return ",".join(urls)


_IGNORED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "enhanced.avro.schema.support",
            "connect.meta.data",
            "scrub.invalid.names",
            "allow.optional.map.keys",
            "flatten.singleton.unions",
            "flatten.unions",
            "discard.type.doc.default",
            "generalized.sum.type.support",
            "ignore.default.for.nullables",
            "propagate.schema.tags",
            "replace.null.with.default",
            "avro.*",
        ),
        _CONNECT,
    ),
    **dict.fromkeys(
        (
            "schemas.cache.config",
            "schemas.cache.size",
            "max.schemas.per.subject",
            "latest.cache.size",
            "latest.cache.ttl.sec",
        ),
        _CACHE,
    ),
    **dict.fromkeys(
        (
            "id.compatibility.strict",
            "auto.register",
            "schema.format",
        ),
        _OWN,
    ),
    **dict.fromkeys(
        ("http.connect.timeout.ms", "http.read.timeout.ms", "max.retries", "retries.wait.ms", "retries.max.wait.ms"),
        _ANSWERS,
    ),
    **dict.fromkeys(
        (
            "schema.registry.ssl.truststore.password",
            "schema.registry.ssl.truststore.type",
            "schema.registry.ssl.keystore.password",
            "schema.registry.ssl.keystore.type",
            "schema.registry.ssl.key.password",
            "apicurio.registry.request.ssl.truststore.password",
            "apicurio.registry.request.ssl.truststore.type",
            "apicurio.registry.request.ssl.keystore.password",
            "apicurio.registry.request.ssl.keystore.type",
            "apicurio.registry.request.ssl.key.password",
        ),
        _CERTIFICATES,
    ),
    "schema.registry.ssl.protocol": "OpenSSL takes the newest version that both sides know",
    "schema.registry.ssl.enabled.protocols": "OpenSSL takes the newest version that both sides know",
    **dict.fromkeys(
        ("basic.auth.credentials.source", "schema.registry.basic.auth.credentials.source"),
        "credentials are always taken as USER_INFO",
    ),
    "apicurio.registry.*": _APICURIO,
}
_KEY_STORE = _only(
    "a Java key store is not read: export its certificate and key as PEM, and name those files in "
    f"{_REGISTRY}.ssl.certfile and {_REGISTRY}.ssl.keyfile"
)
_HOST_NAME = _only("the name in the registry's certificate is always checked", "https")
_BEARER = _only(f"a registry's login is {_REGISTRY}.basic.auth.user.info, a user and a password")
_LOGIN = _only(f"set {_REGISTRY}.basic.auth.user.info=USER:PASSWORD")
_CHECKED: Mapping[str, Alias] = {
    "subject.name.strategy": Alias(why="subjects are TOPIC-key and TOPIC-value", convert=_strategy),
    "context.name.strategy": _only(CONTEXT, NO_CONTEXT.lower()),
    "use.schema.id": _only(_OWN, "-1"),
    "rule.*": _only(_RULES),
    "default.rules": _only(_RULES),
    "decimal.format": _only("set decimal.handling.mode to string or double in its place", "base64"),
    "converter.encoding": _only("text is UTF-8", "utf-8", "utf8"),
    "bearer.auth.*": _BEARER,
    "schema.registry.bearer.auth.*": _BEARER,
    "schema.registry.ssl.keystore.location": _KEY_STORE,
    "schema.registry.ssl.endpoint.identification.algorithm": _HOST_NAME,
    "apicurio.registry.request.ssl.keystore.location": _KEY_STORE,
    "apicurio.registry.auth.*": _LOGIN,
    "apicurio.registry.headers.enabled": _only("an id is in front of a record, not in a header", "false"),
    "apicurio.registry.as-confluent": _only("ids have 4 bytes, as Confluent's", "true"),
    "apicurio.registry.use-id": _only("ids are those of contents, as Confluent's", "contentid"),
    "apicurio.registry.id-handler": _only(
        "ids have 4 bytes, as Confluent's",
        *(
            f"io.apicurio.registry.{package}.{name}".lower()
            for package in ("serde", "serde.config")
            for name in ("Default4ByteIdHandler", "Legacy4ByteIdHandler")
        ),
    ),
    "apicurio.registry.artifact.group-id": _only("schemas are in the default group", "default"),
    "apicurio.registry.artifact-resolver-strategy": Alias(
        why="artifacts are TOPIC-key and TOPIC-value", convert=_strategy
    ),
}
_USED: Mapping[str, Callable[[str], str | Alias]] = {
    "apicurio.registry.url": lambda side: Alias(
        f"{side}.converter.schema.registry.url", "where it answers as Confluent's does", _confluent_url
    ),
    "apicurio.registry.auto-register": lambda _: "value.converter.auto.register.schemas",
    "schema.registry.ssl.truststore.location": lambda _: Alias(f"{_REGISTRY}.ssl.cafile", convert=_ca),
    "apicurio.registry.request.ssl.truststore.location": lambda _: Alias(f"{_REGISTRY}.ssl.cafile", convert=_ca),
    "basic.auth.user.info": lambda _: f"{_REGISTRY}.basic.auth.user.info",
}
# Keys and values have one registry; what is said of keys alone is taken for both.
_KEY_ALIASES = {
    name: f"value.converter.{name}"
    for name in (
        *("schema.registry.basic.auth.user.info", "auto.register.schemas", "normalize.schemas"),
        "latest.compatibility.strict",
    )
}


def _aliases_of(side: str) -> dict[str, str | Alias]:
    aliases: dict[str, str | Alias] = {name: use(side) for name, use in _USED.items()}
    other = "value" if side == "key" else "key"
    aliases[f"{other}.subject.name.strategy"] = Alias(why=f"it is that of {other}s, which {other}.converter has")
    if side == "key":
        aliases |= _KEY_ALIASES
    aliases |= _CHECKED
    aliases |= {name: Alias(why=why) for name, why in _IGNORED.items()}
    return {f"{side}.converter.{name}": alias for name, alias in aliases.items()}


CONVERTERS: Mapping[str, str | Alias] = {**_aliases_of("value"), **_aliases_of("key")}
