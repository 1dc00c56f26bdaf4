"""The messages of an outbox in a Django database: ``Outbox("default")``.

The app ``"celery_redlock.contrib.django"`` has the model `models.OutboxMessage` and its
migration. A message is written in the transaction that is open on the connection of
this alias, and published by ``transaction.on_commit``.
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import connections, transaction
from django.db.models import F, Min

from celery_redlock.contrib.django.records import DjangoRecords, as_moment
from celery_redlock.errors import ConfigurationError
from celery_redlock.task.outbox import OutboxMessage
from celery_redlock.task.stored import StoredValue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

__all__ = ["DjangoMessages"]


class DjangoMessages:
    """The messages in one database of Django: a `task.outbox.MessageStore`.

    Args:
        alias: The name of the database in ``DATABASES``.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def check(self) -> None:
        """Refuse an alias that does not exist, and a project without the app."""
        DjangoRecords(self._alias).check()

    def write(
        self, message: OutboxMessage, session: Any, then: Callable[[], None]
    ) -> None:
        """Write a message in the open transaction. After its commit, call ``then``."""
        if session is not None:
            raise ConfigurationError(
                f"Outbox({self._alias!r}).send() writes in the open transaction of "
                "this Django database, so it takes no session. Leave it out."
            )
        self._rows().create(
            id=message.id,
            task=message.task,
            body=message.body.text,
            content_type=message.body.content_type,
            content_encoding=message.body.content_encoding,
            written_at=as_moment(message.written_at),
        )
        transaction.on_commit(then, using=self._alias)

    @contextlib.contextmanager
    def taken(
        self,
        most: int,
        *,
        ids: Collection[str] | None = None,
        before: datetime | None = None,
        but: Collection[str] = (),
    ) -> Iterator[tuple[list[OutboxMessage], Callable[[Any], None]]]:
        """Give committed messages, locked, and a function that deletes some of them."""
        rows = self._rows().order_by("written_at", "id").exclude(pk__in=but)
        if ids is not None:
            rows = rows.filter(pk__in=ids)
        if before is not None:
            rows = rows.filter(written_at__lt=as_moment(before))
        features = connections[self._alias].features
        if features.has_select_for_update:
            rows = rows.select_for_update(
                skip_locked=features.has_select_for_update_skip_locked
            )
        with transaction.atomic(using=self._alias, durable=True):
            if not features.has_select_for_update:
                # SQLite: begin with a write, as in `records`.
                self._rows().filter(pk="").update(task=F("task"))
            found = [_message(row) for row in rows[:most]]
            yield found, lambda done: self._rows().filter(pk__in=done).delete()

    def waiting(self) -> tuple[int, datetime | None]:
        """Return how many messages there are, and when the oldest one was written."""
        rows = self._rows()
        oldest = rows.aggregate(oldest=Min("written_at"))["oldest"]
        return rows.count(), oldest and oldest.replace(tzinfo=timezone.utc)

    def _rows(self) -> Any:
        model = apps.get_model("celery_redlock", "OutboxMessage")
        return model.objects.using(self._alias)


def _message(row: Any) -> OutboxMessage:
    return OutboxMessage(
        id=row.id,
        task=row.task,
        body=StoredValue(row.body, row.content_type, row.content_encoding),
        written_at=row.written_at.replace(tzinfo=timezone.utc),
    )
