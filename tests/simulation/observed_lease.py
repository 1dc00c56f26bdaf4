"""Leases that report each change of their validity and state to the oracle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_redlock.locks.lease import Lease, LeaseState

if TYPE_CHECKING:
    from tests.simulation.world import Process


@dataclass(slots=True)
class Grant:
    """A granted lease, in true time.

    Attributes:
        begun_at: When a node first voted for it.
        valid_until: When its validity ends, by the clock of its holder.
        watched_at: When its holder asked to be notified of a loss.
        over: Whether it was released, or reported as lost.
        holders: How many holders each of its keys may have at once.
    """

    lease: ObservedLease
    process: Process
    begun_at: float
    granted_at: float
    valid_until: float
    watched_at: float | None = None
    over: bool = False
    holders: dict[str, int] = field(default_factory=dict)

    def is_held(self, now: float) -> bool:
        """Tell whether its holder may believe that it holds the lock."""
        return not self.over and now < self.valid_until and not self.process.dead

    def __str__(self) -> str:
        return (
            f"{self.process.name} (fence {self.lease.fence}, granted at "
            f"{self.granted_at:.4f}, valid until {self.valid_until:.4f})"
        )


class ObservedLease(Lease):
    """A lease that reports when its validity or state changes."""

    __slots__ = ("grant",)

    grant: Grant | None

    def __init__(self, **parts: Any) -> None:
        self.grant = None
        super().__init__(**parts)
        process: Process = parts["clock"].process
        process.world.oracle.granted(self, process)

    def begin(self) -> None:
        """Note that the work begins now."""
        had_begun = self.began_at is not None
        super().begin()
        if self.began_at is not None and not had_begun and self.grant is not None:
            self.grant.process.world.oracle.started(self.grant)

    @property
    def until(self) -> float:
        """When its validity ends by the clock of its holder."""
        instant: float = _UNTIL.__get__(self)
        return instant

    @until.setter
    def until(self, instant: float) -> None:
        _UNTIL.__set__(self, instant)
        if self.grant is not None:
            self.grant.process.world.oracle.extended(self.grant, instant)

    @property
    def state(self) -> LeaseState:
        """Whether it is held, released or lost."""
        state: LeaseState = _STATE.__get__(self)
        return state

    @state.setter
    def state(self, state: LeaseState) -> None:
        _STATE.__set__(self, state)
        if self.grant is not None:
            self.grant.process.world.oracle.ended(self.grant, state)


_UNTIL: Any = vars(Lease)["until"]
_STATE: Any = vars(Lease)["state"]
