"""Inquiries: running workers tell about themselves, over the broker."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery_redlock.options.broker import (
    PublishingStopped,
    ask_workers,
    broker_errors,
    is_in_memory,
    silence_of,
)

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from celery import Celery

_REPLY_WITHIN = 1.0  # seconds
_WITH_CONNECTION = 5.0  # seconds: one that hangs must not stop the doctor
_START = "Start the broker, or run the doctor where it can be reached."
_FREE_SPACE = (
    "Give it memory or disk space: `rabbitmq-diagnostics alarms` names what it lacks. "
    "Until then no call is published."
)
_FIELDS = ("lock_options", "key_rule", "lock_nodes")  # of a task; the nodes are last


class Workers:
    """The running workers of an app.

    A broker that does not answer is asked once. Each later inquiry returns at once,
    without replies.

    Args:
        app: The Celery app; None if there is none. Then there are no workers.

    Attributes:
        silence: Why the broker could not be asked, a clause; ``""`` if it could, or if
            it was not asked.
        remedy: What to do about that.
    """

    def __init__(self, app: Celery | None) -> None:
        self._app = app
        self.silence = self.remedy = ""

    def told(self, what: str, *arguments: str) -> dict[str, Any]:
        """Return the workers' replies to one of Celery's inquiries, by their names.

        It takes a second, or five if the broker hangs.
        """
        app = self._app
        if app is None or self.silence or is_in_memory(app):
            return {}

        try:
            return ask_workers(
                app,
                what,
                *arguments,
                patience=_REPLY_WITHIN,
                within=_WITH_CONNECTION,
            )
        except broker_errors(app) as error:
            self.silence = silence_of(error)
            is_full = isinstance(error, PublishingStopped)
            self.remedy = _FREE_SPACE if is_full else _START
            return {}

    @cached_property
    def tasks(self) -> dict[str, dict[str, str]]:
        """The tasks that each worker tells of: their fields, if they take a lock."""
        found = {}
        for worker, texts in sorted(self.told("registered", *_FIELDS).items()):
            parts = (text.removesuffix("]").partition(" [") for text in texts)
            found[worker] = {name: fields for name, _, fields in parts}
        return found

    def nodes(
        self, names: Container[str] | None = None
    ) -> dict[str, set[frozenset[str]]]:
        """Return the lists of nodes that each worker has for its lock tasks.

        With names: for the tasks of these names. A worker tells the names of its nodes,
        which have no passwords: its answer goes over the broker.
        """
        told: dict[str, set[frozenset[str]]] = {}
        for worker, tasks in self.tasks.items():
            for name, fields in tasks.items():
                _, has_nodes, labels = fields.rpartition("lock_nodes=")
                if has_nodes and (names is None or name in names):
                    told.setdefault(worker, set()).add(frozenset(labels.split()))
        return told

    def by_nodes(self, labels: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the names of the workers that use these nodes, and of the others.

        One without lock tasks, of an earlier version, or that does not answer within a
        second is in neither list.
        """
        ours = {frozenset(labels)}
        these: list[str] = []
        others: list[str] = []
        for worker, told in self.nodes().items():
            (these if told == ours else others).append(worker)
        return these, others
