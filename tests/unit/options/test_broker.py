"""The broker of an app: how calls wait in it, and its errors."""

from __future__ import annotations

import importlib.util
import math
import threading
from typing import Any

import kombu
import pytest
from amqp.exceptions import NotFound  # type: ignore[import-untyped]
from celery import Celery
from kombu.exceptions import OperationalError

from celery_redlock.options.broker import (
    accepted_countdown,
    answer_of,
    answers_in,
    broker_errors,
    visibility_timeout,
    way_back,
)

QUORUM = {"task_default_queue_type": "quorum", "task_default_exchange_type": "topic"}


BOTO = importlib.util.find_spec("boto3") is not None


def app_on(url: Any, **conf: Any) -> Celery:
    """Return an app with this broker, to which nothing connects."""
    app = Celery("unit", broker=url, set_as_current=False)
    app.conf.update(conf)
    return app


@pytest.mark.parametrize(
    ("url", "options", "seconds"),
    [
        ("redis://here", {}, 3600),
        ("rediss://here", {}, 3600),
        ("redis+socket:///here", {}, 3600),
        ("redis://here;redis://there", {}, 3600),
        (["redis://here", "redis://there"], {}, 3600),
        (("redis://here",), {"visibility_timeout": "60"}, 60),
        ("sentinel://here;sentinel://there", {"master_name": "m"}, 3600),
        ("SENTINEL://here", {"master_name": "m", "visibility_timeout": 60}, 60),
        ("slmq://", {}, 1800),
        ("sqs://", {}, BOTO * 1800 or math.inf),
        ("redis://here", {"visibility_timeout": 60}, 60),
        ("amqp://here", {"visibility_timeout": 60}, math.inf),
        ("memory://", {}, math.inf),
    ],
)
def test_visibility_timeout_is_of_brokers_that_have_one(
    url: Any, options: dict[str, Any], seconds: float
) -> None:
    """RabbitMQ notices by its connection that a worker has ended."""
    app = app_on(url, broker_transport_options=options)

    assert visibility_timeout(app) == seconds


def test_visibility_timeout_is_of_the_broker_from_which_workers_read() -> None:
    """A second URL may be for publishing."""
    app = app_on("", broker_read_url="redis://here", broker_write_url="amqp://there")

    assert visibility_timeout(app) == 3600


def test_countdown_is_at_most_half_of_the_visibility_timeout() -> None:
    """Redis would deliver a call that waits for longer once more."""
    app = app_on("redis://here", broker_transport_options={"visibility_timeout": 60})

    assert accepted_countdown(app, 29.5) == 29.5
    assert accepted_countdown(app, 86400) == 30


@pytest.mark.parametrize("conf", [{}, QUORUM])
def test_countdown_is_at_most_half_of_the_consumer_timeout(
    conf: dict[str, str],
) -> None:
    """RabbitMQ closes the channel of a call that waits longer, and the worker ends."""
    app = app_on("amqp://here", **conf)

    assert accepted_countdown(app, 900) == 900
    assert accepted_countdown(app, 86400) == 900


@pytest.mark.parametrize(("countdown", "seconds"), [(0.001, 1), (0.9, 1), (1.1, 2)])
def test_countdown_is_in_whole_seconds_on_quorum_queues(
    countdown: float, seconds: float
) -> None:
    """RabbitMQ delays calls by whole seconds there, and by no less than one."""
    assert accepted_countdown(app_on("amqp://here", **QUORUM), countdown) == seconds
    assert accepted_countdown(app_on("amqp://here"), countdown) == countdown


def test_call_finds_the_queue_that_it_came_from() -> None:
    """At first by its exchange; after a delay only by what follows the delay."""
    library: Any = kombu  # has no types
    queues = [
        library.Queue(name, library.Exchange(name, type="topic"), routing_key=name)
        for name in ("celery", "own")
    ]
    app = app_on("amqp://here", task_queues=queues, **QUORUM)
    app.amqp.queues["celery"].queue_arguments = {"x-queue-type": "quorum"}

    def found(exchange: str, key: str) -> str | None:
        options = way_back(app, {"exchange": exchange, "routing_key": key})
        return options["queue"].name if options else None

    assert found("own", "own") == "own"
    assert found("celery_delayed_delivery", f"{'0.' * 27}1.own") == "own"
    assert found("another", "own") is None
    assert found("own", "unknown") is None
    assert found("", "own") == "own"
    assert way_back(app, {}) == {}
    classic = app_on("amqp://here", task_queues=queues[1:])
    options = way_back(classic, {"exchange": "own", "routing_key": "own"})
    assert options["queue"].exchange.name == ""  # no call is delayed there


@pytest.mark.parametrize("url", ["amqp://here", "redis://here", "memory://"])
def test_errors_of_the_broker_are_known(url: str) -> None:
    """A lost connection is waited out on every broker, a mistake on none."""
    errors = broker_errors(app_on(url))

    assert issubclass(OperationalError, errors)
    assert issubclass(ConnectionRefusedError, errors)
    assert issubclass(TimeoutError, errors)
    assert not issubclass(ValueError, errors)


