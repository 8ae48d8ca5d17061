"""A Pulsar standalone: broker, bookie and metadata in one process; its configuration, its command, when it is ready."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from helenus_stack.errors import StackError
from helenus_stack.files import write_atomically
from helenus_stack.jars import unpack
from helenus_stack.progress import Silent
from helenus_stack.secure import AGENT, CONNECTOR, PULSAR_ADMIN, Security, security
from helenus_stack.server import Command, Server, classpath, own_temporary_folder
from helenus_stack.settings import Settings, choose_version

VERSIONS = {"4.0": "pulsar", "3.0": "pulsar-3.0"}
"""The lock of the archive of each."""
HEAP, DIRECT = "384m", "256m"
GRANTS = {AGENT: ["produce"], CONNECTOR: ["produce", "consume"]}
"""Who may do what in the namespace public/default of a secure stack. Only its administrator makes topics."""
OPENED = [
    "java.base/java.io",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
]
"""Modules that Pulsar looks into, as its own start script opens them."""
TWITCHES = 20
TOKENS = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
CLIENT_TOKEN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


def server(settings: Settings, directory: Path) -> Server:
    """The broker of a stack."""
    folder = directory / "pulsar"
    access = security(settings, directory)
    return Server(
        name="pulsar",
        folder=folder,
        address="127.0.0.1",
        port=settings.pulsar_port,
        kind="pulsar",
        lock=choose_version("pulsar", settings.pulsar, VERSIONS),
        java=17,
        newer_java=False,
        prepare=partial(prepare, settings, folder),
        ready=partial(ready, admin_url(settings), access),
        ready_seconds=180,
        furnish=partial(grant, admin_url(settings), access),
        stuck=stuck,
    )


def service_url(settings: Settings) -> str:
    """Where clients connect."""
    if settings.secure:
        return f"pulsar+ssl://127.0.0.1:{settings.pulsar_tls_port}"
    return f"pulsar://127.0.0.1:{settings.pulsar_port}"


def admin_url(settings: Settings) -> str:
    """The base of its REST API."""
    if settings.secure:
        return f"https://127.0.0.1:{settings.pulsar_web_tls_port}"
    return f"http://127.0.0.1:{settings.pulsar_web_port}"


def configuration(settings: Settings, folder: Path) -> dict[str, str]:
    """What differs from the distribution's standalone.conf."""
    return {
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "brokerServicePort": str(settings.pulsar_port),
        "webServicePort": str(settings.pulsar_web_port),
        "listeningInterface": "lo",
        # Else the bookie takes a free port, and needs the same one after a restart, when another may have it.
        "allowEphemeralPorts": "true",
        # Helenus creates its topics; one that appears by itself would hide a mistake.
        "allowAutoTopicCreation": "false",
        # As on a cluster that follows tables: columns come and go.
        "schemaCompatibilityStrategy": "BACKWARD_TRANSITIVE",
        # The marker of a TRUNCATE has no key.
        "topicCompactionRetainNullKey": "true",
        **_secured(settings, folder.parent),
        **settings.pulsar_properties,
    }


def _secured(settings: Settings, directory: Path) -> dict[str, str]:
    access = security(settings, directory)
    if access is None:
        return {}
    secrets = directory / "secrets"
    return {
        # The ports without TLS stay, for the broker's own client and for who tries a password in clear.
        "brokerServicePortTls": str(settings.pulsar_tls_port),
        "webServicePortTls": str(settings.pulsar_web_tls_port),
        "tlsCertificateFilePath": str(secrets / "server.pem"),
        "tlsKeyFilePath": str(secrets / "server.key"),
        "tlsTrustCertsFilePath": access.cafile,
        "authenticationEnabled": "true",
        "authenticationProviders": TOKENS,
        "tokenSecretKey": (secrets / "token.secret").as_uri(),
        "authorizationEnabled": "true",
        "superUserRoles": PULSAR_ADMIN,
        "brokerClientAuthenticationPlugin": CLIENT_TOKEN,
        "brokerClientAuthenticationParameters": f"token:{access.token(PULSAR_ADMIN)}",
        "brokerClientTrustCertsFilePath": access.cafile,
    }


