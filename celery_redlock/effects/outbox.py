"""Messages that are published if, and only if, a transaction commits: the `Outbox`.

::

    transaction    effects + messages in a table
         │
      commit ────► take the messages ─► publish each ─► the broker ─► delete them
         │         for 30 s                             confirms it
         │
         └─ the process dies, or the broker is away: ``celery_redlock.publish_outbox``
            or `celery redlock outbox --publish` finds the messages, later

The process that commits publishes its messages at once. A message is deleted when the
broker has it; see `app.confirmed`. No transaction is open while a broker is waited for.

A message has its task id from the beginning. If a process dies after it has published a
message and before it has deleted it, the message is published once more, with the same
id: with ``exactly_once_in`` on its task, this has no effect.

To take messages is a transaction of its own. It finds what is committed, so a message
whose savepoint was rolled back is not published. And it notes until when they are
taken, so two processes do not publish the same one at the same time. What a process
that has died had taken, another one takes when this time is over.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from celery import Task, current_app, shared_task
from celery.canvas import Signature
from celery.exceptions import SoftTimeLimitExceeded
from kombu.exceptions import OperationalError
from kombu.serialization import prepare_accept_content
from kombu.utils.uuid import uuid

from celery_redlock.app.confirmed import MessageRefusedError, confirmed
from celery_redlock.app.runtime import app_itself
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.basics.spelling import did_you_mean
from celery_redlock.basics.text import check_id
from celery_redlock.effects.call_records import in_each, now
from celery_redlock.effects.stored import MOST_NAMED, loaded, stored
from celery_redlock.errors import ConfigurationError, LeaseError
from celery_redlock.options.exactly_once import check_database, open_store
from celery_redlock.options.lock_options import fault_of_call, takes_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from celery import Celery
    from celery.result import AsyncResult

log = logging.getLogger(__name__)

_AT_ONCE = 100  # messages that are taken together
_TAKEN = 30.0  # seconds for which messages are taken
_PUBLISHING = 10.0  # of them; then the rest is free again
_GRACE = 10.0  # seconds for the process that has committed to publish its messages
_OPTIONS = (
    *("countdown", "eta", "expires", "queue", "exchange", "routing_key", "priority"),
    *("headers", "serializer", "compression", "delivery_mode", "task_id", "shadow"),
    *("ignore_result", "soft_time_limit", "time_limit", "argsrepr", "kwargsrepr"),
)
# What ends the body in which a message is published. It says nothing of the broker.
_INTERRUPTS = (LeaseError, SoftTimeLimitExceeded)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxMessage:
    """A message that is in the outbox.

    Attributes:
        id: The id of the call that it starts.
        body: Its args, kwargs and options, as ``effects.stored`` writes them.
        content_type: The serializer of the body, as kombu knows it.
        written_at: When it was written, by the clock of its writer, in UTC.
    """

    id: str
    task: str
    body: str
    content_type: str
    content_encoding: str
    written_at: datetime


@dataclass(frozen=True, slots=True)
class Waiting:
    """The messages that wait in an outbox.

    Attributes:
        messages: How many messages.
        oldest: For how many seconds the oldest one has waited; 0 if there is none.
    """

    messages: int
    oldest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Which messages are taken: all to which each of these applies that is given."""

    ids: Collection[str] | None = None
    before: datetime | None = None
    after: OutboxMessage | None = None


class MessageStore(Protocol):
    """The messages in one database. It may be used by several threads at once.

    To make one connects to nothing, and raises ConfigurationError if it can never work.
    """

    def write(
        self, message: OutboxMessage, session: Any, then: Callable[[list[str]], None]
    ) -> None:
        """Write a message in the open transaction.

        After its commit, call ``then`` once, with the ids of all its messages. The
        connection of the transaction is free then.

        Raises:
            ConfigurationError: It is not known which transaction this is.
        """

    def take(self, most: int, until: datetime, which: Which) -> list[OutboxMessage]:
        """Return committed messages that no process has taken, and take them.

        They are the oldest ones, ``most`` at most, and free again at ``until``, if
        they are still there. Those that another transaction has locked are left out.
        """

    def finish(
        self, done: Collection[str], kept: Collection[str], until: datetime
    ) -> None:
        """Delete the published messages, and free the others.

        A message that another process has taken since then stays taken.
        """

    def waiting(self) -> tuple[int, datetime | None]:
        """Return how many messages there are, and when the oldest one was written."""


