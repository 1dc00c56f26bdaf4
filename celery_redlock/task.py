"""A task that runs once at a time: ``SingletonTask``.

The lock is taken in ``__call__`` and given back before it returns (or, where the
body retries itself, when Celery has stored that; see ``execution``). That is the only
place which is outside of ``autoretry_for`` and before the chain's tail and
the callbacks are published, and it costs nothing: in a worker Celery calls it
for every task anyway.

=================================  =============================================
how it is called                   what happens
=================================  =============================================
by a worker                        it runs under its lock; see ``execution``
``task.apply()``, always eager     without a lock, unless ``redlock_eager``
``task(42)``, ``.map``, recursion  the body runs, as a plain function does
``with task.lock(42): ...``        the same lock, anywhere
=================================  =============================================
"""

from __future__ import annotations

import functools
import inspect
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Task
from kombu.utils.imports import symbol_by_name

from celery_redlock.call import Call
from celery_redlock.envelope import clean, stamp
from celery_redlock.errors import ConfigurationError, DuplicateTask, LockLost
from celery_redlock.execution import Execution, running
from celery_redlock.masking import mask
from celery_redlock.options import LockOptions
from celery_redlock.publishing import publish
from celery_redlock.runtime import runtime_of
from celery_redlock.tasklock import task_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery_redlock.core.lease import Lease
    from celery_redlock.explain import Explanation
    from celery_redlock.fingerprint import KeyRule

__all__ = ["PublishedOnCommit", "SingletonTask", "without_lost"]

_REQUEST = "celery_redlock.request:RedlockRequest"
_MORE = ("task_id", "producer", "link", "link_error", "shadow")  # of apply_async
_AFTER_COMMIT = "redlock_after_commit"


class SingletonTask(Task):
    """Base class of tasks that run once at a time.

    Use it through ``@singleton_task``, with Celery's own decorator,
    ``@app.task(base=SingletonTask, redlock={...})``, or for a task that is a
    class. Options of base classes are inherited one by one.

    Attributes:
        redlock: The lock options of this class; see ``options.LockOptions``.
        lock_options: The same with those of its base classes, checked.
        key_rule: How a call is reduced to a key.

    Raises:
        ConfigurationError: When a subclass is made, or bound to its app: an
            option is wrong, or does not fit what the task can be called with.

    A lost lock is not retried by ``autoretry_for``, unless that names ``LockLost``.
    (Celery's own decorator, given a ``dont_autoretry_for``, asks only that: name
    it there.)
    """

    abstract = True
    Request = _REQUEST
    throws = (DuplicateTask,)
    dont_autoretry_for: ClassVar[tuple[type[Exception], ...]] = (LockLost,)

    redlock: ClassVar[Mapping[str, Any]] = {}
    lock_options: ClassVar[LockOptions] = LockOptions()
    key_rule: ClassVar[KeyRule]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherited: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            inherited |= vars(base).get("redlock") or {}
        try:
            cls.lock_options = LockOptions.of(inherited)
        except ConfigurationError as error:
            raise ConfigurationError(f"{cls.__qualname__}: {error}") from error
        cls.dont_autoretry_for = without_lost(
            getattr(cls, "autoretry_for", ()), cls.dont_autoretry_for
        )

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Check the task against its options, now that all of it is known."""
        super().on_bound(app)
        mask(app)
        if "key_rule" in vars(cls) or cls.run is Task.run:
            return  # it comes here twice, and so may a base class without a body
        cls.key_rule = cls.lock_options.key_rule(cls.name, _signature_of(cls))
        cls.Request = _request_class_of(cls)
        _warn_of_bypass(cls)

    # -- running ------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body: under the lock in a worker, as it is elsewhere."""
        body = functools.partial(super().__call__, *args, **kwargs)
        if not self._wants_lock():
            return body()
        return Execution(Call.of(self, args, kwargs)).run(body)

    def _wants_lock(self) -> bool:
        request, execution = self.request, running()
        if request.called_directly:
            return False
        if request.is_eager and not self.app.conf.get("redlock_eager"):
            return False
        # ``self(n - 1)`` in a body comes here with the body's own request.
        return execution is None or not execution.is_of(self, request)

    # -- the same lock elsewhere --------------------------------------------

    @contextmanager
    def lock(self, *args: Any, **kwargs: Any) -> Iterator[Lease]:
        """Hold the lock of the call with these arguments while the block runs.

        For a view or a management command that does what the task does. In the
        body of that very call it is the lease that is held already. It is not
        interrupted when the lock is lost: ask ``lease.ensure()``.

        Raises:
            LockHeld: Somebody else has it.
            LockContended: The votes were split.
            QuorumUnreachable: Too few nodes answered. After each of these the
                block did not run.
            LockLost: The lock was lost while the block ran.
            FingerprintError: The arguments cannot be reduced to a key.
        """
        runtime = runtime_of(self.app)
        execution = running()
        with task_lock(
            self,
            self.lock_key(*args, **kwargs),
            task_id=execution.call.id if execution else "",
            runtime=runtime,
            options=runtime.options(self.name, self.lock_options),
        ) as lease:
            yield lease

    def lock_key(self, *args: Any, **kwargs: Any) -> str:
        """Return the key of the call with these arguments.

        Raises:
            FingerprintError: They cannot be reduced to a key.
        """
        dump = getattr(self, "_dump_pydantic_arguments", None)
        if dump is not None:
            args, kwargs = dump(args, kwargs)
        self._get_app()  # binds the task, which makes the rule
        return self.key_rule.key_of(args, kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Say what would happen to a call with these arguments, changing nothing.

        Which key it has, whether it would be published and would run now, who is in
        its way, and what the policies decide; see `explain.Explanation`. Print it.

        Raises:
            ConfigurationError: A setting or an option is wrong.
            FingerprintError: The arguments cannot be reduced to a key.
        """
        from celery_redlock.explain import explain  # noqa: PLC0415  (needs nodes)

        return explain(self, args, kwargs)

    # -- publishing -----------------------------------------------------------

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        *more: Any,
        **options: Any,
    ) -> Any:
        """Publish as Celery does, unless the call has no key or is a duplicate.

        Only tasks with ``unique_while`` or ``unique_for`` know of duplicates here;
        see ``publishing``. For them the result has an attribute ``conflict``: None,
        or the ``policies.Conflict`` that was met.

        Raises:
            FingerprintError: The arguments do not fit the task or cannot be
                reduced to a key. Nothing was sent.
            DuplicateTask: Another job of the call is here, and ``on_conflict`` is
                ``raise``. Nothing was sent.
        """
        key = self.lock_key(*(args or ()), **(kwargs or {}))
        if self.lock_options.lines_up:
            options["headers"] = stamp(options.get("headers"))
        send = functools.partial(super().apply_async, args, kwargs)
        named = dict(zip(_MORE, more, strict=False))
        can_raise = not options.pop(_AFTER_COMMIT, False)
        if not self.lock_options.is_unique_before_it_runs:
            return send(**named, **options)
        options = {**named, **options}
        return publish(self, key, (args, kwargs), options, send, can_raise=can_raise)

    def signature_from_request(self, *args: Any, **kwargs: Any) -> Any:
        """Return the call for a retry; it does not carry our header on.

        But for one thing: a retry is no newer than the call that it repeats.
        """
        signature = super().signature_from_request(*args, **kwargs)
        options, execution = signature.options, running()
        if options.get("headers"):
            options["headers"] = clean(options["headers"])
        if self.lock_options.lines_up and execution and execution.call.task is self:
            published = execution.call.envelope.published
            options["headers"] = stamp(options.get("headers"), published)
        return signature


class PublishedOnCommit:
    """Part of tasks whose base is Django's, which publish when a transaction commits.

    A call is claimed then and not before: nobody is kept out by a job that may never
    be sent. A duplicate raises nothing at that time, whatever ``on_conflict`` says:
    it would look like a failure of the commit, and keep what else waits for it from
    being done.
    """

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Publish when the database transaction is committed."""
        self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, *args: Any, **options: Any) -> None:
        """Publish when the database transaction is committed."""
        base: Any = super()
        base.apply_async_on_commit(*args, **{**options, _AFTER_COMMIT: True})


