"""The codes of the doctor's findings: a setting and an option name them, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.basics.spelling import did_you_mean
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

FINDING_CODES = frozenset(
    {
        "acks-late",
        "acl",
        "async-standbys",
        "broker",
        "client-clock",
        "client-clock-stopped",
        "clock-drift",
        "clock-stopped",
        "closed",
        "cluster",
        "commands",
        "configuration",
        "countdown",
        "etcd-size",
        "even-nodes",
        "eviction",
        "few-nodes",
        "fsync-off",
        "guard-off",
        "killed-while-waiting",
        "limit",
        "no-password",
        "no-quorum",
        "no-tls",
        "node-clock",
        "old-snapshot",
        "one-host",
        "option",
        "other-app",
        "other-nodes",
        "other-version",
        "persistence",
        "pooler",
        "privileges",
        "promoted",
        "quarantine",
        "quorum-edge",
        "rate",
        "read-only",
        "refused-writes",
        "replica",
        "replicas",
        "result-backend",
        "runtime",
        "same-server",
        "shared",
        "slow",
        "ttl",
        "unconfirmed",
        "unreachable",
        "unsynced",
        "visibility-timeout",
        "without-lock",
    }
)


def check_codes(name: str, codes: Iterable[str]) -> None:
    """Refuse a code that no finding has; ``name`` is what names the codes."""
    for code in codes:
        if code not in FINDING_CODES:
            raise ConfigurationError(
                f"{name} has {code!r}, a code that no finding of the doctor has. "
                f"{did_you_mean(code, FINDING_CODES)}"
            )
