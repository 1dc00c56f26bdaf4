"""The settings ``redlock_*`` of an app, checked once; unknown names are refused.

A wrong setting is refused when the app first needs its settings.
"""

from __future__ import annotations

import re
from collections import UserDict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.finding_codes import check_codes
from celery_redlock.basics.secret import SecretUrl, hidden
from celery_redlock.basics.spelling import did_you_mean
from celery_redlock.basics.timing import Timing, seconds_of
from celery_redlock.errors import ConfigurationError
from celery_redlock.options.lock_options import LockOptions
from celery_redlock.options.values import flag, naming
from celery_redlock.policies import ON_BACKEND_ERROR
from celery_redlock.wire.url import (
    NodeAddress,
    parse_nodes,
    usual_node_timeout,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


__all__ = ["Settings", "setting_in"]

_PREFIX = "redlock_"
_NODES = "redlock_nodes"
# Seconds. A setting that *is* one of these objects is not set; an equal one is.
_BEAT_TTL = 15.0
_NODE_TIMEOUT = 0.05
_put = object.__setattr__  # in a frozen instance that is being made


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """An app's settings, each called ``redlock_…`` in ``app.conf``.

    Durations are given in seconds or as ``timedelta``.

    Attributes:
        nodes: URLs of independent Redis masters, or one URL of a PostgreSQL, an etcd or
            a ZooKeeper. The only setting that must be set. The repr has no passwords.
        ttl: Seconds for which nodes keep a lock that is not renewed.
        max_ttl: Upper bound of every ttl; the same for all clients of the nodes.
        node_timeout: Seconds that a node may take to answer; 0.05 s, or 0.5 s for a
            store, whose commits wait for a disk.
        connect_timeout: Seconds that a connection may take to be made.
        prefix: First part of all keys on the nodes.
        restart_guard: Whether a node that lost its memory is kept out of the vote.
        on_backend_error: Policy for tasks that do not set their own; see ``policies``.
        eager: Whether tasks that run eagerly, in the caller's process, take locks.
        beat_scheduler: The scheduler that ``celery beat -S redlock`` wraps: a class,
            or a name that ``-S`` knows.
        beat_ttl: Seconds after which another beat takes over from a dead one; 15 s,
            or max_ttl if that is less.
        doctor_ignore: Codes of findings of the doctor that the project has decided
            about: the doctor and workers leave them out.
        beat_catchup: Age in seconds up to which a new leader sends a missed slot; or
            0.

    Raises:
        ConfigurationError: A value cannot be used. The error names the remedy.
    """

    nodes: tuple[NodeAddress, ...] = ()
    ttl: float = 30.0
    max_ttl: float = 60.0
    node_timeout: float = _NODE_TIMEOUT
    connect_timeout: float = 1.0
    prefix: str = "redlock"
    restart_guard: bool = True
    on_backend_error: Any = "retry"
    eager: bool = False
    beat_scheduler: Any = None
    beat_ttl: float = _BEAT_TTL
    beat_catchup: float = 60.0
    doctor_ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _put(self, "nodes", hidden(self.nodes))
        _put(self, "nodes", _nodes(self.nodes))
        if self.node_timeout is _NODE_TIMEOUT:
            _put(self, "node_timeout", usual_node_timeout(self.nodes))
        if self.beat_ttl is _BEAT_TTL:
            longest = seconds_of("redlock_max_ttl", self.max_ttl)
            _put(self, "beat_ttl", min(_BEAT_TTL, longest))
        durations = ("ttl", "max_ttl", "node_timeout", "connect_timeout", "beat_ttl")
        for name in durations:
            _put(self, name, seconds_of(_PREFIX + name, getattr(self, name)))
        catchup = seconds_of("redlock_beat_catchup", self.beat_catchup, zero=True)
        _put(self, "beat_catchup", catchup)
        for name in ("ttl", "beat_ttl"):
            with naming(_PREFIX + name):
                self.timing.checked(getattr(self, name))
        prefix: Any = self.prefix
        if not isinstance(prefix, str) or not re.fullmatch(r"\S+", prefix):
            raise ConfigurationError(
                f"redlock_prefix is {prefix!r}; it must be text without spaces."
            )
        for name in ("restart_guard", "eager"):
            flag(_PREFIX + name, getattr(self, name))
        codes: Any = self.doctor_ignore
        is_list = isinstance(codes, (list, tuple, set, frozenset))
        if not is_list or not all(isinstance(one, str) for one in codes):
            raise ConfigurationError(
                f"redlock_doctor_ignore is {codes!r}; it must be a list of codes of "
                'findings, such as ["few-nodes"].'
            )
        check_codes("redlock_doctor_ignore", codes)
        _put(self, "doctor_ignore", tuple(codes))
        with naming("redlock_on_backend_error"):
            ON_BACKEND_ERROR.policy(self.on_backend_error)

    @classmethod
    def of(cls, conf: Mapping[str, Any], **defaults: Any) -> Settings:
        """Read the settings of an app's configuration; ``None`` counts as not set.

        Args:
            conf: The configuration.
            **defaults: Values for settings that are not set.

        Raises:
            ConfigurationError: A value cannot be used, or a name does not exist or
                has a spelling that Celery does not read.
        """
        known = [field.name for field in fields(cls)]
        # Celery reads the configuration now; the namespace is "CELERY_" with Django.
        ours = [one for one in map(str, conf) if _PREFIX in one.lower()]
        namespace = str(getattr(conf, "prefix", None) or "")
        names = {*ours, *(_PREFIX + name for name in known)}
        values = {
            name: hidden(setting_in(conf, name))
            if name.lower().endswith(_NODES)
            else setting_in(conf, name)
            for name in names
        }
        del conf  # its repr has all passwords of the app
        found = ((name, values[_PREFIX + name]) for name in known)
        given = {name: value for name, value in found if value is not None}
        _refuse_unknown(ours, known, namespace)
        unset = [name for name in known if name not in given]
        lost = [one for one in ours if values[one] is not None]
        _refuse_unread(lost, unset, namespace)
        if not {**defaults, **given}.get("nodes"):
            _refuse_namespace(ours, namespace)
        return cls(**{**defaults, **given})

    @property
    def timing(self) -> Timing:
        """The durations, in the form that ``Redlock`` uses."""
        return Timing(self.ttl, self.max_ttl, self.node_timeout, self.connect_timeout)


def setting_in(conf: Mapping[str, Any], name: str) -> Any:
    """Return a setting of an app's configuration; None if it is not set.

    What is assigned to ``app.conf`` comes first. Celery before 5.7 looks for a setting
    of the namespace, such as CELERY_REDLOCK_NODES, before all else.
    """
    if isinstance(conf, UserDict):  # of an app that had not read it yet
        conf = conf.data
    assigned: Mapping[str, Any] = getattr(conf, "changes", {})
    return assigned[name] if name in assigned else conf.get(name)


def _spellings(name: str, namespace: str) -> list[str]:
    """Return the spellings of a setting that Celery reads; the last one is usual."""
    spelling = _PREFIX + name
    return [spelling, f"{namespace}{spelling}".upper()] if namespace else [spelling]


def _refuse_unknown(names: Sequence[str], known: list[str], namespace: str) -> None:
    """Refuse a name that Celery reads as that of a setting which does not exist."""
    for spelling in names:
        name = spelling.lower().partition(_PREFIX)[2]
        read = _spellings(name, namespace)
        if spelling not in read or name in known:
            continue
        if name in LockOptions.names():
            raise ConfigurationError(
                f"There is no setting {spelling}: {name} is a lock option. Write "
                f"@singleton_task({name}=...), or, for several tasks, a base class "
                f'with redlock = {{"{name}": ...}}.'
            )
        at = read.index(spelling)
        written = {one: _spellings(one, namespace)[at] for one in known}
        hint = did_you_mean(name, known, written.__getitem__)
        raise ConfigurationError(f"There is no setting {spelling}. {hint}")


def _refuse_unread(names: Sequence[str], unset: list[str], namespace: str) -> None:
    """Refuse a setting that is set in a spelling which Celery does not read."""
    for spelling in names:
        head, _, name = spelling.lower().partition(_PREFIX)
        if name in unset and head in ("", namespace.lower()):
            raise ConfigurationError(
                f"{spelling} is set, but Celery does not read it in this spelling. "
                f"Write {_spellings(name, namespace)[-1]}."
            )


def _refuse_namespace(names: Sequence[str], namespace: str) -> None:
    """Refuse nodes that are set under a namespace which the app does not read."""
    for spelling in names:
        head = spelling.removesuffix("_REDLOCK_NODES")
        if head not in ("", spelling) and head.isupper() and f"{head}_" != namespace:
            raise ConfigurationError(
                f"redlock_nodes is not set. {spelling} is set, but this app reads the "
                f"namespace {namespace.rstrip('_') or '(none)'}. "
                f'Nothing can be locked; pass namespace="{head}" to '
                "config_from_object."
            )


def _nodes(value: Any) -> tuple[NodeAddress, ...]:
    if not isinstance(value, (list, tuple)) or not value:
        # Do not show the value: it may be a URL with a password.
        fact = f"is of type {type(value).__name__}" if value else "is not set"
        if isinstance(value, SecretUrl):
            fact = "is a text"
        raise ConfigurationError(
            f"redlock_nodes {fact}. Nothing can be locked; set it to a list of URLs of "
            'independent Redis masters, such as ["redis://a:6379/0", ...].'
        )
    with naming("redlock_nodes"):
        return parse_nodes(value)
