"""Keeps the nodes' passwords out of ``celery report`` and ``celery inspect conf``.

Both commands print the configuration. They mask settings with names like
``password``, and ``redlock_nodes`` has no such name. When an app with lock tasks has
read its configuration, its nodes are therefore replaced by an object that shows their
URLs masked. ``list(app.conf.redlock_nodes)`` still returns the nodes as they were
written.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from celery import signals

from celery_redlock.basics.secret import hidden
from celery_redlock.settings import setting_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery import Celery

_SETTING = "redlock_nodes"  # in upper or lower case, after any namespace


class MaskedNodes:
    """A list of nodes whose repr has no passwords.

    It is no ``list``: ``celery inspect conf`` would get its items. It is no
    ``Sequence`` either: Sentry shows the items of those.
    """

    def __init__(self, nodes: Sequence[Any]) -> None:
        self.nodes = nodes

    def __getitem__(self, index: Any) -> Any:
        return self.nodes[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return repr(hidden(self.nodes))


def mask(app: Celery) -> None:
    """Mask the nodes of an app: now, or when it reads its configuration."""
    if app.configured:
        if not isinstance(setting_in(app.conf, _SETTING), MaskedNodes):
            _mask_conf(app.conf)
    else:
        app.on_after_configure.connect(_mask_conf, weak=False)


class _Cover(Mapping[str, Any]):
    """The nodes of a module or an object, masked each time that they are read.

    Django's ``override_settings`` replaces them for a while.
    """

    def __init__(self, places: Sequence[Mapping[str, Any]]) -> None:
        self._places = places
        # Each access to a setting that is not assigned comes here: it must be quick.
        self._names = {name for one in places for name in one if _are_nodes(name)}

    def __getitem__(self, name: str) -> Any:
        if name in self._names:
            for place in self._places:
                if name in place:
                    return _masked(place[name])
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _are_nodes(name: object) -> bool:
    # The user may have named it CELERY_REDLOCK_NODES.
    return str(name).lower().endswith(_SETTING)


def _masked(nodes: Any) -> Any:
    if isinstance(nodes, (list, tuple)):
        return MaskedNodes(nodes)
    if isinstance(nodes, (str, bytes, bytearray, Mapping, AbstractSet)):
        return hidden(nodes)  # of a wrong type, which an error names
    return nodes


def _mask_conf(source: Any, **_: object) -> None:
    """Mask what was assigned, and cover the rest.

    A cover is a default: an assignment replaces it, as it replaces what is covered.
    The mask of the rest must be no assignment, because Celery looks for
    CELERY_REDLOCK_NODES before redlock_nodes.
    """
    for name in [name for name in source.changes if _are_nodes(name)]:
        source.changes[name] = _masked(source.changes[name])
    cover = _Cover(source.maps[1:])
    # An app that assigns its nodes needs no cover, and does not pay for one.
    if cover and not isinstance(source.maps[1], _Cover):
        source.add_defaults(cover)


def _when_modules_are_imported(sender: Celery, **_: object) -> None:
    mask(sender)


signals.import_modules.connect(_when_modules_are_imported, weak=False)