class Outbox:
    """Publish tasks if, and only if, the transaction commits.

    ::

        outbox = Outbox("default")                    # Django: the alias of a database
        outbox = Outbox(lambda: Session(engine))      # SQLAlchemy: makes a session

        with transaction.atomic():
            order.save()
            outbox.send(ship, (order.pk,))

    Inside of a task with ``exactly_once_in`` the transaction is that of the call. Keep
    the outbox in a module that is imported with the tasks: what a killed process has
    not published, the periodic task ``celery_redlock.publish_outbox`` publishes.

    Args:
        database: The alias of a Django database, or a callable that returns a session
            of SQLAlchemy (or a ``scoped_session``), as for ``exactly_once_in``.
        app: The Celery app that publishes; the current app by default.

    Raises:
        ConfigurationError: The database cannot be used.
    """

    def __init__(
        self, database: str | Callable[[], Any], *, app: Celery | None = None
    ) -> None:
        self._database = database
        self._app = app
        check_database("The database of an Outbox", database)
        _known.add(self)

    @property
    def app(self) -> Celery:
        """The app that publishes."""
        return self._app or current_app._get_current_object()  # noqa: SLF001

    def belongs_to(self, app: Celery) -> bool:
        """Tell whether this app publishes its messages."""
        return self._app is None or app_itself(self._app) is app_itself(app)

    def send(
        self,
        task: Task | str,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        session: Any = None,
        **options: Any,
    ) -> AsyncResult:
        """Write a message in the open transaction; it is published after the commit.

        Args:
            task: The task, or its name.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            session: SQLAlchemy: the session whose commit publishes the message; that
                of the call by default, in a task with ``exactly_once_in``.
            **options: As for ``apply_async``. A countdown and an expiry begin now.

        Returns:
            The result that the task will have. Its id is fixed now.

        Raises:
            TypeError: The arguments do not fit the task.
            ValueError: Nodes cannot store the ``task_id``; or it, or the name of the
                task, has more than 255 characters or a NUL.
            ConfigurationError: An option is one of the lock or cannot be stored,
                ``accept_content`` does not name the serializer, or no transaction is
                known.
            kombu.exceptions.EncodeError: An argument cannot be serialized.
        """
        if isinstance(task, Signature):
            raise ConfigurationError(
                f"Outbox.send() takes a task, and {task} is a signature. Write "
                "outbox.send(task, args, kwargs). For a chain, a group or a chord, "
                "send a task that starts it."
            )
        if not isinstance(task, str) and takes_lock(task):
            fault = fault_of_call(task.name, options, "Nothing was written.")
            if fault is not None:
                raise fault
        if unknown := sorted(set(options) - set(_OPTIONS)):
            raise ConfigurationError(
                f"Outbox.send() does not know the option {unknown[0]!r}. "
                f"{did_you_mean(unknown[0], _OPTIONS)}"
            )
        args, kwargs = tuple(args), dict(kwargs or {})
        name, app, serializer = str(task), self.app, options.get("serializer")
        if not isinstance(task, str):
            name, app = task.name, task.app
            serializer = serializer or task.serializer
            options.setdefault("expires", task.expires)  # begins now, too
            args, kwargs = _as_sent(task, args, kwargs, serializer)
        task_id = options.pop("task_id", None) or uuid()
        check_id(task_id)
        _check_storable("task id", task_id)
        _check_storable("name of the task", name)
        call = [args, kwargs, _with_fixed_times(options)]
        body, kind, encoding = stored(call, serializer or app.conf.task_serializer)
        accept = _accepted_by(self.app)
        if accept is not None and kind not in accept:
            raise ConfigurationError(
                f"Outbox.send() stores this call as {kind}, and accept_content does "
                "not name that serializer: the message could never be published. "
                "Nothing was written. Add it to accept_content, or leave out "
                "serializer=."
            )
        message = OutboxMessage(
            id=task_id,
            task=name,
            body=body,
            content_type=kind,
            content_encoding=encoding,
            written_at=now(),
        )
        self._store.write(message, session, self._publish_committed)
        return app.AsyncResult(task_id)

    def publish(self, *, grace: float = _GRACE, app: Celery | None = None) -> int:
        """Publish the messages that wait, the oldest first.

        Those that cannot be published stay, and the reason is logged. If the broker
        does not answer, nothing more is tried.

        Args:
            grace: Leave out those that were written less than so many seconds ago:
                the process that has committed them publishes them itself.
            app: The app that publishes; that of the outbox by default.

        Returns:
            How many were published.
        """
        before = now() - timedelta(seconds=grace)
        published, run = 0, _Batch(untried=[], is_last=False)
        while not (run.is_last or run.outage):
            which = Which(before=before, after=run.tried)
            run = self._publish(app or self.app, which)
            published += len(run.published)
        return published

    def waiting(self) -> Waiting:
        """Return what is committed and not yet published."""
        count, oldest = self._store.waiting()
        age = (now() - oldest).total_seconds() if oldest else 0.0
        return Waiting(count, max(0.0, age))

    @property
    def name(self) -> str:
        """The alias of the database, or the name of the callable."""
        return str(getattr(self._database, "__qualname__", self._database))

    def __str__(self) -> str:
        return f"the outbox of {self.name!r}"

    @cached_property
    def _store(self) -> MessageStore:
        store: MessageStore = open_store(
            "An Outbox",
            self._database,
            django="django.outbox:DjangoMessages",
            sqlalchemy="sqlalchemy.outbox:SqlAlchemyMessages",
        )
        return store

    # -- publishing ----------------------------------------------------------------

    def _publish_committed(self, ids: list[str]) -> None:
        """Publish messages of this process; an error stops nothing that follows."""
        try:
            for first in range(0, len(ids), _AT_ONCE):
                run = self._publish(self.app, Which(ids=ids[first : first + _AT_ONCE]))
                if run.outage:
                    for message in run.untried:
                        self._log_kept(message, run.outage)
                    break
        except _INTERRUPTS:
            raise
        except Exception:
            text = "The messages of %s stay in %s, which could not be used."
            extra = log_fields("outbox-kept", task_id=ids[0])
            log.exception(text, ", ".join(ids), self, extra=extra)

    def _publish(self, app: Celery, which: Which) -> _Batch:
        """Publish a batch of messages, and delete the confirmed ones."""
        until = now() + timedelta(seconds=_TAKEN)
        messages = self._store.take(_AT_ONCE, until, which)
        is_last = len(messages) < _AT_ONCE
        run = _Batch(untried=list(messages), is_last=is_last, tried=which.after)
        end = SYSTEM_CLOCK.monotonic() + _PUBLISHING
        try:
            while run.untried and not run.outage and SYSTEM_CLOCK.monotonic() < end:
                self._publish_next(app, run)
        finally:
            kept = [one.id for one in messages if one.id not in run.published]
            if messages:
                self._finish(run.published, kept, until)
        return run

    def _finish(self, done: list[str], kept: list[str], until: datetime) -> None:
        """Delete the published messages, and free the others, in a second try too.

        Meanwhile the connection may have died, or another transaction been in the way.
        """
        try:
            self._store.finish(done, kept, until)
        except _INTERRUPTS:
            raise
        except Exception as error:  # noqa: BLE001  (each driver has its own)
            text = "The published messages of %s are deleted in a second try (%s: %s)."
            log.warning(text, self, type(error).__name__, error)
            self._store.finish(done, kept, until)

    def _publish_next(self, app: Celery, run: _Batch) -> None:
        message = run.untried[0]
        error = _publish(app, message)
        run.tried = run.untried.pop(0)
        if error is None:
            run.published.append(message.id)
        else:
            run.outage = error if _is_away(error) else None
            self._log_kept(message, error)

    def _log_kept(self, message: OutboxMessage, error: Exception) -> None:
        is_of_broker = isinstance(error, OperationalError)
        log.log(
            logging.WARNING if is_of_broker else logging.ERROR,
            "%s[%s] stays in %s, since it could not be published (%s: %s).",
            message.task,
            message.id,
            self,
            type(error).__name__,
            error,
            exc_info=None if is_of_broker else error,
            extra=log_fields("outbox-kept", task=message.task, task_id=message.id),
        )


