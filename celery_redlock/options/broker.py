"""Facts about an app's broker: its delays, its redeliveries, its errors.

=====================  =============================================================
a call with a          waits
=====================  =============================================================
countdown, usually     In the worker that received it, and is not acknowledged. If
                       the worker is killed, Redis and SQS deliver the call again
                       after the visibility timeout; other brokers at once. If it
                       waits for too long, Redis and SQS do the same, and RabbitMQ
                       closes the channel, by which Celery ends the worker.
countdown, and quorum  In the broker, for whole seconds. Celery refuses to publish a
queues (RabbitMQ)      call that is delayed by less than one. Behind a direct
                       exchange it waits in the worker, and counts in its prefetch:
                       Celery does not raise the prefetch of quorum queues.
=====================  =============================================================
"""

from __future__ import annotations

import math
import re
import secrets
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import celery
import kombu
from celery.utils.quorum_queues import detect_quorum_queues
from kombu.exceptions import OperationalError

from celery_redlock.basics.text import MOST_TOLD, printable_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Celery, Task

_T = TypeVar("_T")
_KOMBU: Any = kombu  # has no types
_DELAY = re.compile(r"^(?:[01]\.){28}")  # in front of the routing key
_RETRIES_LOST = "retry_on_worker_lost"
_CONSUMER_TIMEOUT = 1800.0  # seconds: RabbitMQ's default


def visibility_timeout(app: Celery) -> float:
    """Return the seconds after which an unacknowledged message is redelivered.

    kombu's transport says it, however the broker's URL is written: several URLs,
    Sentinels, a URL for reading. Infinity for a broker that notices the end of a worker
    by itself, and for one whose library is not installed.
    """
    try:
        connection = app.connection_for_read()
        channel = getattr(connection.get_transport_cls(), "Channel", None)
    except ImportError:
        return math.inf
    names = ("default_visibility_timeout", "visibility_timeout")
    found = (getattr(channel, name, None) for name in names)
    usual = next((one for one in found if isinstance(one, (int, float))), None)
    if usual is None:
        return math.inf
    given = connection.transport_options.get("visibility_timeout")
    return float(usual if given is None else given)


def has_quorum_queues(app: Celery) -> bool:
    """Tell whether the app uses quorum queues: RabbitMQ delays their calls."""
    return bool(detect_quorum_queues(app, _driver_type(app))[0])


def longest_wait(app: Celery) -> float:
    """Return the seconds for which a call may wait in a worker for its countdown.

    Half of the time after which the broker takes it away. No client can read the
    ``consumer_timeout`` of a RabbitMQ, so this counts with its default.
    """
    try:
        transport = app.connection_for_read().get_transport_cls()
    except ImportError:
        return math.inf
    if transport.driver_type == "amqp":
        return _CONSUMER_TIMEOUT / 2
    return visibility_timeout(app) / 2


def acks_timeouts(task: Task) -> bool:
    """Tell whether a hard time limit acknowledges a message, also with `acks_late`.

    Otherwise Celery stores FAILURE and has the message delivered again.
    """
    usual = task.acks_on_failure_or_timeout  # all that versions before 5.7 have
    return not task.acks_late or bool(getattr(task, "acks_on_timeout", usual))


def retries_lost(task: Task) -> bool:
    """Tell whether Celery retries a call whose process was lost: from 5.7 on."""
    return hasattr(celery.Task, _RETRIES_LOST) and bool(getattr(task, _RETRIES_LOST))


def loses_publications(app: Celery) -> bool:
    """Tell whether publishing returns before the broker has the message."""
    connection = _connection(app)
    is_rabbitmq = connection.transport.driver_name == "py-amqp"
    return is_rabbitmq and not connection.transport_options.get("confirm_publish")


def is_in_memory(app: Celery) -> bool:
    """Tell whether there are no workers in other processes."""
    if not any((app.conf.broker_url, app.conf.broker_write_url)):
        return True
    return _driver_type(app) == "memory"


def accepted_countdown(app: Celery, countdown: float) -> float:
    """Return the countdown with which a call can be published again.

    In whole seconds where the broker delays calls, and at most the `longest_wait`,
    after which it is tried and may be published once more. That holds also on quorum
    queues: calls wait in the worker there, too, if their exchange is direct.
    """
    whole = math.ceil(countdown) if has_quorum_queues(app) else countdown
    return min(float(whole), longest_wait(app))


