"""The messages of an outbox in a Django database: ``Outbox("default")``.

The app ``"celery_redlock.contrib.django"`` has the model `models.OutboxMessage` and its
migration. A message is written in the transaction that is open on the connection of
this alias, and published by ``transaction.on_commit``.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import connections, transaction
from django.db.models import F, Min, Q

from celery_redlock.contrib.django.records import as_moment, check_alias
from celery_redlock.effects.call_records import from_row, in_utc, now
from celery_redlock.effects.outbox import OutboxMessage, Which
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from datetime import datetime

_FIELDS = [field.name for field in fields(OutboxMessage)]


class DjangoMessages:
    """The messages in one database of Django: an `effects.outbox.MessageStore`."""

    def __init__(self, alias: str) -> None:
        check_alias(f"Outbox({alias!r})", alias)
        self._alias = alias

    def write(
        self, message: OutboxMessage, session: Any, then: Callable[[list[str]], None]
    ) -> None:
        """Write a message in the open transaction. After its commit, call ``then``."""
        if session is not None:
            raise ConfigurationError(
                f"Outbox({self._alias!r}).send() writes in the open transaction of "
                "this Django database, so it takes no session. Leave it out."
            )
        self._refuse_other_transaction()
        self._refuse_manual_transactions()
        values = asdict(message)
        self._rows().create(**{**values, "written_at": as_moment(message.written_at)})
        ids = self._written_before(then)
        ids.append(message.id)
        transaction.on_commit(_AfterCommit(then, ids), using=self._alias)

    def _refuse_other_transaction(self) -> None:
        """Refuse a message whose open transaction is in another database."""
        if connections[self._alias].in_atomic_block:
            return
        for other in connections.all(initialized_only=True):
            if other.in_atomic_block:
                raise ConfigurationError(
                    f"Outbox({self._alias!r}).send() was called in a transaction of "
                    f"{other.alias!r}, and {self._alias!r} is in none: the message "
                    "would be published also after a rollback. Use "
                    f"Outbox({other.alias!r}), or begin a transaction of "
                    f"{self._alias!r}."
                )

    def _refuse_manual_transactions(self) -> None:
        """Refuse a connection whose transactions this module could not commit."""
        connection = connections[self._alias]
        if not (
            connection.commit_on_exit
            if connection.in_atomic_block
            else connection.get_autocommit()
        ):
            raise ConfigurationError(
                f"The AUTOCOMMIT of {self._alias!r} is off. An outbox commits what it "
                "takes before it publishes, and what it deletes after it. Nothing was "
                "written. Leave AUTOCOMMIT on, and use transaction.atomic()."
            )

    def _written_before(self, then: Callable[[list[str]], None]) -> list[str]:
        """Return the list of the message ids that wait for the commit."""
        for _, function, *_ in connections[self._alias].run_on_commit:
            if isinstance(function, _AfterCommit) and function.then == then:
                return function.ids
        return []

    def take(self, most: int, until: datetime, which: Which) -> list[OutboxMessage]:
        """Return committed messages that no process has taken, and take them."""
        self._refuse_manual_transactions()
        is_free = Q(taken_until=None) | Q(taken_until__lte=as_moment(now()))
        rows = self._rows().filter(is_free).order_by("written_at", "id")
        if which.ids is not None:
            rows = rows.filter(pk__in=which.ids)
        if which.before is not None:
            rows = rows.filter(written_at__lt=as_moment(which.before))
        if which.after is not None:
            at = as_moment(which.after.written_at)
            later = Q(written_at__gt=at) | Q(written_at=at, pk__gt=which.after.id)
            rows = rows.filter(later)
        features = connections[self._alias].features
        if features.has_select_for_update:
            rows = rows.select_for_update(
                skip_locked=features.has_select_for_update_skip_locked
            )
        with self._transaction():
            if not features.has_select_for_update:
                # SQLite: begin with a write, as in `records`.
                self._rows().filter(pk="").update(task=F("task"))
            found = [from_row(OutboxMessage, r) for r in rows.values(*_FIELDS)[:most]]
            taken = self._rows().filter(pk__in=[message.id for message in found])
            taken.update(taken_until=as_moment(until))
        return found

    def finish(
        self, done: Collection[str], kept: Collection[str], until: datetime
    ) -> None:
        """Delete the published messages, and free the others."""
        self._replace_dead_connection()
        with self._transaction():
            if done:
                self._rows().filter(pk__in=done).delete()
            if kept:
                ours = self._rows().filter(pk__in=kept, taken_until=as_moment(until))
                ours.update(taken_until=None)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run the block in a transaction that others cannot make fail.

        That is READ COMMITTED. A stricter one fails if another process has changed a
        row since it began: then a published message would be published again.
        """
        connection = connections[self._alias]
        is_first = not connection.in_atomic_block  # not so in a TestCase
        with transaction.atomic(using=self._alias, durable=True):
            if is_first and connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            yield

    def _replace_dead_connection(self) -> None:
        """Close a connection that has failed and does not answer: Django opens another.

        One that answers is kept, with the settings of its session.
        """
        connection = connections[self._alias]
        may_be_dead = connection.errors_occurred and not connection.in_atomic_block
        if may_be_dead and not connection.is_usable():
            connection.close()

    def waiting(self) -> tuple[int, datetime | None]:
        """Return how many messages there are, and when the oldest one was written."""
        rows = self._rows()
        oldest = rows.aggregate(oldest=Min("written_at"))["oldest"]
        return rows.count(), oldest and in_utc(oldest)

    def _rows(self) -> Any:
        model = apps.get_model("celery_redlock", "OutboxMessage")
        return model.objects.using(self._alias)


class _AfterCommit:
    """A function for `on_commit`: one for each message, and all on the same ids.

    Django drops those of a savepoint that is rolled back. The first one that is left
    publishes all messages that are committed.
    """

    def __init__(self, then: Callable[[list[str]], None], ids: list[str]) -> None:
        self.then = then
        self.ids = ids

    def __call__(self) -> None:
        ids = self.ids.copy()
        self.ids.clear()
        if ids:
            self.then(ids)
