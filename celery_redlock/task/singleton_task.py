"""The base class of tasks that run once at a time: ``SingletonTask``.

``__call__`` acquires the lock and releases it before it returns. (If the body retries
itself, the lock is released when Celery has stored RETRY; see ``execution``.) This is
the only place outside of ``autoretry_for`` that is left before Celery publishes the
rest of a chain and the callbacks.

=================================  =============================================
a call                             runs
=================================  =============================================
by a worker                        under its lock; see ``execution``
``task.apply()``, always eager     without a lock, unless ``redlock_eager``
``task(42)``, ``.map``, recursion  as a plain function
``with task.lock(42): ...``        nothing: your block runs under the same lock
=================================  =============================================
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import warnings
from contextlib import asynccontextmanager, contextmanager
from types import FunctionType, GenericAlias, ModuleType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    overload,
)

from celery import Task
from celery._state import get_current_task, get_current_worker_task
from celery.exceptions import Ignore, Reject, Retry
from celery.result import EagerResult
from celery.states import REVOKED
from kombu.utils.imports import symbol_by_name

from celery_redlock.app import worker_hooks
from celery_redlock.app.autoretry import retry_as_configured
from celery_redlock.app.confirmed import confirmed
from celery_redlock.app.masking import mask
from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.basics.signature import (
    hidden_parameters,
    positional_names,
    signature_of,
    takes_any,
)
from celery_redlock.basics.text import check_id
from celery_redlock.errors import (
    ConfigurationError,
    DuplicateTask,
    FingerprintError,
    LockLost,
    RedlockError,
)
from celery_redlock.line.claims import Claims
from celery_redlock.locking import aheld_by, held_by
from celery_redlock.locks.lease import family_of
from celery_redlock.options.call_key import KeyRule
from celery_redlock.options.lock_options import (
    LockOptions,
    fault_of_call,
    may_take_options,
    options_in,
    unread_in,
)
from celery_redlock.options.values import naming
from celery_redlock.settings import setting_in
from celery_redlock.task.announcement import send_announced, send_in_order
from celery_redlock.task.awaitables import refuse_async, refuse_batches
from celery_redlock.task.call import Call
from celery_redlock.task.ends import EndedEagerly, end_refused, forget_refusal
from celery_redlock.task.execution import Execution, State, TaskLock, running
from celery_redlock.task.header import (
    TaskHeader,
    published_at,
    was_received,
    with_fields,
    with_published,
    without_header,
)
from celery_redlock.task.message import SentMessage, as_received, key_to_publish
from celery_redlock.task.publishing import (
    called_with,
    publish,
    release_claim,
    with_conflict,
)
from celery_redlock.task.results import close_old_connections
from celery_redlock.task.tracer import RefusalTracer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from types import FrameType

    from celery import Celery
    from celery.app.task import Context
    from celery.canvas import Signature
    from celery.result import AsyncResult
    from typing_extensions import ParamSpec, TypeVar

    from celery_redlock.locks.lease import Lease
    from celery_redlock.locks.limits import Limits
    from celery_redlock.policies import Conflict
    from celery_redlock.task.explain import Explanation

    P = ParamSpec("P", default=...)
    R = TypeVar("R", covariant=True, default=Any)  # noqa: PLC0105

    class _Result(AsyncResult[R], Generic[R]):
        """The result of a call that was published, for type checkers."""

        conflict: Conflict | None

        def get(self, timeout: float | None = None, **options: Any) -> R: ...

    class _Base(Task[P, R], Generic[P, R]):
        """Celery's class, as type checkers see it: with types of its calls.

        A class of a user, as ``base``, may have any other attribute.
        """

        def delay(self, *args: P.args, **kwargs: P.kwargs) -> _Result[R]: ...
        def si(self, *args: P.args, **kwargs: P.kwargs) -> Signature[R]: ...
        def __getattr__(self, name: str, /) -> Any: ...

else:
    P = R = None

    class _Base:
        def __class_getitem__(cls, _: Any) -> type[Task]:
            return Task


log = logging.getLogger(__name__)

_REQUEST = "celery_redlock.task.request:RedlockRequest"
_MORE = ("task_id", "producer", "link", "link_error", "shadow")  # of apply_async
_AFTER_COMMIT = "redlock_after_commit"
_REPLACES = "replaced_task_nesting"  # Celery's option of a call that replaces another
_PARENT = "parent_id"  # Celery's option of a call that another one has started
_CALLERS = {"celery.map": ".map", "celery.starmap": ".starmap or .chunks"}
_USE_A_GROUP = "Use a group of its calls, where each must have its lock."
_SEND_IT = "Let a plain task be the errback, and send the call from there."
_OF_A_CLASS = (FunctionType, classmethod, staticmethod, property)


class SingletonTask(_Base[P, R]):
    """Base class of tasks that run once at a time.

    Use it through ``@singleton_task``, with Celery's own decorator,
    ``@app.task(base=SingletonTask, redlock={...})``, or for a task that is a
    class. Options of base classes are inherited one by one.

    Attributes:
        redlock: The lock options of this class; see ``options.LockOptions``.
        lock_options: These options and those of its base classes, checked.
        key_rule: Reduces a call to its key.
        tracks_start: Whether STARTED is stored when the body begins: Celery's
            ``track_started``, which it would do before the lock is asked for.

    Raises:
        ConfigurationError: When a subclass is defined, or bound to its app: an
            option is wrong, or does not fit the task's signature.

    ``autoretry_for`` retries a call that its policy has failed, if it names
    ``DuplicateTask`` or another error of this package. It does not retry after a lost
    lock, unless it names ``LockLost``.
    (If Celery's own decorator gets a ``dont_autoretry_for``, it uses only that: name
    ``LockLost`` there.)
    """

    abstract = True
    if not TYPE_CHECKING:  # older versions of Celery have none
        __class_getitem__ = classmethod(GenericAlias)
    Request = _REQUEST
    # No value here: it would hide that of a base class that comes after this one.
    dont_autoretry_for: ClassVar[tuple[type[Exception], ...]]
    __trace__ = RefusalTracer()

    redlock: ClassVar[Mapping[str, Any]] = {}
    lock_options: ClassVar[Any] = LockOptions()  # None: a task of Celery's own
    _redlock_options: ClassVar[Mapping[str, Any]] = {}
    _added: ClassVar[Mapping[str, Any]]
    _rule: KeyRule
    tracks_start: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A base class may inject arguments, and say what is left of them.
        body, options = vars(self).get("run"), self.lock_options
        if body is not None and options is not None and not takes_any(body):
            name = self.name or type(self).__qualname__
            self._rule = rule_of_body(name, body, options, type(self), bound=False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _stand_next_to_celery(cls)
        if _publishes_on_commit(cls):
            cls.__bases__ = (PublishedOnCommit, *cls.__bases__)
        if "lock_options" in vars(cls):
            raise ConfigurationError(
                f"{cls.name or cls.__qualname__}: lock_options is what a task has made "
                "of its options, and cannot be set. Write redlock = {...}."
            )
        cls._read_options()
        if "_decorated" in vars(cls):
            # Celery registers the task first, and then binds it. In between, another
            # thread would use it: the first requests of a web server come together.
            cls.bind(cls.app)

    @classmethod
    def _read_options(cls) -> None:
        """Check the options of this class and of its base classes."""
        retried = getattr(cls, "autoretry_for", ())
        spare_lost = functools.partial(without_lost, retried)
        cls._complete("dont_autoretry_for", spare_lost)
        cls._complete("throws", _with_duplicate)
        with naming(cls.name or cls.__qualname__):
            written = options_in(cls.redlock)
            if "redlock" in vars(cls):
                # An annotation (``task_annotations``) comes on top of what was written.
                cls._redlock_options = {**cls._redlock_options_of(cls), **written}
            inherited: dict[str, Any] = {}
            for base in reversed(cls.__mro__):
                inherited |= {**cls._redlock_options_of(base), **_named_options(base)}
            cls.lock_options = LockOptions(**inherited)

    @classmethod
    def _complete(cls, name: str, complete: Callable[[Any], Any]) -> None:
        """Add ours to an attribute, as the first class that has written it says.

        What is added in one class must not hide what a base class after it has written.
        """
        writer = next((one for one in cls.__mro__ if _has_written(one, name)), None)
        value = complete(vars(writer)[name] if writer else ())
        setattr(cls, name, value)
        if writer is not cls:
            cls._added = {**vars(cls).get("_added", {}), name: value}

    @staticmethod
    def _redlock_options_of(base: type) -> Mapping[str, Any]:
        return vars(base).get("_redlock_options") or vars(base).get("redlock") or {}

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Check the task against its options, now that its name and body are known."""
        super().on_bound(app)
        mask(app)
        if "_rule" in vars(cls) or cls.run is Task.run:
            return  # Celery binds a task twice, and base classes without a body, too
        if str(cls.__module__).startswith("celery."):
            # Celery's own tasks, where this class is the app's ``task_cls``.
            cls.lock_options, cls.Request = None, Task.Request
            return
        cls._read_options()
        own = inspect.getattr_static(cls, "run")
        bound = not isinstance(own, (staticmethod, classmethod))
        options, name = cls.lock_options, cls.name or cls.__qualname__
        cls._rule = rule_of_body(name, cls.run, options, cls, bound=bound)
        cls.Request = _request_class_of(cls)
        cls.tracks_start, cls.track_started = bool(cls.track_started), False
        if cls.lock_options.exactly_once_in is not None:
            from celery_redlock.effects.call_records import register_prune  # noqa: PLC0415

            register_prune(app)
        _warn_of_bypass(cls)

    @property
    def key_rule(self) -> KeyRule:
        """The rule by which calls get their keys; the name of the task is in a hash.

        Where tasks are instances of one class, each has a name of its own.
        """
        if self._rule.task != self.name:
            self._rule = self._rule.of_task(self.name)
        return self._rule

    # -- running ------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the body: under the lock in a worker, without one elsewhere."""
        request = self.request
        body: Callable[[], R] = functools.partial(super().__call__, *args, **kwargs)
        if not self._takes_lock(request):
            if request.called_directly and self.lock_options is not None:
                self._refuse_to_be_a_body()
                self._warn_of_direct_call()
            return body()
        execution = Execution(Call.of(self, request, args, kwargs))
        try:
            return execution.run(body)
        except (Ignore, RedlockError, Retry) as error:  # others are faults: of a policy
            if execution.state is not State.REFUSED:
                forget_refusal()  # that of a call which the body has applied
                raise
            refusal: Exception = error
        if isinstance(refusal, RedlockError) and self._retries_after(refusal):
            try:
                retry_as_configured(self, refusal)
            except RedlockError as error:  # there is no further retry
                refusal = error
        raise end_refused(refusal)

    def _retries_after(self, refusal: RedlockError) -> bool:
        """Tell whether ``autoretry_for`` names an error of this package like this one.

        Celery retries after errors of the body, which has not begun. A class such as
        ``Exception`` is about these.
        """
        named = getattr(self, "autoretry_for", ())
        ours = tuple(one for one in named if issubclass(one, RedlockError))
        return isinstance(refusal, ours)

    def _takes_lock(self, request: Context) -> bool:
        if request.called_directly or self.lock_options is None:
            return False
        if request.is_eager and not setting_in(self.app.conf, "redlock_eager"):
            return False
        # ``self(n - 1)`` in a body comes here with the request of that body.
        execution = running()
        return execution is None or not execution.is_of(self, request)

    def _refuse_to_be_a_body(self) -> None:
        """Raise if Celery's decorator has made another task, without a lock, of it."""
        caller = get_current_task()
        # Either may be a proxy, so they are compared and not identical.
        if caller is not None and getattr(caller, "__wrapped__", None) == self:
            raise ConfigurationError(
                f"The task {caller.name} would run {self.name} without its lock: "
                "@app.task or @shared_task was applied above @singleton_task. Nothing "
                "ran. Remove that decorator, and give its options to @singleton_task."
            )

    def _warn_of_direct_call(self) -> None:
        """Log a call by Celery itself that takes no lock."""
        caller = get_current_worker_task()
        how, remedy = _CALLERS.get(caller.name if caller else "", ""), _USE_A_GROUP
        if _is_errback():
            how, remedy = "link_error", _SEND_IT
        if how:
            runtime_of(self.app).warn_of_direct_calls(self.name, how, remedy)

    # -- the same lock elsewhere --------------------------------------------

    # Type checkers cannot add a keyword to those of the task: with it, they do not
    # check the arguments.
    @overload
    def lock(
        self, *args: P.args, **kwargs: P.kwargs
    ) -> AbstractContextManager[Lease]: ...
    @overload
    def lock(
        self, *args: Any, wait: float, **kwargs: Any
    ) -> AbstractContextManager[Lease]: ...
    @contextmanager
    def lock(self, *args: Any, **kwargs: Any) -> Iterator[Lease]:
        """Hold the lock of the call with these arguments while the block runs.

        Use it in a view or a management command that does the same work as the task.
        In the body of that very call it yields the lease that is already held. A lost
        lock does not interrupt the block: ask ``lease.ensure()``.

        Args:
            *args: The arguments of the call.
            **kwargs: Its keyword arguments, and ``wait``: the seconds to wait for the
                lock; 0 by default. (If the task has an argument ``wait``, it is that.)

        Raises:
            LockHeld: Another client has the lock, or other clients have all permits.
            LockContended: The votes were split.
            QuorumUnreachable: Too few nodes answered. After each of these errors the
                block did not run.
            LockLost: The lock was lost while the block ran.
            FingerprintError: The arguments cannot be reduced to a key.
        """
        wait, kwargs = self._split_wait(kwargs)
        with held_by(self._lock_of(args, kwargs), wait) as lease:
            yield lease

    def _split_wait(self, kwargs: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        """Split ``wait`` from the keyword arguments, if the task has no such one."""
        self._get_app()  # binds the task, which sets the rule
        if "wait" not in kwargs or "wait" in self.key_rule.signature.parameters:
            return 0.0, kwargs
        return kwargs["wait"], {n: v for n, v in kwargs.items() if n != "wait"}

    def _lock_of(self, args: Any, kwargs: Any) -> TaskLock:
        runtime = runtime_of(self.app)
        execution = running()
        key, limits = self.lock_wanted(*args, **kwargs)
        return TaskLock(
            self,
            key,
            limits=limits,
            task_id=execution.call.id if execution else "",
            runtime=runtime,
            options=runtime.options(self),
        )

    @overload
    def alock(
        self, *args: P.args, **kwargs: P.kwargs
    ) -> AbstractAsyncContextManager[Lease]: ...
    @overload
    def alock(
        self, *args: Any, wait: float, **kwargs: Any
    ) -> AbstractAsyncContextManager[Lease]: ...
    @asynccontextmanager
    async def alock(self, *args: Any, **kwargs: Any) -> AsyncIterator[Lease]:
        """Hold the lock of the call with these arguments in a coroutine.

        It is ``lock`` for asyncio, for example in a FastAPI or Django view: it does not
        block the event loop, and the loss of the lock cancels the block. It takes
        ``wait`` and raises as ``lock`` does.
        """
        wait, kwargs = self._split_wait(kwargs)
        async with aheld_by(self._lock_of(args, kwargs), wait) as lease:
            yield lease

    def lock_key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the key of the call with these arguments.

        Raises:
            FingerprintError: They cannot be reduced to a key.
        """
        return self.lock_wanted(*args, **kwargs)[0]

    def lock_wanted(self, *args: P.args, **kwargs: P.kwargs) -> tuple[str, Limits]:
        """Return the key of the call with these arguments, and the limits of its keys.

        The limits are empty where each key has one holder at a time, and starts are
        not counted; see ``locks.limits``.

        Raises:
            FingerprintError: They cannot be reduced to a key.
        """
        args, kwargs = as_received(self, args, kwargs)
        return self.key_rule.wanted_by(args, kwargs)

    def release_claim(self, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """Release the claim of the call with these arguments, whichever job has it.

        The next call is then published, also while the job still waits in its queue.
        Use it for a job that will never begin and that no worker knows about, for
        example after its queue was purged. Only tasks with ``unique_while`` claim.

        Returns:
            The id of the job that had the claim; None if there was none.

        Raises:
            FingerprintError: The arguments cannot be reduced to a key.
            QuorumUnreachable: Too few nodes answered. The claim is released on the
                others.
        """
        claims = Claims(runtime_of(self.app).redlock)
        return claims.release_any(self.lock_key(*args, **kwargs))

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """Return what would happen to a call with these arguments. Changes nothing.

        The explanation names its key, the decisions of its policies, and the job that
        keeps it from being published or run; see `explain.Explanation`. Print it.

        Raises:
            ConfigurationError: A setting or an option is wrong.
            FingerprintError: The arguments cannot be reduced to a key.
        """
        from celery_redlock.task.explain import explain  # noqa: PLC0415  (needs nodes)

        return explain(self, args, kwargs)

    # -- publishing -----------------------------------------------------------

    def apply_async(
        self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any
    ) -> _Result[R]:
        """Publish as Celery does, unless the call has no key or is a duplicate.

        Only tasks with ``unique_while`` or ``unique_for`` look for duplicates here;
        see ``publishing``. The result has an attribute ``conflict``: None, or the
        ``policies.Conflict`` with another job of the call.

        A base class of yours may change the arguments, the id and the headers of the
        call, send it later, and return what it likes: the message that it sends in the
        end is claimed.

        A task with ``typing=False`` is published without a look at its arguments where
        these have no key. It fails in its worker.

        Raises:
            FingerprintError: The arguments do not fit the task or cannot be
                reduced to a key. Nothing was sent.
            DuplicateTask: There is another job of the call, and ``on_conflict`` is
                ``raise``. Nothing was sent.
            ConfigurationError: There is a lock option among ``options``. Nothing was
                sent.
            ValueError: Nodes cannot store the ``task_id``. Nothing was sent.
        """
        send: Callable[..., _Result[R]] = super().apply_async
        options = {**dict(zip(_MORE, more, strict=False)), **options}
        if self.lock_options is None or not isinstance(self, NextToCelery):
            sent: _Result[R] = _publish(self, send, args, kwargs, options)
            return sent
        with called_with(self, options):
            return send(args, kwargs, **options)

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> _Result[R]:
        """Publish as ``delay`` does, in a coroutine; see ``aapply_async``."""
        return await self.aapply_async(args, kwargs)

    async def aapply_async(
        self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any
    ) -> _Result[R]:
        """Publish as ``apply_async`` does, in a coroutine.

        A thread asks the nodes and the broker, so the event loop is not blocked. If the
        coroutine is cancelled meanwhile, the call may be published or not.
        """
        import asyncio  # noqa: PLC0415  (slow; most processes need none)

        send = functools.partial(self.apply_async, args, kwargs, *more, **options)
        return await asyncio.to_thread(_in_thread, send)

    @property
    def lock_nodes(self) -> str | None:
        """The names of the nodes of its locks, without passwords; None for no lock.

        Workers tell it to ``redlock reconfigure`` and ``doctor``, over the broker.
        """
        if self.lock_options is None:
            return None
        return " ".join(sorted(runtime_of(self.app).redlock.labels))

    def AsyncResult(  # noqa: N802  (Celery's)
        self, *args: Any, **options: Any
    ) -> _Result[R]:
        """Return the result of a call by its id; its ``conflict`` is None.

        The results of the calls in a chain, group or chord are made here.
        """
        result: _Result[R] = with_conflict(super().AsyncResult(*args, **options))
        return result

    def apply(self, *args: Any, **options: Any) -> _Result[R]:
        """Run the call here, as Celery does; the ``conflict`` of its result is None.

        The result of a skipped call is REVOKED, as a worker stores it.

        Raises:
            ConfigurationError: There is a lock option among ``options``. Nothing ran.
        """
        _refuse_lock_options(self, "apply", options, "Nothing ran.")
        made = super().apply(*args, **options)
        if isinstance(end := getattr(made, "result", None), EndedEagerly):
            made = EagerResult(made.id, end.error, REVOKED, name=self.name)
        result: _Result[R] = with_conflict(made)
        return result

    def replace(self, sig: Any) -> Any:
        """Run another call in the place of this one, as Celery does.

        Raises:
            celery.exceptions.Ignore: The other call was sent; in a worker always.
            ConfigurationError: The task has ``exactly_once_in``, and this exception
                would roll back what the body has written. Nothing was sent.
        """
        execution = running()
        if execution and execution.call.task is self and execution.call.options.records:
            raise ConfigurationError(
                f"{execution.call} cannot replace itself: it has exactly_once_in, and "
                "what the body has written would be rolled back. Nothing was sent. "
                "Send the next call with the commit, by the outbox, and return."
            )
        return super().replace(sig)

    if not TYPE_CHECKING:  # type checkers know Celery's own, with its arguments

        def retry(self, *args: Any, **options: Any) -> Any:
            """Retry the call as Celery does; what this package refuses fails the call.

            Celery rejects the message if its retry cannot be sent, and stores no
            result.

            Raises:
                celery.exceptions.Retry: The retry was sent.
                celery.exceptions.Reject: The broker has not taken it; or it was given
                    as ``exc``, and no retry is left.
                FingerprintError, ConfigurationError: It was refused. Nothing was sent.
                LockLost: The lock was lost meanwhile. The retry may be sent.
            """
            try:
                return super().retry(*args, **options)
            except Reject as rejected:
                is_given = any(it is rejected for it in (*args, *options.values()))
                if not is_given and isinstance(rejected.reason, RedlockError):
                    raise rejected.reason from None
                raise

    def signature_from_request(
        self, request: Context | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Return the call for a retry, without the header of this package.

        Only the time of publishing is kept: a retry is no newer than its call.
        """
        request = self.request if request is None else request
        signature = super().signature_from_request(request, *args, **kwargs)
        options, ours = signature.options, self.lock_options
        if options.get("headers"):
            options["headers"] = without_header(options["headers"])
        has_order = ours and (ours.registers_successors or ours.in_order)
        if has_order and (published := published_at(request)):
            options["headers"] = with_published(options.get("headers"), published)
        return signature


def _is_errback() -> bool:
    """Tell whether Celery calls the task as the errback of a call that has failed.

    It calls a task that takes more than the id of that call as a plain function.
    """
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  (documented)
    while frame is not None and frame.f_code.co_name == "__call__":
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_call_task_errbacks"


def _in_thread(send: Callable[[], Any]) -> Any:
    """Publish a call in a thread of its own, and leave no connection behind in it."""
    try:
        return send()
    finally:
        close_old_connections()


def _refuse_lock_options(
    task: Task, method: str, options: Mapping[str, Any], then: str = "Nothing was sent."
) -> None:
    """Refuse lock options of one call, where no class of the project may take them.

    Where such a class sends calls, `_publish` finds what it leaves.
    """
    if task.lock_options is None:
        return
    fault = fault_of_call(task.name, options, then)
    if fault is not None and not may_take_options(task, method):
        raise fault


def _refuse_or_drop(task: Task, options: dict[str, Any]) -> None:
    """Refuse lock options of a call; log and drop those that a worker sends on.

    It does so for a chain, a callback or a chord. No caller is there. After an error,
    the call would be lost; of a chain, Celery would not store the result of the call
    before it either. A broker refuses what it cannot store, such as a ``timedelta``.
    Nothing tells such a call from one of the body of a plain task.
    """
    if (fault := fault_of_call(task.name, options)) is None:
        return
    # Callbacks of a call that is lost come from the main process, which runs no task.
    is_of_worker = bool(options.get(_PARENT) or get_current_worker_task())
    if running() or not is_of_worker or task.app.conf.task_always_eager:
        raise fault
    fault = fault_of_call(task.name, options, "It has no effect.")
    log.error("%s", fault, extra=log_fields("option-unread", task=task.name))
    for name in [name for name, _ in unread_in(options)]:
        del options[name]


def _publish(
    task: Task, send: Callable[..., Any], args: Any, kwargs: Any, options: Any
) -> Any:
    """Publish a call: ``send`` is the ``apply_async`` to call, with these arguments."""
    can_raise = not options.pop(_AFTER_COMMIT, False)
    if task.lock_options is None:
        return send(args, kwargs, **options)
    _refuse_or_drop(task, options)
    if task_id := options.get("task_id"):
        check_id(task_id)
    if was_received(headers := options.get("headers")):
        # It is about the call that publishes this one.
        options["headers"] = without_header(headers)
    try:
        key = key_to_publish(task, args, kwargs, options)
    except FingerprintError:
        if task.typing:
            raise
        return send(args, kwargs, **options)
    if _is_of_run(task, options) and (family := _family_of_run(task)):
        options["headers"] = with_fields(options.get("headers"), follows=family)
    message = SentMessage(task, key, args, kwargs)
    send = functools.partial(_sent, task, send, args, kwargs)
    send = functools.partial(message.send, send)
    if task.lock_options.registers_successors:
        options["headers"] = with_published(options.get("headers"))
        send = functools.partial(send_announced, message, send)
    elif task.lock_options.in_order:
        send = functools.partial(send_in_order, message, send)
    if not task.lock_options.is_unique_before_it_runs:
        return send(**options)
    return publish(message, options, send, can_raise=can_raise)


def _sent(task: Task, send: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
    """Send a call. Its result says that there was no conflict, as far as is known.

    If the call that runs here is sent once more, or is replaced by this one, its old
    copy is acknowledged when this returns. So this returns when the broker has the new
    one, whose header says that it follows this run. If it could not be sent, the claim
    that was taken for it ends.
    """
    if not _is_of_run(task, options):
        return with_conflict(send(*args, **options))
    try:
        with confirmed(task.app) as sure:
            return with_conflict(send(*args, **options | sure))
    except BaseException:
        header = TaskHeader.read(options.get("headers"))
        release_claim(task.app, header, options["task_id"], task.name)
        raise


def _is_of_run(task: Task, options: Mapping[str, Any]) -> bool:
    """Tell whether the call that runs here is sent once more, or replaced."""
    task_id = options.get("task_id")
    return bool(task_id and (task_id == task.request.id or options.get(_REPLACES)))


def _family_of_run(task: Task) -> str:
    """Return how the tokens of the run begin that sends a call now; "" if none runs.

    A worker's main process sends the retry of a call whose child was lost.
    """
    if (execution := running()) is not None:
        return execution.family
    return family_of(TaskHeader.read(vars(task.request)).base or "")


class NextToCelery(Task):
    """Stands between the base classes of a project and Celery's ``Task``.

    What they pass to ``super().apply_async`` is what is sent. It is claimed here, and
    not in `SingletonTask`, which stands in front of them.
    """

    abstract = True

    def apply_async(
        self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any
    ) -> Any:
        """Publish what the base classes have made of a call."""
        options = {**dict(zip(_MORE, more, strict=False)), **options}
        return _publish(self, super().apply_async, args, kwargs, options)


def _stand_next_to_celery(task: type[Task]) -> None:
    """Let `NextToCelery` be the last base class, where one after ours sends calls."""
    order = task.__mro__
    last: type = NextToCelery
    ours = NextToCelery if NextToCelery in order else SingletonTask
    after = [base for base in order[order.index(ours) + 1 :] if base is not Task]
    if any("apply_async" in vars(base) for base in after):
        if ours is NextToCelery:  # of a base class, which has it before the others
            last = type("NextToCelery", (NextToCelery,), {})
        bases = [base for base in task.__bases__ if base is not Task]
        task.__bases__ = (*bases, last)


class PublishedOnCommit:
    """Mixin for tasks on Django's base class, which can publish after a commit.

    A call is claimed at the commit and not before, so that a job that may never be
    sent keeps no other call out. A duplicate raises no error then, also with
    ``on_conflict="raise"``: it would look like a failure of the commit, and Django
    would skip the other functions that wait for it.
    """

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Publish when the database transaction is committed."""
        self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, *args: Any, **options: Any) -> None:
        """Publish when the database transaction is committed.

        Raises:
            ConfigurationError: There is a lock option among ``options``. Nothing will
                be sent.
        """
        _refuse_lock_options(self, "apply_async", options)
        base: Any = super()
        base.apply_async_on_commit(*args, **{**options, _AFTER_COMMIT: True})


def _publishes_on_commit(task: type[Task]) -> bool:
    """Tell whether a class has the methods of Celery's base class for Django."""
    names = ("delay_on_commit", "apply_async_on_commit")
    wheres = {getattr(getattr(task, name, None), "__module__", "") for name in names}
    return wheres == {"celery.contrib.django.task"}


def _has_written(one: type, name: str) -> bool:
    """Tell whether a class has an attribute that `SingletonTask` did not add to it."""
    own = vars(one)
    added = own.get("_added", {})
    return name in own and not (name in added and own[name] is added[name])


def _with_duplicate(throws: Any) -> tuple[type[BaseException], ...]:
    """Return ``throws`` with ``DuplicateTask``: a duplicate is no fault of a task."""
    given = throws if isinstance(throws, tuple | list) else (throws,) if throws else ()
    if any(issubclass(DuplicateTask, one) for one in given):
        return tuple(given)
    return (*given, DuplicateTask)


def without_lost(
    retried: tuple[type[Exception], ...], not_retried: tuple[type[Exception], ...]
) -> tuple[type[Exception], ...]:
    """Return a ``dont_autoretry_for`` with ``LockLost``, unless that is retried."""
    named = any(issubclass(error, LockLost) for error in retried)
    others = tuple(error for error in not_retried if error is not LockLost)
    return others if named else (*others, LockLost)


def rule_of_body(
    name: str, body: Callable[..., Any], options: LockOptions, base: Any, *, bound: bool
) -> KeyRule:
    """Return the rule by which the calls of a body get their keys, checked against it.

    Its task class, if it is known, may run the coroutine or generator that it makes.
    """
    signature = _signature_of_body(body, bound=bound)
    if base is not None:
        bases: tuple[type, ...] = base.__mro__
        refuse_batches(name, bases)
        if SingletonTask in bases:  # those behind it run while the lock is held
            bases = bases[bases.index(SingletonTask) + 1 :]
        refuse_async(name, body, bases)
    hidden, positional = hidden_parameters(body), positional_names(body)
    if bound:
        positional = positional[1:]
    return KeyRule(name, signature, options, hidden, positional)


def _signature_of_body(body: Callable[..., Any], *, bound: bool) -> inspect.Signature:
    """Return the signature of a task's body, without ``self`` if it is bound.

    It is that of the function that Celery calls, and not of one that it wraps.
    """
    signature = signature_of(body)
    if not bound:
        return signature
    parameters = [*signature.parameters.values()]
    if not parameters:
        raise ConfigurationError(
            f"{body.__qualname__} takes no arguments, and a task with bind=True gets "
            "itself as the first one. Leave bind out, or write def "
            f"{body.__name__}(self)."
        )
    if parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:  # of a wrapper
        return signature
    return signature.replace(parameters=parameters[1:])


def _named_options(task: type) -> dict[str, Any]:
    """Return the lock options that are attributes of a class: ``on_conflict = ...``.

    Celery's own decorator makes its arguments attributes. A method of a class may have
    the name of an option.
    """
    if task is SingletonTask or not issubclass(task, SingletonTask):
        return {}
    own = {n: v for n, v in vars(task).items() if not n.startswith("_")}
    if not vars(task).get("_decorated"):
        known = own.keys() & LockOptions.names()
        return {n: own[n] for n in known if not isinstance(own[n], _OF_A_CLASS)}
    others = (name for base in task.__mro__[1:] for name in attributes_of(base))
    return LockOptions.split(own, foreign={*others})[0]


def attributes_of(task: type) -> set[str]:
    """Return the attributes of a task class that are not this package's own.

    An argument of a decorator may set them: a base class of the project reads them.
    """
    bases = (b for b in task.__mro__ if not b.__module__.startswith("celery_redlock."))
    return {name for base in bases for name in vars(base)}


def _request_class_of(task: type[Task]) -> Any:
    """Return the request class of this package, on top of the user's own one."""
    wanted = [vars(base).get("Request") for base in task.__mro__]
    own = [w for w in wanted if w not in (None, _REQUEST, Task.Request)]
    if not own:
        return _REQUEST
    from celery_redlock.task.request import RedlockRequest  # noqa: PLC0415  (a worker's)

    request: type = symbol_by_name(own[0])  # type: ignore[no-untyped-call]
    if issubclass(request, RedlockRequest):
        return request
    return type(request.__name__, (RedlockRequest, request), {})


def _warn_of_bypass(task: type[Task]) -> None:
    """Warn about a method of a base class that skips the one of ours behind it.

    That is a ``__call__`` without the lock, or an ``apply_async`` without a look for
    duplicates and a place in the line.
    """
    before = task.__mro__[: task.__mro__.index(SingletonTask)]
    name = task.name or task.__qualname__
    for base in before:
        if _skips(SingletonTask, task, base, "__call__"):
            _warn(base, "__call__", f"the task {name} takes no lock")
    options = task.lock_options
    tells_nodes = options.registers_successors or options.in_order
    if not (options.is_unique_before_it_runs or tells_nodes):
        return
    for base in task.__mro__[: task.__mro__.index(Task)]:
        ours = SingletonTask if base in before else NextToCelery
        if base not in _OURS and _skips(ours, task, base, "apply_async"):
            _warn(
                base,
                "apply_async",
                f"calls of the task {name} are published without a look for "
                "duplicates, and without a place in the order of publishing",
            )


def _warn(base: type, method: str, consequence: str) -> None:
    warnings.warn(
        f"{base.__module__}.{base.__qualname__}.{method} does not call "
        f"super().{method}(), so {consequence}.",
        RuntimeWarning,
        stacklevel=3,
    )


def _skips(ours: type, task: type[Task], base: type, method: str) -> bool:
    """Tell whether a class has this method, which does not lead to that of ours.

    ``super()`` leads there, and ``Task.apply_async(self, ...)`` does not: it names only
    task classes that stand behind ours. A ``__call__`` that calls no other does not.
    A decorator, such as one of ``task_annotations``, has the method in a closure.
    """
    own: Any = vars(base).get(method)
    function = inspect.unwrap(own)
    code = getattr(function, "__code__", None)
    if code is None or set(code.co_freevars) - {"__class__"}:
        return False
    if method == "__call__" and method not in code.co_names:
        return True
    if code.co_freevars or "super" in code.co_names:
        return False
    named = [function.__globals__.get(name) for name in code.co_names]
    # A task that is not yet bound would be, if its attributes were looked at.
    modules = [one for one in named if issubclass(type(one), ModuleType)]
    named += [vars(one).get(name) for one in modules for name in code.co_names]
    classes = [one for one in named if issubclass(type(one), type)]
    tasks = [one for one in classes if issubclass(one, Task)]
    order = task.__mro__
    leads = order[: order.index(ours) + 1] if ours in order else order[:1]
    return bool(tasks) and not any(one in leads for one in tasks)


_OURS = (SingletonTask, NextToCelery)

worker_hooks.connect()