def prepare(settings: Settings, folder: Path, java: Path, jars: Sequence[Path]) -> Command:
    """Unpacks the server and writes standalone.conf; see `Server.prepare`."""
    (archive,) = jars
    (home,) = unpack(archive, Silent()).iterdir()
    own = configuration(settings, folder)
    theirs = (home / "conf" / "standalone.conf").read_text().splitlines()
    lines = [line for line in theirs if line.partition("=")[0].strip() not in own]
    text = "".join(f"{line}\n" for line in [*lines, *(f"{key}={value}" for key, value in own.items())])
    write_atomically(folder / "standalone.conf", text, 0o600)
    options = [f"-Xmx{HEAP}", f"-XX:MaxDirectMemorySize={DIRECT}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    options += ["-XX:+ExitOnOutOfMemoryError", "-Djava.net.preferIPv4Stack=true", own_temporary_folder(folder)]
    options += [f"-Dlog4j.configurationFile={home / 'conf' / 'log4j2.yaml'}", "-Dlog4j2.is.webapp=false"]
    options += ["-Dpulsar.routing.appender.default=Console", f"-Dpulsar.log.dir={folder / 'logs'}"]
    options += ["-Dio.netty.tryReflectionSetAccessible=true"]
    options += [word for module in OPENED for word in ("--add-opens", f"{module}=ALL-UNNAMED")]
    data = folder / "data"
    kept_in = ["--metadata-dir", str(data / "metadata"), "--bookkeeper-dir", str(data / "bookkeeper")]
    kept_in += ["--bookkeeper-port", str(settings.bookie_port)]
    arguments = ["--config", str(folder / "standalone.conf"), *kept_in, "--no-functions-worker", "--no-stream-storage"]
    start = [str(java / "bin/java"), *options, "org.apache.pulsar.PulsarStandaloneStarter", *arguments]
    return Command(start, folder, classpath(sorted((home / "lib").glob("*.jar"))))


def ready(admin: str, access: Security | None = None) -> bool:
    """Whether the namespace that everything is in is there: the broker says it is well before that."""
    try:
        return "public/default" in json.loads(_ask(admin, access, "namespaces/public"))
    except (OSError, ValueError):
        return False


def stuck(logged: bytes) -> bool:
    """Whether the bookie's registration comes and goes for ever, so that no topic can be written to.

    A Pulsar that was killed leaves its registration there. The next one deletes it and makes its own. At times it hears
    of that so late that it takes its own for lost, and does it again (4.0.8, ResourceLockImpl).
    """
    return logged.count(b"was invalidated. state Valid") > TWITCHES


def grant(admin: str, access: Security | None) -> None:
    """Gives the users of a secure stack what they need, and no more. Raises StackError."""
    if access is None:
        return
    for user, actions in GRANTS.items():
        try:
            _ask(admin, access, f"namespaces/public/default/permissions/{user}", "POST", actions)
        except OSError as error:
            raise StackError(f"Pulsar took no permission: {error}", admin, "look at its log") from error


def _ask(admin: str, access: Security | None, path: str, method: str = "GET", body: object = None) -> bytes:
    login: Mapping[str, str] = {"Authorization": f"Bearer {access.token(PULSAR_ADMIN)}"} if access else {}
    request = urllib.request.Request(
        f"{admin}/admin/v2/{path}",
        json.dumps(body).encode() if body is not None else None,
        {"Content-Type": "application/json", **login},
        method=method,
    )
    # As with the registry, no proxy is between us.
    context = ssl.create_default_context(cafile=access.cafile) if access else None
    handlers = [urllib.request.ProxyHandler({}), *([urllib.request.HTTPSHandler(context=context)] if context else [])]
    with urllib.request.build_opener(*handlers).open(request, timeout=5) as answer:
        return bytes(answer.read())
