"""Publish a message, and return when the broker has it: ``confirmed``.

::

    with confirmed(app) as sure:
        task.apply_async(args, kwargs, **sure)

    basic_publish ─► bytes in a socket ─► RabbitMQ routes and stores ─► basic.ack
                     Celery returns here                                 we return here

Without this, RabbitMQ may lose a message after ``apply_async`` has returned: it is
killed, its queue is full, or no queue is bound. What must not be lost is sent through
here: messages of an outbox, before their rows are deleted, and each repetition of a
call, before its old copy is acknowledged.

=====================  =============================================================
broker                 when ``apply_async`` returns in the block
=====================  =============================================================
RabbitMQ               It has confirmed the message: a persistent one is on its disk,
                       or on the disks of most members of a quorum queue.
Redis                  It has answered: the message is in a queue in its memory. What
                       a crash of it loses, its settings decide.
SQS, others            They have answered, as always.
=====================  =============================================================

The connection to RabbitMQ or Redis is one of ours: ``confirm_publish`` changes all
channels of a connection, and Celery's own waits without end for a Redis that hangs. A
connection on which an answer is missing is closed. Otherwise the next message would
take the late answer for its own. A forked process has connections of its own, for the
same reason.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from amqp.exceptions import MessageNacked  # type: ignore[import-untyped]
from kombu import pools
from kombu.exceptions import LimitExceeded, OperationalError

from celery_redlock.basics.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

_LONGEST = 10.0  # seconds until a message is confirmed, or a Redis has answered
_UNROUTABLE = (312, 313)  # reply codes: no queue is bound, or none has a consumer
_CONNECTING = ("max_retries", "interval_start", "interval_step", "interval_max")


class MessageRefusedError(OperationalError):
    """The broker refuses this message; it may accept others."""


@contextmanager
def confirmed(app: Celery) -> Iterator[dict[str, Any]]:
    """Give options with which ``apply_async`` returns when the broker has the message.

    It takes 10 seconds at most, and as long again as it takes to connect.

    Raises:
        MessageRefusedError: The broker does not take the message: its queue is full,
            or has other arguments, or there is no queue.
        kombu.exceptions.OperationalError: The broker is away, or has not confirmed
            the message in time. It may have the message nevertheless.
    """
    usual = app.producer_pool.connections.connection
    options = _options_of(usual)
    if app.conf.task_always_eager or options is None:
        yield {}
        return
    pool = pools.producers[app.connection_for_write(transport_options=options)]
    try:
        producer = pool.acquire(block=True, timeout=_LONGEST)
    except LimitExceeded as error:
        raise OperationalError(
            f"All {pool.limit} connections for confirmed messages are in use for "
            f"{_LONGEST:g} s (broker_pool_limit). Nothing was published."
        ) from error
    try:
        yield {"producer": _ConfirmedProducer(producer, app.conf)}
    finally:
        producer.release()


def _options_of(usual: Any) -> dict[str, Any] | None:
    """Return the options of a connection of our own; None: the usual one will do."""
    driver = usual.transport.driver_name
    # kombu's pools are copied by a fork, and the options choose the pool.
    own = {"redlock_process": os.getpid()}
    if driver == "py-amqp":
        return {"confirm_publish": True, **own}
    if driver == "redis":
        configured = usual.transport_options.get("socket_timeout")
        return {"socket_timeout": configured or _LONGEST, **own}
    return None


class _ConfirmedProducer:
    """A producer that returns from ``publish`` when the broker has the message."""

    def __init__(self, producer: Any, conf: Any) -> None:
        self._producer = producer
        policy = conf.task_publish_retry_policy or {}
        self._connecting = {n: policy[n] for n in _CONNECTING if n in policy}
        self._mandatory = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """Publish a message; once more if the pooled connection has to be closed.

        It has died, or it has declared a queue that was deleted since.
        """
        deadline = SYSTEM_CLOCK.monotonic() + _LONGEST
        options |= {"retry": False, "mandatory": self._mandatory}
        options.pop("confirm_timeout", None)
        self._mandatory = False  # an event may follow, which needs no receiver
        if self._producer.connection.connected:
            try:
                return self._publish_by(deadline, body, options)
            except OperationalError:
                is_open = self._producer.connection.connected
                if is_open or SYSTEM_CLOCK.monotonic() >= deadline:
                    raise
        return self._publish_by(deadline, body, options)

    def _publish_by(self, deadline: float, body: Any, options: dict[str, Any]) -> Any:
        producer: Any = self._producer
        connection: Any = producer.connection
        recoverable = connection.recoverable_connection_errors
        errors = (
            *recoverable,
            *connection.connection_errors,
            *connection.channel_errors,
        )
        try:
            if not connection.connected:
                self._connect(deadline)
                producer.revive(connection)
            options = {**options, "timeout": _until(deadline)}
            with _limited(connection, options["timeout"]):
                if options["mandatory"] and connection.transport.driver_type != "amqp":
                    self._refuse_without_queue(**options)
                return producer.publish(body, **options)
        except errors as error:
            if isinstance(error, MessageNacked):
                raise MessageRefusedError(
                    "RabbitMQ does not take the message (basic.nack). Its queue is "
                    "full and rejects publications, or a member of it has failed."
                ) from error
            connection.collect()
            if getattr(error, "reply_code", 0) in _UNROUTABLE:
                raise MessageRefusedError(
                    f"RabbitMQ has no queue for the message ({error})."
                ) from error
            if not isinstance(error, recoverable):
                if isinstance(error, connection.channel_errors):
                    raise MessageRefusedError(_refusal(error)) from error
                raise
            raise OperationalError(_text(error)) from error
        except BaseException:
            connection.collect()
            raise

    def _connect(self, deadline: float) -> None:
        connection: Any = self._producer.connection
        refusals = (*connection.connection_errors, *connection.channel_errors)
        try:
            connection.ensure_connection(timeout=_until(deadline), **self._connecting)
        except refusals as error:  # no such user, password, or virtual host
            raise OperationalError(
                f"The broker refuses the connection ({error}). Correct broker_url, or "
                "the user's rights."
            ) from error

    def _refuse_without_queue(
        self,
        exchange: Any = None,
        routing_key: str | None = None,
        declare: Any = (),
        **_: object,
    ) -> None:
        """Refuse a message that kombu would drop, since no queue is bound for it."""
        producer: Any = self._producer
        for entity in declare or ():
            producer.maybe_declare(entity)
        exchange = producer.exchange if exchange is None else exchange
        name = getattr(exchange, "name", exchange)
        key = producer.routing_key if routing_key is None else routing_key
        channel = producer.channel
        if not name or channel.typeof(name).type == "fanout":
            return  # the key names a queue; or a broadcast, which is not kept
        if not channel._lookup(name, key):  # noqa: SLF001  (by which kombu sends)
            raise MessageRefusedError(
                "Redis has no queue for the message: none is bound to the exchange "
                f"{name!r} for the routing key {key!r}."
            )


def _limited(connection: Any, seconds: float) -> Any:
    """Limit what has no timeout of its own: to open a channel, to declare a queue."""
    if connection.transport.driver_type != "amqp":
        return nullcontext()
    return connection.connection.transport.having_timeout(seconds)


def _refusal(error: BaseException) -> str:
    if "inequivalent arg" in str(error):
        return (
            "RabbitMQ has the queue or the exchange of the message with other "
            f"arguments ({error}). Write these into task_queues; or delete it in "
            "RabbitMQ when it is empty, and it is declared anew."
        )
    return f"The broker refuses the message ({error})."


def _text(error: BaseException) -> str:
    said = f"{type(error).__name__}: {error}"
    if not isinstance(error, TimeoutError):  # that of redis-py says what it means
        return said
    return (
        f"RabbitMQ has not confirmed the message within {_LONGEST:g} s ({said}). It "
        "blocks publishers while its memory or disk alarm is on."
    )


def _until(deadline: float) -> float:
    return max(0.01, deadline - SYSTEM_CLOCK.monotonic())