def without_lost(
    retried: tuple[type[Exception], ...], not_retried: tuple[type[Exception], ...]
) -> tuple[type[Exception], ...]:
    """Return what ``autoretry_for`` must pass over: a lost lock, unless it names it."""
    named = any(issubclass(error, LockLost) for error in retried)
    others = tuple(error for error in not_retried if error is not LockLost)
    return others if named else (*others, LockLost)


def _signature_of(task: type[Task]) -> inspect.Signature:
    """Return what the task can be called with, without ``self``."""
    signature = inspect.signature(task.run)
    if isinstance(inspect.getattr_static(task, "run"), staticmethod):
        return signature
    _, *parameters = signature.parameters.values()
    return signature.replace(parameters=parameters)


def _request_class_of(task: type[Task]) -> Any:
    """Return our request class, in front of the one that the user wants."""
    wanted = [vars(base).get("Request") for base in task.__mro__]
    own = [w for w in wanted if w not in (None, _REQUEST, Task.Request)]
    if not own:
        return _REQUEST
    from celery_redlock.request import RedlockRequest  # noqa: PLC0415  (a worker's)

    request: type = symbol_by_name(own[0])  # type: ignore[no-untyped-call]
    if issubclass(request, RedlockRequest):
        return request
    return type(request.__name__, (RedlockRequest, request), {})


def _warn_of_bypass(task: type[Task]) -> None:
    """Warn of a ``__call__`` that keeps ours from being called."""
    before = task.__mro__[: task.__mro__.index(SingletonTask)]
    for base in before:
        code = getattr(vars(base).get("__call__"), "__code__", None)
        if code is not None and "__call__" not in code.co_names:
            warnings.warn(
                f"{base.__module__}.{base.__qualname__}.__call__ does not call "
                f"super().__call__(), so the task {task.name} takes no lock.",
                RuntimeWarning,
                stacklevel=2,
            )
