"""Virtual time and one scheduler for all that happens in a history.

Client code that blocks runs in greenlets; everything else is an event on one
heap. Nothing here reads a real clock, so a history depends on its plan alone.

Each process has clocks of its own and passes `Process.operate` whenever its code
touches the world (reads a clock, takes a lock, sends, waits): there it can be
paused, interrupted or killed. What code does in between touches nobody else, so
a pause there would look the same from outside.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.witness import Witness

__all__ = ["Clock", "Died", "Interrupted", "Process", "Thread", "World", "here"]

EPOCH = 1_800_000_000.0  # seconds since 1970 when a history begins


class Died(BaseException):
    """Thrown into the code of a process that was killed: it does nothing more."""


class Interrupted(Exception):  # noqa: N818  (a time limit, not a mistake)
    """Thrown into a task by a time limit, wherever it happens to be."""


class Spinning(BaseException):
    """Thrown into code that waits for something without letting time pass."""


_MANY = 3000  # operations between two looks at whether time passes
_WOKEN = True


class World:
    """The heap of events, and whose turn it is.

    Attributes:
        now: Seconds since the history began.
        running: The thread whose code runs; None while an event does.
        stopped: Set by whoever wants no more events to happen.
        trace: Lines of the history, or None when nobody will read them.
        crashes: Errors that no code expected: each is a finding.
    """

    current: World
    witness: Witness

    def __init__(self, *, traced: bool = False) -> None:
        World.current = self
        self.now = 0.0
        self.running: Thread | None = None
        self.stopped = False
        self.hub = getcurrent()
        self.trace: list[tuple[float, str, str]] | None = [] if traced else None
        self.crashes: list[BaseException] = []
        self._events: list[tuple[float, int, Callable[..., object], Any]] = []
        self._count = 0

    def at(self, instant: float, call: Callable[..., object], *args: Any) -> None:
        """Plan an event."""
        self._count = count = self._count + 1
        heapq.heappush(self._events, (instant, count, call, args))

    def run(self, until: float) -> None:
        """Let events happen up to an instant, or until somebody stops it."""
        events, pop = self._events, heapq.heappop
        self.stopped = False
        while events and events[0][0] <= until:
            self.now, _, call, args = pop(events)
            call(*args)
            if self.stopped:
                return
        self.now = max(self.now, until)

    def note(self, who: str, what: str) -> None:
        """Write a line of the history, if somebody will read it."""
        if self.trace is not None:
            self.trace.append((self.now, who, what))


class Clock:
    """The clocks of one client's machine; a `core.clock.Clock`."""

    __slots__ = ("process",)

    def __init__(self, process: Process) -> None:
        self.process = process

    def monotonic(self) -> float:
        """Seconds by a clock that runs a little too fast or too slow."""
        process = self.process
        process.operate()
        return process.origin + process.rate * process.world.now

    def wall_us(self) -> int:
        """Microseconds since 1970, as far as this machine knows."""
        process = self.process
        process.operate()
        return round((EPOCH + process.skew + process.rate * process.world.now) * 1e6)

    def sleep(self, seconds: float) -> None:
        """Pause the calling thread."""
        self.process.operate()
        here().park(seconds)


