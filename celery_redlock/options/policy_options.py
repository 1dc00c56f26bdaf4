"""Options of what happens to a call: its policies, and the times of its lock.

Where a key may have several holders at once, or starts are counted, a refused call is
no duplicate as a rule: it is one more job, and has to wait. So ``"retry"`` is the
default of ``on_conflict`` there, and what needs the one running call is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from celery_redlock import policies
from celery_redlock.errors import ConfigurationError
from celery_redlock.options.key_options import LimitOptions
from celery_redlock.options.unique_options import UniqueOptions
from celery_redlock.options.values import flag

if TYPE_CHECKING:
    from celery_redlock.basics.timing import Timing


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(UniqueOptions):
    """The options that say what happens to a call, and how long its lock is kept."""

    on_conflict: Any = None  # `on_conflict_of` fills it in
    on_lock_lost: Any = "abort"
    on_backend_error: Any = None
    ttl: float | None = None
    renew: bool = True
    hold_at_least: float = 0.0
    wait_timeout: float | None = None
    retry_countdown: float | None = None
    in_order: bool = False
    buffer_keep: Literal["latest", "first"] | None = None
    cancel_grace: float | None = None

    def check(self) -> None:
        """Refuse what cannot be used or has no effect."""
        super().check()
        flag("renew", self.renew)
        flag("in_order", self.in_order)
        policies.ON_CONFLICT.policy(self.on_conflict)
        policies.publish_policy(self.on_conflict)
        policies.ON_LOCK_LOST.policy(self.on_lock_lost)
        if self.on_backend_error is not None:
            policies.ON_BACKEND_ERROR.policy(self.on_backend_error)
        for kind in self._given:
            self.refuse_registering(kind)
        self._check_publishing()
        if self.in_order:
            self._check_order()
        self._check_options_of_policies()
        for kind in self._given:
            kind.check(self)

    def _check_publishing(self) -> None:
        if self.claim_ttl is not None and not (self.is_claimed or self.in_order):
            raise ConfigurationError(
                "claim_ttl has no effect with unique_while='running': waiting jobs are "
                "not claimed. Leave it out, or write unique_while='queued'."
            )
        by_stage = self.on_conflict if isinstance(self.on_conflict, Mapping) else {}
        if "publish" in by_stage and not self.is_unique_before_it_runs:
            raise ConfigurationError(
                "on_conflict['publish'] has no effect with unique_while='running': a "
                "publisher does not look for duplicates. Leave it out, or write "
                "unique_while='queued'."
            )

    def _check_order(self) -> None:
        """Refuse an order of calls of which some do not come back, or run at once."""
        if self._possible != (policies.Retry,):
            raise ConfigurationError(
                "in_order needs on_conflict='retry', by which each call returns to its "
                f"queue until its turn has come; on_conflict is {self.on_conflict!r}. "
                "Write on_conflict='retry', or leave in_order out."
            )
        if self.keys is not None:
            raise ConfigurationError(
                "in_order is for one key: each of several keys has an order of its "
                "own. Write key=..., or leave in_order out."
            )
        if self.limit != 1 and self.most_at_once > 1:
            raise ConfigurationError(
                f"in_order makes no sense with {self.several}: several calls may run "
                "at once, and a later one may end first. Write limit=1, or leave "
                "in_order out."
            )
        if self.unique_for:
            raise ConfigurationError(
                "in_order makes no sense with unique_for, a cool-down in which no call "
                "has its turn. Leave one of the two out."
            )

    def _check_options_of_policies(self) -> None:
        """Refuse an option that no possible policy reads."""
        for name, readers in options_of_policies().items():
            if getattr(self, name) is None or self._may_be_read(name):
                continue
            words = " or ".join(f"on_conflict={kind.name!r}" for kind in readers)
            raise ConfigurationError(
                f"{name} has no effect with on_conflict={self.on_conflict!r}. "
                f"Leave it out, or write {words}."
            )

    def _may_be_read(self, name: str) -> bool:
        """Tell whether a possible policy reads an option.

        A decision with a value of its own does not: `Retry(7)` reads no
        ``retry_countdown``. Its field has the last word of the option's name.
        """
        field = name.rpartition("_")[2]
        places: list[tuple[policies.PolicyOption[Any, Any], Any]] = [
            (policies.ON_CONFLICT, policies.at_stage(self.on_conflict, "execute")),
            (policies.ON_LOCK_LOST, self.on_lock_lost),
        ]
        return any(
            name in kind.reads and getattr(value, field, None) is None
            for option, value in places
            for kind in option.possible(value)
        )

    def refuse_registering(self, kind: type[policies.ConflictDecision]) -> None:
        """Refuse a policy that lets one of the refused calls follow the running one."""
        if not kind.registers or self.knows_one_running_call:
            return
        needs = f"on_conflict={kind.name!r} needs"
        remedy = "Write on_conflict='retry' or 'wait', or"
        if self.keys is not None:
            raise ConfigurationError(
                f"{needs} one key: of calls with several keys, more than one can run "
                f"and keep another one out. {remedy} one key=...."
            )
        why = "several may run at once"
        if self.most_at_once == 1:
            why = "a call is refused when none runs, too"
        raise ConfigurationError(
            f"{needs} the one call that runs, and with {self.several} {why}. {remedy} "
            f"leave {self.several.partition('=')[0]} out."
        )

    def ttl_in(self, timing: Timing) -> float:
        """Return the ttl in a deployment, in seconds.

        Raises:
            ConfigurationError: It, or ``hold_at_least``, does not go with the settings.
        """
        ttl = timing.ttl if self.ttl is None else timing.checked(self.ttl)
        hold = self.hold_at_least
        if hold > timing.max_ttl:
            raise ConfigurationError(
                f"hold_at_least is {hold:g} s, above redlock_max_ttl "
                f"({timing.max_ttl:g} s): no lock lasts longer. Lower it."
            )
        return ttl

    # -- what follows from the options ---------------------------------------------

    @cached_property
    def keeps_duplicates_out(self) -> bool:
        """Whether a duplicate is not published while another job has the claim."""
        if self.unique_while == "running":
            return False
        given = policies.given_at(self.on_conflict, "publish")
        return given is not None and not given.goes_on

    @cached_property
    def waits(self) -> bool:
        """Whether calls wait in a worker process as a rule."""
        return any(kind.occupies_process for kind in self._given)

    @cached_property
    def registers_successors(self) -> bool:
        """Whether a publisher notes when it published a call: a policy needs it."""
        return any(kind.registers for kind in self._possible)

    @cached_property
    def renew_every(self) -> float | None:
        """Seconds between renewals of the lock; None: a third of the ttl."""
        seconds = [kind.renew_every for kind in self._possible if kind.renew_every]
        return min(seconds, default=None) if self.renew else None

    @cached_property
    def keeps(self) -> str:
        """The published calls that run: ``"latest"`` or ``"first"``; ``""``: all."""
        given = policies.at_stage(self.on_conflict, "execute")
        return next((kind.keeps(given, self) for kind in self._given), "")

    @cached_property
    def replaces(self) -> bool:
        """Whether a call that is published asks the running call to end."""
        return any(kind.replaces for kind in self._given)

    @cached_property
    def grace_of_cancelled(self) -> float:
        """Seconds that a cancelled body has before it is interrupted again."""
        given = policies.at_stage(self.on_conflict, "execute")
        return policies.CancelRunning.grace_of(given, self)

    @cached_property
    def needs_arguments(self) -> bool:
        """Whether the arguments are needed again after the body."""
        possible = policies.ON_LOCK_LOST.possible(self.on_lock_lost)
        return any(kind.needs_arguments for kind in possible)

    @cached_property
    def countdown(self) -> float | None:
        """Seconds after which a refused call comes back; None: they are drawn."""
        given = policies.at_stage(self.on_conflict, "execute")
        is_given = isinstance(given, (policies.Retry, policies.BufferOne))
        return (given.countdown if is_given else None) or self.retry_countdown

    @property
    def longest_countdown(self) -> float:
        """The longest countdown of a call that comes back, as far as one is given."""
        given = policies.at_stage(self.on_conflict, "execute")
        decisions = (given, self.on_lock_lost, self.on_backend_error)
        own = (getattr(one, "countdown", None) for one in decisions)
        return max(self.retry_countdown or 0.0, *(one or 0.0 for one in own))

    @cached_property
    def has_backlog(self) -> bool:
        """Whether a refused call joins the backlog of its key.

        It comes back when its turn is near.
        """
        comes_back = policies.Retry in self._possible and self.countdown is None
        return self.in_order or (self.is_limited and comes_back)

    @cached_property
    def stays_after_countdown(self) -> bool:
        """Whether a refused call waits on when its countdown ends and its lock is held.

        The policy would answer the same, and need not be asked.
        """
        return self._possible == (policies.Retry,)

    @property
    def _given(self) -> tuple[type[policies.ConflictDecision], ...]:
        given = policies.ON_CONFLICT.given(self.on_conflict)
        return () if given is None else (given,)

    @property
    def _possible(self) -> tuple[type[policies.ConflictDecision], ...]:
        """The classes of all decisions that may be performed in a worker."""
        possible = policies.ON_CONFLICT.possible(self.on_conflict)
        is_one = self.knows_one_running_call
        return tuple(kind for kind in possible if is_one or not kind.registers)


def on_conflict_of(given: Mapping[str, Any]) -> Any:
    """Return the option ``on_conflict`` of these options, or its default.

    Raises:
        ConfigurationError: The limits, on which the default depends, cannot be used.
    """
    names = {field.name for field in fields(LimitOptions)}
    limits = LimitOptions(**{name: given[name] for name in names & given.keys()})
    limits.check()
    default = "retry" if limits.is_limited else "skip"
    on_conflict = given.get("on_conflict")
    if isinstance(on_conflict, Mapping) and on_conflict and limits.is_limited:
        return {"execute": default, **on_conflict}
    return default if on_conflict is None else on_conflict


def options_of_policies() -> dict[str, list[type[policies.ConflictDecision]]]:
    """Return the options that only some policies read, each with these policies."""
    kinds = policies.ON_CONFLICT.words.values()
    names = dict.fromkeys(name for kind in kinds for name in kind.reads)
    return {name: [kind for kind in kinds if name in kind.reads] for name in names}