@dataclass(slots=True)
class _Batch:
    """Messages that were taken together.

    Attributes:
        is_last: No others wait.
        tried: The last one that was tried, here or before.
        published: The ids of those that the broker has.
        outage: Why no other can be published now, either.
    """

    untried: list[OutboxMessage]
    is_last: bool
    tried: OutboxMessage | None = None
    published: list[str] = field(default_factory=list)
    outage: Exception | None = None


_known: weakref.WeakSet[Outbox] = weakref.WeakSet()


def outboxes_of(app: Celery) -> list[Outbox]:
    """Return the outboxes of this process whose messages an app publishes."""
    return sorted((one for one in _known if one.belongs_to(app)), key=str)


def publish_outboxes(app: Celery, *, grace: float = _GRACE) -> int:
    """Publish what waits in the outboxes of an app, and return how many that were."""

    def publish(outbox: Outbox) -> int:
        count = outbox.publish(grace=grace, app=app)
        if count:
            text = "Published %d messages of %s that no process had published."
            extra = log_fields("outbox-published", messages=count)
            log.info(text, count, outbox, extra=extra)
        return count

    return in_each(outboxes_of(app), publish)


@shared_task(
    name="celery_redlock.publish_outbox", base=Task, bind=True, ignore_result=True
)
def publish_outbox(self: Task) -> int:
    """Publish what waits in the outboxes, and return how many that were."""
    return publish_outboxes(self.app)


