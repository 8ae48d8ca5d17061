"""What makes a stack secure: its certificates, users and passwords, in the folder `secrets` of its directory.

Cassandra and Kafka then speak TLS only and ask for a password, Pulsar asks for a token. The registry stays as it is.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import javaproperties

from helenus_stack.settings import Settings

AGENT, CONNECTOR, STRANGER = "agent", "connector", "stranger"
"""Users of Cassandra and of Kafka: two with the least rights that the commands need, and one without any."""
KAFKA_ADMIN = PULSAR_ADMIN = "admin"
CASSANDRA_ADMIN = "cassandra"
"""Who may do everything. Cassandra's is the one that it creates itself, with its name as the password."""
STORE_PASSWORD = "helenus"
"""Opens the key stores. It hides nothing: the folder's permissions do."""


@dataclass(frozen=True)
class Security:
    """What clients of a secure stack need besides its addresses: paths of PEM files, and one of passwords by user."""

    cafile: str
    """Who signed all certificates."""
    certfile: str
    keyfile: str
    """A client's certificate, for servers that are set to ask for one."""
    passwords: str
    """A properties file: for `${file:PATH:USER}`."""
    tokens: str
    """Another, of the users' tokens for Pulsar."""

    def password(self, user: str) -> str:
        """The user's password."""
        return read_passwords(Path(self.passwords))[user]

    def kafka(self, user: str) -> dict[str, str]:
        """The settings of librdkafka with which the user connects."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": self.password(user),
            "ssl.ca.location": self.cafile,
        }

    def token(self, user: str) -> str:
        """The user's token for Pulsar."""
        return read_passwords(Path(self.tokens))[user]

    def pulsar(self, user: str) -> dict[str, str]:
        """The properties `pulsar.*` with which the user connects."""
        return {"pulsar.auth.token": self.token(user), "pulsar.tls.cafile": self.cafile}

    def tls(self) -> ssl.SSLContext:
        """Knows the servers, and shows the client's certificate if they ask for it."""
        context = ssl.create_default_context(cafile=self.cafile)
        context.load_cert_chain(self.certfile, self.keyfile)
        return context

    def cassandra(self, user: str) -> dict[str, str]:
        """The properties `cassandra.*` with which the user connects."""
        return {
            "cassandra.username": user,
            "cassandra.password": self.password(user),
            "cassandra.ssl.enabled": "true",
            "cassandra.ssl.cafile": self.cafile,
            "cassandra.ssl.certfile": self.certfile,
            "cassandra.ssl.keyfile": self.keyfile,
        }


def security(settings: Settings, directory: Path) -> Security | None:
    """How clients connect to a stack; None if it is not a secure one."""
    folder = directory / "secrets"
    names = ("ca.pem", "client.pem", "client.key", "passwords.properties", "tokens.properties")
    return Security(*(str(folder / name) for name in names)) if settings.secure else None


def key_stores(directory: Path) -> Mapping[str, str]:
    """The servers' key store, and the trust store by which they know clients: paths of PKCS #12 files."""
    return {name: str(directory / "secrets" / f"{name}.p12") for name in ("keystore", "truststore")}


def prepare(settings: Settings, directory: Path) -> None:
    """Makes a secure stack's secrets, once."""
    folder = directory / "secrets"
    if not settings.secure or folder.exists():
        return
    staging = directory / ".secrets"
    staging.mkdir(mode=0o700, exist_ok=True)
    _write_certificates(settings, staging)
    passwords = {user: secrets.token_urlsafe(18) for user in (KAFKA_ADMIN, AGENT, CONNECTOR, STRANGER)}
    passwords[CASSANDRA_ADMIN] = CASSANDRA_ADMIN
    (staging / "passwords.properties").write_text(javaproperties.dumps(passwords, timestamp=None))
    key = secrets.token_bytes(32)
    (staging / "token.secret").write_bytes(key)
    tokens = {user: token(user, key) for user in (PULSAR_ADMIN, AGENT, CONNECTOR, STRANGER)}
    (staging / "tokens.properties").write_text(javaproperties.dumps(tokens, timestamp=None))
    staging.rename(folder)


def token(user: str, key: bytes) -> str:
    """A JSON Web Token (RFC 7519) that says who somebody is, signed with HMAC and SHA-256."""
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256", "typ": "JWT"}, {"sub": user})]
    signed = b".".join(map(_unpadded, parts))
    return b".".join((signed, _unpadded(hmac.digest(key, signed, hashlib.sha256)))).decode()


def _unpadded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def read_passwords(path: Path) -> dict[str, str]:
    """Passwords by user."""
    with open(path) as file:
        return dict(javaproperties.load(file))


def _write_certificates(settings: Settings, folder: Path) -> None:
    # Imported late: only who starts a secure stack needs them.
    import trustme
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
        pkcs12,
    )

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    client = authority.issue_cert("client")
    client.cert_chain_pems[0].write_to_path(str(folder / "client.pem"))
    client.private_key_pem.write_to_path(str(folder / "client.key"))
    server = authority.issue_cert(*settings.addresses)
    server.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
    sealed = BestAvailableEncryption(STORE_PASSWORD.encode())
    key = load_pem_private_key(server.private_key_pem.bytes(), None)
    own = x509.load_pem_x509_certificate(server.cert_chain_pems[0].bytes())
    root = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # the only form that Pulsar reads
    (folder / "server.key").write_bytes(plain)
    keystore = pkcs12.serialize_key_and_certificates(b"server", key, own, [root], sealed)  # type: ignore[arg-type]
    (folder / "keystore.p12").write_bytes(keystore)
    trusted = [pkcs12.PKCS12Certificate(root, b"ca")]
    (folder / "truststore.p12").write_bytes(pkcs12.serialize_java_truststore(trusted, sealed))
