"""How to reach Pulsar."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from helenus_schemas.settings.shared import PulsarSettings
from helenus_sinks.pulsar.connection import Access


@dataclass(frozen=True)
class PulsarConfig:
    """How to reach Pulsar. `batches`: `mixed`, or `key` for sinks with subscriptions of the type Key_Shared.

    `linger`: s that a record waits for others of its partition, unless they fill a batch, or a flush begins.
    With `shares_subscriptions` several processes may have consumers of one: of a group's former leader, which hangs.
    """

    service_url: str
    admin_url: str | None = None
    tenant: str = "public"
    namespace: str = "default"
    token: str | None = None
    cafile: Path | None = None
    check_hostname: bool = True
    batches: Literal["mixed", "key"] = "mixed"
    linger: float = 0.005
    shares_subscriptions: bool = False

    def __repr__(self) -> str:
        return f"PulsarConfig({self.service_url}, {self.tenant}/{self.namespace})"

    @staticmethod
    def from_settings(
        settings: PulsarSettings,
        batches: Literal["mixed", "key"] = "mixed",
        linger: float = 0.005,
    ) -> PulsarConfig:
        """Return the configuration in a command's properties."""
        return PulsarConfig(
            settings.pulsar_service_url,
            settings.pulsar_admin_url,
            settings.pulsar_tenant,
            settings.pulsar_namespace,
            settings.pulsar_auth_token.get_secret_value() if settings.pulsar_auth_token else None,
            settings.pulsar_tls_cafile,
            settings.pulsar_tls_check_hostname,
            batches,
            linger,
        )

    @property
    def access(self) -> Access:
        return Access(self.token, self.cafile, self.check_hostname)

    def name(self, topic: str) -> str:
        """Return the topic's full name on Pulsar."""
        return f"persistent://{self.tenant}/{self.namespace}/{topic}"
