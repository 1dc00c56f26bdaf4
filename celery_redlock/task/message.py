"""The message of a call, as Celery sends it in the end.

A project can change a call after `SingletonTask` has seen it: in ``apply_async`` of a
base class, in the app's ``send_task``, in a router, or in a receiver of
``before_task_publish``. It can also send the message later, or not at all. So claims
and announcements believe the message and not the call: `SentMessage` keeps it.
"""

from __future__ import annotations

import operator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from celery.app.task import Context
from celery.signals import before_task_publish
from kombu.exceptions import DecodeError
from kombu.serialization import registry
from kombu.utils import json as kombu_json

from celery_redlock.errors import FingerprintError
from celery_redlock.task.header import without_header

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Task

    from celery_redlock.locks.limits import Limits

_REGISTRY: Any = registry  # has no types


class SentMessage:
    """The message of one call; empty until Celery makes it, to send it at once.

    Attributes:
        arguments: Those of the call, as its publisher has given them.
        when_made: What is done when Celery has made the message, before it is sent.
    """

    def __init__(self, task: Task, key: str, args: Any, kwargs: Any) -> None:
        self.task = task
        self.arguments = tuple(args or ()), dict(kwargs or {})
        self.was_sent = False
        self.when_made: list[Callable[[], None]] = []
        self._key = key
        self._serializer: str | None = None
        # Celery's own objects: receivers that come later change them, too.
        self.headers: dict[str, Any] = {}
        self._body: Any = ()

    def send(self, send: Callable[..., Any], /, **options: Any) -> Any:
        """Send a call with these options of ``apply_async``, and keep its message."""
        self._serializer = options.get("serializer")
        before = _watched.set((*_watched.get(), self))
        try:
            return send(**options)
        finally:
            _watched.reset(before)

    def note(self, headers: dict[str, Any], body: Any) -> None:
        """Keep the message that is about to be sent."""
        self.was_sent, self.headers, self._body = True, headers, body
        for do in self.when_made:
            do()

    @property
    def id(self) -> str:
        """The id of the call; ``""`` if it is not known."""
        return str(self.headers.get("id") or "")

    @property
    def key(self) -> str:
        """The key of the call as it is sent; ``""`` if it has none.

        The body of the old protocol, 1, is a dict, and is not looked at.
        """
        body, task = self._body, self.task
        if not self.was_sent or isinstance(body, dict):
            return self._key
        # A key function may ask for headers, and a receiver may have set some.
        if _are_same(body, self.arguments) and not task.key_rule.wants_headers:
            return self._key
        try:
            args, kwargs = as_received(task, body[0], body[1], self._serializer)
            headers = Context(self.headers).headers  # those that are not Celery's
            return wanted_by_message(task, args, kwargs, headers)[0]
        except FingerprintError:
            return ""


_watched: ContextVar[tuple[SentMessage, ...]] = ContextVar(
    "celery_redlock_watched", default=()
)


def _note(
    sender: Any = None, headers: Any = None, body: Any = None, **_: object
) -> None:
    for message in _watched.get():
        if not message.was_sent and sender == message.task.name:
            message.note(headers, body)


def _are_same(body: Any, arguments: tuple[Any, Mapping[str, Any]]) -> bool:
    """Compare by identity: the arguments may not be comparable."""
    args, kwargs = arguments
    return (
        len(body[0]) == len(args)
        and all(map(operator.is_, body[0], args))
        and body[1].keys() == kwargs.keys()
        and all(body[1][name] is kwargs[name] for name in kwargs)
    )


def as_received(
    task: Task, args: Any, kwargs: Any, serializer: str | None = None
) -> tuple[Any, Any]:
    """Return the arguments of a call as a worker gets them.

    They pass the serializer that sends them: its own, that of the task, or that of the
    app. Keys have the form of kombu's JSON anyway, and pickle keeps the objects.

    Raises:
        FingerprintError: The serializer refuses them.
    """
    app = task._get_app()  # noqa: SLF001  (Celery's: it binds the task, which sets the rule)
    serializer = serializer or task.serializer or app.conf.task_serializer
    dump = getattr(task, "_dump_pydantic_arguments", None)
    if dump is not None and serializer != "pickle":
        args, kwargs = dump(args, kwargs)
    if serializer == "pickle" or _is_kombus_json(serializer):
        return args, kwargs
    try:
        kind, encoding, body = _REGISTRY.dumps([args, kwargs], serializer)
        received = _REGISTRY.loads(body, kind, encoding, accept=[kind])
    except DecodeError:
        # With ``auth``, who signs need not have the certificate to verify that.
        return args, kwargs
    except Exception as error:
        # Each serializer has errors of its own.
        raise FingerprintError(
            f"The arguments of this call of {task.name} cannot be sent: the serializer "
            f"{serializer!r} refuses them ({type(error).__name__}: {error}). Nothing "
            "was sent or locked; pass values that it takes."
        ) from error
    return received[0], received[1]


def _is_kombus_json(serializer: str) -> bool:
    """Tell whether this is the JSON whose form keys have; a project can replace it."""
    if serializer not in ("json", "application/json"):
        return False
    return registry._encoders["json"].encoder is kombu_json.dumps  # noqa: SLF001


def key_to_publish(
    task: Task, args: Any, kwargs: Any, options: Mapping[str, Any]
) -> str:
    """Return the key of a call that is published with these options.

    Raises:
        FingerprintError: The arguments cannot be reduced to a key. Without ``typing``,
            as Celery calls it, more keywords than the task takes are no error.
    """
    args, kwargs = as_received(
        task, args or (), kwargs or {}, options.get("serializer")
    )
    headers = without_header(options.get("headers") or {})
    key: str = task.key_rule.key_of(
        args, kwargs, headers=headers, may_have_more=not task.typing
    )
    return key


def wanted_by_message(
    task: Task, args: Any, kwargs: Any, headers: Mapping[str, Any] | None
) -> tuple[str, Limits]:
    """Return the key and the limits of a call from its message; or FingerprintError."""
    wanted: tuple[str, Limits] = task.key_rule.wanted_by(
        args, kwargs, headers=without_header(headers or {}), may_have_more=True
    )
    return wanted


before_task_publish.connect(_note, weak=False)