def test_refusal_of_the_broker_is_an_error_of_it() -> None:
    """RabbitMQ may not know the exchange yet."""
    assert issubclass(NotFound, broker_errors(app_on("amqp://here")))


@pytest.mark.parametrize(
    ("kind", "binding", "key"),
    [
        ("direct", "own", "own"),
        ("topic", "own.#", "own.eu.now"),
        ("topic", "own.#", "own"),
        ("topic", "*.eu.*", "own.eu.now"),
        ("topic", "#.now", "now"),
        ("topic", "own.#.now", "own.now"),
        ("headers", "", "any"),
    ],
)
def test_call_goes_back_to_one_queue_alone(kind: str, binding: str, key: str) -> None:
    """Each queue that is bound to its exchange would get a copy."""
    library: Any = kombu  # has no types
    exchange = library.Exchange("shop", type=kind)
    queues = [
        library.Queue("other", library.Exchange("other"), routing_key=key),
        library.Queue("elsewhere", exchange, routing_key="elsewhere.#")
        if kind != "headers"
        else library.Queue("plain"),
        library.Queue("mine", exchange, routing_key=binding),
    ]
    app = app_on("amqp://here", task_queues=queues)

    options = way_back(app, {"exchange": "shop", "routing_key": key})

    assert options["queue"].name == "mine"
    assert options["queue"].exchange.name == ""
    assert options["declare"] == []
    assert way_back(app, {"exchange": "unknown", "routing_key": key}) == {}


@pytest.mark.parametrize(
    "delivery",
    [
        {"exchange": "", "routing_key": "mine"},
        {"exchange": "shop", "routing_key": "own.eu"},
    ],
    ids=["sent to the queue", "sent to the exchange"],
)
def test_route_of_a_task_does_not_lead_a_call_away_from_its_queue(
    delivery: dict[str, str],
) -> None:
    """The route is for new calls: each queue that is bound there would get a copy."""
    library: Any = kombu  # has no types
    exchange = library.Exchange("shop", type="topic")
    queues = [
        library.Queue(name, exchange, routing_key=key)
        for name, key in (("mine", "own.#"), ("audit", "#"))
    ]
    route = {"exchange": "shop", "routing_key": "own.eu"}
    app = app_on("memory://", task_queues=queues, task_routes={"pay": route})
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        for queue in queues:
            queue(channel).declare()

        app.send_task("pay", **way_back(app, delivery))

        found = [channel.queue_purge(queue.name) for queue in queues]
        assert found == [1, 0]


def test_call_goes_back_to_a_queue_that_only_the_main_process_knows() -> None:
    """A worker was told to consume from it (``add_consumer``) after its pool forked."""
    app = app_on("memory://", task_create_missing_queues=False)
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        channel.queue_declare("told")

        app.send_task("pay", **way_back(app, {"exchange": "", "routing_key": "told"}))

        assert channel.queue_purge("told") == 1


def test_call_that_a_pattern_has_routed_is_delayed_for_its_queue() -> None:
    """Celery would delay it for the default queue."""
    library: Any = kombu  # has no types
    exchange = library.Exchange("shop", type="topic")
    mine = library.Queue(
        "mine",
        exchange,
        routing_key="own.#",
        queue_arguments={"x-queue-type": "quorum"},
    )
    app = app_on("amqp://here", task_queues=[library.Queue("celery"), mine])
    delay = f"{'0.' * 27}1."

    for delivery in [
        {"exchange": "shop", "routing_key": "own.eu"},
        {"exchange": "celery_delayed_delivery", "routing_key": f"{delay}own.#"},
    ]:
        options = way_back(app, delivery)
        assert options["queue"].name == "mine"
        assert (options["exchange"], options["routing_key"]) == ("shop", "own.#")


def test_queue_with_several_bindings_is_found_by_each() -> None:
    """Its own exchange is then none of them."""
    library: Any = kombu  # has no types
    bindings = [
        library.binding(library.Exchange("shop", type="direct"), routing_key=key)
        for key in ("one", "two")
    ]
    app = app_on("amqp://here", task_queues=[library.Queue("mine", bindings)])

    for key in ("one", "two"):
        options = way_back(app, {"exchange": "shop", "routing_key": key})
        assert options["queue"].name == "mine"


def test_inquiry_that_hangs_is_given_up() -> None:
    """The thread that asks is left alone, and the others go on."""
    ends = threading.Event()
    try:
        with pytest.raises(OperationalError, match=r"no answer within 0\.01 s"):
            answer_of(ends.wait, within=0.01)
    finally:
        ends.set()


def test_error_of_an_inquiry_is_raised_where_it_was_asked() -> None:
    """An answer of None is one, too."""
    assert answer_of(lambda: None, within=20) is None
    with pytest.raises(ZeroDivisionError):
        answer_of(lambda: 1 / 0, within=20)


def test_reply_with_an_error_is_no_answer() -> None:
    """Celery sends the error of an inquiry as its reply."""
    replies = {"a@here": {"error": "KeyError('x')"}, "b@here": {"x": ["error", {}]}}

    assert answers_in(replies) == {"b@here": {"x": ["error", {}]}}
    assert answers_in(None) == {}
