"""Settings with which Spark's ports serve this run's processes alone, and its files are for this user alone."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping

import structlog

_log = structlog.get_logger(__name__)
_AUTHENTICATE, _SECRET = "spark.authenticate", "spark.authenticate.secret"
_SECRET_BYTES = 32  # as many as Spark takes for one that it makes itself
_UI, _SOCKETS = "spark.ui.enabled", "spark.python.unix.domain.socket.enabled"


def security_settings(master: str, configured: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's security settings, except those that the operator's `configured` settings have.

    With `local`, `yarn` and `k8s://`, Spark makes a secret for each run, and keeps it in memory; a standalone cluster
    has one of its own, which the operator's settings name. With YARN in `cluster` mode the secret is made when the
    worker is submitted, so that `spark-submit` alone can ask for one.
    """
    settings = {
        _AUTHENTICATE: "true",
        # Hadoop sets the mode of each file that it makes, whatever the process's umask is.
        "spark.hadoop.fs.permissions.umask-mode": "077",
        # Whoever may see Spark's own pages need not be one who may end jobs.
        "spark.ui.killEnabled": "false",
    }
    if master == "yarn" and configured.get("spark.submit.deployMode") == "cluster":
        del settings[_AUTHENTICATE]
    if master.startswith("local-cluster["):  # master, workers and driver are one process, which reads these settings
        settings[_SECRET] = secrets.token_hex(_SECRET_BYTES)
    _warn(master, {**settings, **configured})
    return settings


def _warn(master: str, settings: Mapping[str, str]) -> None:
    """Say which of Spark's ports are open to others, as the operator asked for."""
    if settings.get(_AUTHENTICATE, "false").strip().lower() != "true":
        reason = "whoever reaches the ports of Spark's driver and executors reads passwords and runs code as their user"
        advice = f"set {_AUTHENTICATE}=true and {_SECRET}, as they are on the cluster"
        _log.warning("spark.not_authenticated", master=_bare(master), reason=reason, advice=advice)
    if settings.get(_SOCKETS, "").strip().lower() == "false":
        reason = "the port of a state's store takes whoever connects first"
        _log.warning("spark.not_authenticated", master=_bare(master), reason=reason, advice=f"leave {_SOCKETS} out")
    if settings.get(_UI, "").strip().lower() == "true" and "spark.ui.filters" not in settings:
        reason = "Spark's pages listen on all addresses of this machine and ask for no password"
        _log.warning("spark.ui_open", reason=reason, advice="set spark.ui.filters, or a firewall's rule")


def _bare(master: str) -> str:
    """Return a master's address without its login."""
    return re.sub(r"//[^/@]*@", "//", master)