def way_back(app: Celery, delivery: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that publish a call to its own queue again.

    Celery publishes a call to the exchange and with the routing key of its delivery. So
    each queue that is bound there would get a copy. Here it goes through the default
    exchange to the one queue, which exists already. Where the broker delays calls, it
    goes through the exchange of that queue: only this one delays.
    """
    exchange, key = delivery.get("exchange") or "", delivery.get("routing_key") or ""
    if has_quorum_queues(app):
        queue = _delayed_queue(app, exchange, key)
        if queue is not None:
            there = queue.exchange.name, queue.routing_key
            return {"queue": queue, **_through(*there)}
    name = _queue_name(app, exchange, key)
    if not name:
        return {}
    bare_queue = _KOMBU.Queue(name, _KOMBU.Exchange(""), routing_key=name)
    return {"queue": bare_queue, "declare": [], **_through("", name)}


def _through(exchange: str, key: str) -> dict[str, str]:
    """Return the exchange and the routing key of a message.

    They are named also where they follow from the queue: else Celery takes those of
    ``task_routes``, or of the task, and the call goes elsewhere.
    """
    return {"exchange": exchange, "routing_key": key}


def _delayed_queue(app: Celery, exchange: str, key: str) -> Any:
    """Return the queue of a delivery, if its exchange delays calls; else None.

    A call that was delayed has the routing key of its queue behind the delay.
    """
    bare = _DELAY.sub("", key)
    for queue in _queues(app):
        if queue.exchange.type == "direct":
            continue
        if bare != key:
            is_its_own = queue.routing_key == bare
        elif exchange:
            is_its_own = _is_bound(queue, exchange, key)
        else:
            is_its_own = queue.name == key
        if is_its_own:
            return queue
    return None


def _queue_name(app: Celery, exchange: str, key: str) -> str:
    """Return the name of the queue of a delivery; ``""`` if it is not known."""
    if not exchange:
        return key  # of a message that was published straight to its queue
    bound = (one for one in _queues(app) if _is_bound(one, exchange, key))
    found = next(bound, None)
    return "" if found is None else str(found.name)


def is_broadcast(app: Celery, exchange: str) -> bool:
    """Tell whether each queue that is bound to this exchange gets a copy of a call."""
    return bool(exchange) and any(
        queue.exchange.type == "fanout" and queue.exchange.name == exchange
        for queue in _queues(app)
    )


def broadcast_of(app: Celery, task: str) -> str:
    """Return the name of the fanout exchange to which a task is routed, or ``""``."""
    queue = app.amqp.router.route({}, task).get("queue")
    exchange = getattr(queue, "exchange", None)
    return exchange.name if exchange is not None and exchange.type == "fanout" else ""


def _queues(app: Celery) -> list[Any]:
    """Return the known queues; the consumed ones come first."""
    return [*{**app.amqp.queues.consume_from, **app.amqp.queues}.values()]


def _is_bound(queue: Any, exchange: str, key: str) -> bool:
    """Tell whether a message to this exchange, with this key, comes to the queue."""
    bindings = queue.bindings or [queue]
    return any(
        one.exchange is not None
        and one.exchange.name == exchange
        and _is_routed(one.exchange.type, one.routing_key or "", key)
        for one in bindings
    )


def _is_routed(kind: str, pattern: str, key: str) -> bool:
    if kind == "topic":
        return _matches(pattern.split("."), key.split("."))
    return kind not in ("", "direct") or pattern == key


def _matches(pattern: list[str], words: list[str]) -> bool:
    """Tell whether a topic has these words: ``*`` is one of them, ``#`` any number."""
    if not pattern:
        return not words
    first, *rest = pattern
    if first == "#":
        return any(_matches(rest, words[n:]) for n in range(len(words) + 1))
    return bool(words) and first in ("*", words[0]) and _matches(rest, words[1:])


def answer_of(ask: Callable[[], _T], *, within: float) -> _T:
    """Return what an inquiry over the broker returns; give it up when that is late.

    A broker that takes a connection and says nothing, such as a Redis that hangs, has
    no deadline in kombu. So a thread asks, and one that gets no answer is left alone.

    Args:
        ask: The inquiry. It may go on after this function has raised an error.
        within: Seconds.

    Raises:
        OperationalError: There was no answer in time.
        Exception: The error of the inquiry.
    """
    answers: list[_T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            answers.append(ask())
        except Exception as error:  # noqa: BLE001  (raised again below)
            errors.append(error)

    thread = threading.Thread(target=run, name="redlock-inquiry", daemon=True)
    thread.start()
    thread.join(within)
    for error in errors:
        raise error
    if not answers:
        raise OperationalError(f"no answer within {within:g} s")
    return answers[0]


class PublishingStopped(Exception):  # noqa: N818  (a result, shown to operators)
    """A RabbitMQ takes no messages, of any client."""


def ask_workers(
    app: Celery,
    what: str,
    *arguments: Any,
    workers: list[str] | None = None,
    patience: float,
    within: float,
    **named: Any,
) -> dict[str, Any]:
    """Return the answers of running workers to an inquiry, by their names.

    Args:
        app: Their app.
        what: The name of the inquiry, as Celery's ``app.control.inspect`` has it.
        arguments: Its arguments.
        workers: The workers that are asked; None for all.
        patience: Seconds that workers have to answer.
        within: Seconds for the broker, and for the answers.
        named: Its arguments with a name.

    Raises:
        PublishingStopped: The broker takes no messages, so no worker was asked.
        Exception: The broker does not answer: one of `broker_errors`.
    """

    def ask() -> dict[str, Any]:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0)
            _check_publishing(connection, within)
            inspect = app.control.inspect(
                workers, connection=connection, timeout=patience
            )
            return answers_in(getattr(inspect, what)(*arguments, **named))

    return answer_of(ask, within=within)


def _check_publishing(connection: Any, within: float) -> None:
    """Raise `PublishingStopped` if a RabbitMQ takes no messages.

    While an alarm of its memory or disk is on, it reads no message, and tells that only
    to a client that sends one. So it gets one for no queue, and confirms that.
    """
    if connection.transport.driver_name != "py-amqp":
        return
    amqp = connection.connection
    extensions = amqp.server_capabilities
    needed = ("publisher_confirms", "connection.blocked")
    if not all(map(extensions.get, needed)):
        return
    amqp.on_blocked = _stop
    channel = connection.channel()
    try:
        nothing = channel.prepare_message(b"")
        nowhere = f"redlock.{secrets.token_hex()}"
        channel.basic_publish_confirm(nothing, routing_key=nowhere, timeout=within)
        channel.close()
    except PublishingStopped:
        connection.collect()  # it reads no farewell either
        raise
    except connection.channel_errors:
        return  # our user may not publish there: it cannot be told


def _stop(_reason: str) -> None:
    raise PublishingStopped("an alarm of its memory or disk is on")


def answers_in(replies: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the answers of workers to an inquiry, by their names.

    A worker in which the inquiry has failed replies with the error, and is left out.
    """
    return {
        worker: told
        for worker, told in (replies or {}).items()
        if not (isinstance(told, dict) and isinstance(told.get("error"), str))
    }


def broker_errors(app: Celery) -> tuple[type[BaseException], ...]:
    """Return the errors by which the broker does not accept a message."""
    broker = _connection(app)
    return (
        PublishingStopped,
        OperationalError,
        OSError,
        *broker.recoverable_connection_errors,
        *broker.connection_errors,
        *broker.channel_errors,
    )


def silence_of(error: BaseException) -> str:
    """Return why the broker could not be asked, as a clause, after `broker_errors`."""
    is_up = isinstance(error, PublishingStopped)
    fact = "takes no messages" if is_up else "did not answer"
    return f"the broker {fact} ({printable_line(str(error), MOST_TOLD).rstrip('.')})"


def marks_redeliveries(app: Celery) -> bool:
    """Tell whether a message that comes again says so, in its ``delivery_info``.

    kombu's other transports, SQS for one, deliver it as it was.
    """
    return _driver_type(app) in ("redis", "amqp")


def _driver_type(app: Celery) -> str:
    return str(_connection(app).transport.driver_type)


def _connection(app: Celery) -> Any:
    """Return the connection that the app's producers are made of; it is not opened."""
    return app.producer_pool.connections.connection
