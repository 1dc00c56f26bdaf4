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
        if not isinstance(app.conf.get(_SETTING), MaskedNodes):
            _mask_conf(app.conf)
    else:
        app.on_after_configure.connect(_mask_conf, weak=False)


def _mask_conf(source: Any, **_: object) -> None:
    """Cover the nodes, each where it is set.

    What the user assigns to ``app.conf`` replaces what a module or object has, and
    must go on to do so. So the cover of the latter is a default, and no assignment:
    Celery looks for CELERY_REDLOCK_NODES before redlock_nodes.
    """
    # The user may have named it CELERY_REDLOCK_NODES.
    names = [name for name in source if str(name).lower().endswith(_SETTING)]
    covers = {}
    for name in names:
        place = next(one for one in source.maps if name in one)
        nodes = place[name]
        if isinstance(nodes, (list, tuple)):
            nodes = MaskedNodes(nodes)
        elif isinstance(nodes, (str, bytes, bytearray, Mapping, AbstractSet)):
            nodes = hidden(nodes)  # of a wrong type, which an error names
        else:
            continue
        if place is source.changes:
            place[name] = nodes
        else:
            covers[name] = nodes
    if covers:
        source.add_defaults(covers)


def _when_modules_are_imported(sender: Celery, **_: object) -> None:
    mask(sender)


signals.import_modules.connect(_when_modules_are_imported, weak=False)