class Process:
    """One client: a process on a machine of its own.

    Args:
        world: Where it lives.
        name: What it is called in the history.
        rate: Seconds that its clocks count in a second.
        skew: Seconds by which its wall clock is ahead.

    Attributes:
        origin: What its monotonic clock said when the history began.
        traps: What will happen to it at which operation, the first one last.
        rng: Its dice.
        on_death: Called when it has died, before its threads are ended.
    """

    rng: Random

    def __init__(self, world: World, name: str, *, rate: float, skew: float) -> None:
        self.world = world
        self.name = name
        self.rate = rate
        self.skew = skew
        self.origin = 1000.0
        self.clock = Clock(self)
        self.threads: list[Thread] = []
        self.traps: list[tuple[int, Callable[[], object]]] = []
        self.on_death: list[Callable[[], object]] = []
        self.dead = False
        self.paused_until = 0.0
        self.last_resumed_at = 0.0
        self.minted = 0
        self._operations = 0
        self._next_trap = self._next_look = _MANY
        self._last_look_at = -1.0

    def operate(self) -> None:
        """Pass a point at which the world can do something to this process."""
        self._operations += 1
        if self._operations >= self._next_trap:
            self._spring()

    def set_traps(self, traps: list[tuple[int, Callable[[], object]]]) -> None:
        """Plan what happens at which operation of this process."""
        self.traps = sorted(traps, key=lambda trap: -trap[0])
        self._plan_next()

    def _plan_next(self) -> None:
        self._next_trap = self._next_look
        if self.traps:
            self._next_trap = min(self._next_trap, self.traps[-1][0])

    def _spring(self) -> None:
        if self.dead:
            raise Died
        if self._operations >= self._next_look:
            if self.world.now == self._last_look_at:
                raise Spinning(f"{self.name} did {_MANY} things in no time")
            self._last_look_at = self.world.now
            self._next_look = self._operations + _MANY
        action = None
        if self.traps and self._operations >= self.traps[-1][0]:
            _, action = self.traps.pop()
        self._plan_next()
        if action:
            action()

    def postpone(self, action: Callable[[], object]) -> None:
        """Let a trap spring at the next operation instead."""
        self.set_traps([*self.traps, (self._operations + 1, action)])

    def instant_of(self, monotonic: float) -> float:
        """Return the true instant at which its monotonic clock says so."""
        return (monotonic - self.origin) / self.rate

    def pause(self, seconds: float) -> None:
        """Stop all of its threads for so long (SIGSTOP, a GC that takes its time)."""
        if self.dead:
            return
        self.world.note(self.name, f"is paused for {seconds:.3f} s")
        self.paused_until = max(self.paused_until, self.world.now + seconds)
        self.last_resumed_at = self.paused_until
        running = self.world.running
        if running is not None and running.process is self:
            running.park(0.0)

    def die(self) -> None:
        """End it without letting its code do anything more (SIGKILL)."""
        if self.dead:
            return
        self.dead = True
        self._next_trap = 0  # whatever it does next is too much
        self.world.note(self.name, "dies")
        for call in self.on_death:
            call()
        running = self.world.running
        self.world.at(self.world.now, self._bury)
        if running is not None and running.process is self:
            raise Died

    def _bury(self) -> None:
        for thread in self.threads:
            thread.end()


class Thread:
    """A thread of a process; stands in for ``threading.Thread`` in the core."""

    def __init__(
        self,
        *,
        target: Callable[[], object],
        name: str = "",
        daemon: bool = True,
        process: Process | None = None,
        interruptible: bool = False,
    ) -> None:
        self.process: Process = process or here().process
        self.world = self.process.world
        self.name = name
        self.daemon = daemon
        self.interruptible = interruptible
        self.process.threads.append(self)
        self.ident = len(self.process.threads)
        self._target = target
        self._greenlet = greenlet(self._main, parent=self.world.hub)
        self._joiners: list[Thread] = []
        self._turn = 0
        self._parked = False
        self._started = False

    def start(self) -> None:
        """Let it run, from now on."""
        self._started = True
        self.world.at(self.world.now, self._resume, _WOKEN)

    def is_alive(self) -> bool:
        """Tell whether it has been started and has not ended."""
        return self._started and not self._greenlet.dead

    def join(self) -> None:
        """Wait for its end."""
        if self.is_alive():
            self._joiners.append(here())
            here().park(None)

    def park(self, seconds: float | None) -> bool:
        """Wait to be woken, for so long by the process's own clock at most.

        Returns:
            Whether it was woken before that.
        """
        self._turn = turn = self._turn + 1
        self._parked = True
        world = self.world
        if seconds is not None:
            ends = world.now + max(0.0, seconds) / self.process.rate
            world.at(ends, self._time_out, turn)
        woken: bool = world.hub.switch()
        if self.process.dead:
            raise Died
        return woken

    def wake(self) -> bool:
        """End its wait. Return False if that has ended already."""
        was_parked, self._parked = self._parked, False
        if was_parked:
            self.world.at(self.world.now, self._resume, _WOKEN)
        return was_parked

    def end(self) -> None:
        """Throw it out of whatever it does. For events, not for threads."""
        if self._greenlet:
            self.world.running = self
            self._greenlet.throw(Died)
            self.world.running = None

    def _time_out(self, turn: int) -> None:
        if self._parked and self._turn == turn:
            self._parked = False
            self._resume(woken=False)

    def _resume(self, woken: bool) -> None:
        process, world = self.process, self.world
        if process.dead or self._greenlet.dead:
            return
        if world.now < process.paused_until:
            world.at(process.paused_until, self._resume, woken)
            return
        world.running = self
        self._greenlet.switch(woken)
        world.running = None

    def _main(self, _: bool) -> None:
        try:
            self._target()
        except Died:
            pass
        except BaseException as error:  # noqa: BLE001  (becomes a finding)
            self.world.crashes.append(error)
            self.world.stopped = True
        for joiner in self._joiners:
            joiner.wake()


def here() -> Thread:
    """Return the thread whose code is running."""
    thread = World.current.running
    if thread is None:
        message = "code of a client ran outside of its threads"
        raise RuntimeError(message)
    return thread
