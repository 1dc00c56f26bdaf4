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
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Task
from kombu.utils.imports import symbol_by_name

from celery_redlock.app import worker_hooks
from celery_redlock.app.masking import mask
from celery_redlock.app.runtime import runtime_of
from celery_redlock.errors import ConfigurationError, DuplicateTask, LockLost
from celery_redlock.locking import held_by
from celery_redlock.options.lock_options import LockOptions
from celery_redlock.task.call import Call
from celery_redlock.task.execution import Execution, TaskLock, running
from celery_redlock.task.header import attach, clean
from celery_redlock.task.publishing import publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery_redlock.core.lease import Lease
    from celery_redlock.options.call_key import KeyRule
    from celery_redlock.task.explain import Explanation

__all__ = ["PublishedOnCommit", "SingletonTask", "signature_of", "without_lost"]

_REQUEST = "celery_redlock.task.request:RedlockRequest"
_MORE = ("task_id", "producer", "link", "link_error", "shadow")  # of apply_async
_AFTER_COMMIT = "redlock_after_commit"


class SingletonTask(Task):
    """Base class of tasks that run once at a time.

    Use it through ``@singleton_task``, with Celery's own decorator,
    ``@app.task(base=SingletonTask, redlock={...})``, or for a task that is a
    class. Options of base classes are inherited one by one.

    Attributes:
        redlock: The lock options of this class; see ``options.LockOptions``.
        lock_options: These options and those of its base classes, checked.
        key_rule: Reduces a call to its key.

    Raises:
        ConfigurationError: When a subclass is defined, or bound to its app: an
            option is wrong, or does not fit the task's signature.

    ``autoretry_for`` does not retry after a lost lock, unless it names ``LockLost``.
    (If Celery's own decorator gets a ``dont_autoretry_for``, it uses only that: name
    ``LockLost`` there.)
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
        """Check the task against its options, now that its name and body are known."""
        super().on_bound(app)
        mask(app)
        if "key_rule" in vars(cls) or cls.run is Task.run:
            return  # Celery binds a task twice, and base classes without a body, too
        bound = not isinstance(inspect.getattr_static(cls, "run"), staticmethod)
        signature = signature_of(cls.run, bound=bound)
        cls.key_rule = cls.lock_options.key_rule(cls.name, signature)
        cls.Request = _request_class_of(cls)
        _warn_of_bypass(cls)

    # -- running ------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body: under the lock in a worker, without one elsewhere."""
        request = self.request
        body = functools.partial(super().__call__, *args, **kwargs)
        if self._takes_lock(request):
            return Execution(Call.of(self, request, args, kwargs)).run(body)
        return body()

    def _takes_lock(self, request: Any) -> bool:
        if request.called_directly:
            return False
        if request.is_eager and not self.app.conf.get("redlock_eager"):
            return False
        # ``self(n - 1)`` in a body comes here with the request of that body.
        execution = running()
        return execution is None or not execution.is_of(self, request)

    # -- the same lock elsewhere --------------------------------------------

    @contextmanager
    def lock(self, *args: Any, **kwargs: Any) -> Iterator[Lease]:
        """Hold the lock of the call with these arguments while the block runs.

        Use it in a view or a management command that does the same work as the task.
        In the body of that very call it yields the lease that is already held. A lost
        lock does not interrupt the block: ask ``lease.ensure()``.

        Raises:
            LockHeld: Another client has the lock.
            LockContended: The votes were split.
            QuorumUnreachable: Too few nodes answered. After each of these errors the
                block did not run.
            LockLost: The lock was lost while the block ran.
            FingerprintError: The arguments cannot be reduced to a key.
        """
        runtime = runtime_of(self.app)
        execution = running()
        hold = TaskLock(
            self,
            self.lock_key(*args, **kwargs),
            task_id=execution.call.id if execution else "",
            runtime=runtime,
            options=runtime.options(self.name, self.lock_options),
        )
        with held_by(hold) as lease:
            yield lease

    def lock_key(self, *args: Any, **kwargs: Any) -> str:
        """Return the key of the call with these arguments.

        Raises:
            FingerprintError: They cannot be reduced to a key.
        """
        dump = getattr(self, "_dump_pydantic_arguments", None)
        if dump is not None:
            args, kwargs = dump(args, kwargs)
        self._get_app()  # binds the task, which sets the rule
        return self.key_rule.key_of(args, kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
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
    ) -> Any:
        """Publish as Celery does, unless the call has no key or is a duplicate.

        Only tasks with ``unique_while`` or ``unique_for`` look for duplicates here;
        see ``publishing``. The result then has an attribute ``conflict``: None, or the
        ``policies.Conflict`` with another job of the call.

        Raises:
            FingerprintError: The arguments do not fit the task or cannot be
                reduced to a key. Nothing was sent.
            DuplicateTask: There is another job of the call, and ``on_conflict`` is
                ``raise``. Nothing was sent.
        """
        key = self.lock_key(*(args or ()), **(kwargs or {}))
        if self.lock_options.registers_successors:
            options["headers"] = attach(options.get("headers"))
        send = functools.partial(super().apply_async, args, kwargs)
        named = dict(zip(_MORE, more, strict=False))
        can_raise = not options.pop(_AFTER_COMMIT, False)
        if not self.lock_options.is_unique_before_it_runs:
            return send(**named, **options)
        options = {**named, **options}
        return publish(self, key, (args, kwargs), options, send, can_raise=can_raise)

    def signature_from_request(self, *args: Any, **kwargs: Any) -> Any:
        """Return the call for a retry, without the header of this package.

        Only the time of publishing is kept: a retry is no newer than its call.
        """
        signature = super().signature_from_request(*args, **kwargs)
        options, execution = signature.options, running()
        if options.get("headers"):
            options["headers"] = clean(options["headers"])
        call = execution and execution.call
        if self.lock_options.registers_successors and call and call.task is self:
            options["headers"] = attach(options.get("headers"), call.header.published)
        return signature


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
        """Publish when the database transaction is committed."""
        base: Any = super()
        base.apply_async_on_commit(*args, **{**options, _AFTER_COMMIT: True})


def without_lost(
    retried: tuple[type[Exception], ...], not_retried: tuple[type[Exception], ...]
) -> tuple[type[Exception], ...]:
    """Return a ``dont_autoretry_for`` with ``LockLost``, unless that is retried."""
    named = any(issubclass(error, LockLost) for error in retried)
    others = tuple(error for error in not_retried if error is not LockLost)
    return others if named else (*others, LockLost)


def signature_of(body: Callable[..., Any], *, bound: bool) -> inspect.Signature:
    """Return the signature of a task's body, without ``self`` if it is bound."""
    signature = inspect.signature(body)
    if not bound:
        return signature
    _, *parameters = signature.parameters.values()
    return signature.replace(parameters=parameters)


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
    """Warn about a ``__call__`` that replaces the one that takes the lock."""
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


worker_hooks.connect()