def _publish(app: Celery, message: OutboxMessage) -> Exception | None:
    """Publish a message, or return why it could not be published."""
    task = app.tasks.get(message.task)
    try:
        kind, encoding = message.content_type, message.content_encoding
        accept = _accepted_by(app)
        args, kwargs, options = loaded(message.body, kind, encoding, accept)
        options["task_id"] = message.id
        with confirmed(app) as sure:
            if task is None:
                app.send_task(message.task, args, kwargs, **options, **sure)
            else:
                task.apply_async(args, kwargs, **options, **sure)
    except _INTERRUPTS:
        raise
    except Exception as error:  # noqa: BLE001  (each broker has its own)
        return error
    return None


def _accepted_by(app: Celery) -> set[str] | None:
    """Return the content types of messages that an app reads; None for all."""
    accept: set[str] | None = prepare_accept_content(app.conf.accept_content)  # type: ignore[no-untyped-call]
    return accept


def _check_storable(what: str, text: str) -> None:
    """Refuse a text that the database would refuse, and the transaction with it."""
    if len(text) > MOST_NAMED:
        raise ValueError(
            f"The {what} {text[:60]!r}... has {len(text):,} characters; an outbox "
            f"stores at most {MOST_NAMED}. Nothing was written."
        )
    if "\0" in text:  # PostgreSQL has it in no text
        raise ValueError(
            f"The {what} {text!r} has a NUL, which an outbox cannot store. Nothing was "
            "written."
        )


def _as_sent(task: Task, args: Any, kwargs: Any, serializer: Any) -> tuple[Any, Any]:
    """Return arguments as `apply_async` sends them; a TypeError if they do not fit."""
    check = getattr(task, "__header__", None)  # a task that is a class has none
    if task.typing and check is not None:
        check(*args, **kwargs)
    dump = getattr(task, "_dump_pydantic_arguments", None)
    if dump is None or serializer == "pickle":
        return args, kwargs
    dumped: tuple[Any, Any] = dump(args, kwargs)
    return dumped


def _is_away(error: Exception) -> bool:
    """Tell whether the broker does not answer, so that the next message would fail."""
    return isinstance(error, OperationalError) and not isinstance(
        error, MessageRefusedError
    )


def _with_fixed_times(options: dict[str, Any]) -> dict[str, Any]:
    """Return options whose countdown and expiry do not move with the publication."""
    fixed = dict(options)
    countdown, expires = fixed.pop("countdown", None), fixed.get("expires")
    if countdown:  # Celery prefers it to an eta
        fixed["eta"] = _in(countdown)
    if isinstance(expires, (int, float)):
        fixed["expires"] = _in(expires)
    for name in ("eta", "expires"):
        if isinstance(fixed.get(name), datetime):
            fixed[name] = fixed[name].isoformat()
    return fixed


def _in(seconds: float) -> datetime:
    try:
        return datetime.now(timezone.utc) + timedelta(seconds=seconds)
    except (OverflowError, ValueError):  # infinity, nan, or after the year 9999
        raise ConfigurationError(
            f"Outbox.send() knows no moment that comes in {seconds} seconds. Nothing "
            "was written."
        ) from None
