"""Inquiries: running workers tell about themselves, over the broker."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.text import MOST_TOLD, printable_line
from celery_redlock.options.broker import (
    answer_of,
    answers_in,
    broker_errors,
    is_in_memory,
)

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from celery import Celery

_REPLY_WITHIN = 1.0  # seconds
_WITH_CONNECTION = 5.0  # seconds: one that hangs must not stop the doctor
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
    """

    def __init__(self, app: Celery | None) -> None:
        self._app = app
        self.silence = ""

    def told(self, what: str, *arguments: str) -> dict[str, Any]:
        """Return the workers' replies to one of Celery's inquiries, by their names.

        It takes a second, or five if the broker hangs.
        """
        app = self._app
        if app is None or self.silence or is_in_memory(app):
            return {}

        def ask() -> dict[str, Any]:
            with app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1, interval_start=0)
                inspect = app.control.inspect(
                    connection=connection, timeout=_REPLY_WITHIN
                )
                return answers_in(getattr(inspect, what)(*arguments))

        try:
            return answer_of(ask, within=_WITH_CONNECTION)
        except broker_errors(app) as error:
            reason = printable_line(str(error), MOST_TOLD).rstrip(".")
            self.silence = f"the broker did not answer ({reason})"
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
