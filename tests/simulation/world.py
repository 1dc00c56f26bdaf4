"""Virtual time, and one scheduler for all events of a history.

The code of clients runs in greenlets, because it blocks. All else is an event on one
heap. Nothing here reads a real clock, so a history depends on its plan alone.

Each process has its own clocks. It passes `Process.checkpoint` whenever its code uses
the world (reads a clock, takes a lock, sends, waits). There it can be paused,
interrupted or killed. Between two checkpoints its code affects no other process, so a
pause there would look the same from outside.
"""

from __future__ import annotations

import heapq
from functools import partial
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.oracles import Oracle

EPOCH = 1_800_000_000.0  # seconds since 1970 when a history begins


class Killed(BaseException):
    """Raised in the code of a killed process, which then does nothing more."""


class Interrupted(Exception):  # noqa: N818  (a time limit, not a mistake)
    """Raised in a task by a time limit, at any operation."""


class BusyLoop(BaseException):
    """Raised in code that waits without letting time pass."""


_MOST_AT_ONCE = 3000  # operations of a process between two looks at the time
_WOKEN = True


class World:
    """The heap of events.

    Attributes:
        now: Seconds since the history began.
        running: The thread whose code runs; None during an event.
        stopped: Set by code that wants `run` to return after the current event.
        trace: Lines of the history, or None when no reader wants them.
        crashes: Unexpected errors. Each is a finding.
        rng: The random numbers that belong to no process.
    """

    current: World
    oracle: Oracle
    rng: Random

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

    def schedule(self, instant: float, call: Callable[..., object], *args: Any) -> None:
        """Schedule an event."""
        self._count = count = self._count + 1
        heapq.heappush(self._events, (instant, count, call, args))

    def run(self, until: float) -> None:
        """Let events happen up to an instant, or until ``stopped`` is set."""
        events, pop = self._events, heapq.heappop
        self.stopped = False
        while events and events[0][0] <= until:
            self.now, _, call, args = pop(events)
            call(*args)
            if self.stopped:
                return
        self.now = max(self.now, until)

    def log(self, actor: str, text: str) -> None:
        """Add a line to the trace, if there is one."""
        if self.trace is not None:
            self.trace.append((self.now, actor, text))


class Clock:
    """The clocks of one client's machine; a `basics.clock.Clock`."""

    __slots__ = ("process",)

    def __init__(self, process: Process) -> None:
        self.process = process

    def monotonic(self) -> float:
        """Return seconds by a clock that runs slightly too fast or too slow."""
        process = self.process
        process.checkpoint()
        return process.origin + process.rate * process.world.now

    def wall(self) -> float:
        """Return seconds since 1970, by the wall clock of this machine."""
        process = self.process
        process.checkpoint()
        return EPOCH + process.skew + process.rate * process.world.now

    def sleep(self, seconds: float) -> None:
        """Pause the calling thread."""
        self.process.checkpoint()
        current_thread().park(seconds)


class Process:
    """One client process, on its own machine.

    Args:
        world: The world that it belongs to.
        name: Its name in the history.
        rate: Seconds that its clocks count per true second.
        skew: Seconds by which its wall clock is ahead.

    Attributes:
        origin: Its monotonic clock when the history began.
        triggers: Actions with the number of the operation at which they happen, the
            next one last.
        rng: Its random numbers.
        on_death: Called after its death, before its threads end.
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
        self.triggers: list[tuple[int, Callable[[], object]]] = []
        self.on_death: list[Callable[[], object]] = []
        self.dead = False
        self.paused_until = 0.0
        self.last_resumed_at = 0.0
        self.tokens = 0
        self._operations = 0
        self._next_stop = self._next_look = _MOST_AT_ONCE
        self._last_look_at = -1.0

    def checkpoint(self) -> None:
        """Count an operation, and let a fault happen here if one is due."""
        self._operations += 1
        if self._operations >= self._next_stop:
            self._stop()

    def set_triggers(self, triggers: list[tuple[int, Callable[[], object]]]) -> None:
        """Set the actions that happen at certain operations of this process."""
        self.triggers = sorted(triggers, key=lambda trigger: -trigger[0])
        self._set_next_stop()

    def postpone(self, action: Callable[[], object]) -> None:
        """Let an action happen at the next operation instead."""
        self.set_triggers([*self.triggers, (self._operations + 1, action)])

    def _set_next_stop(self) -> None:
        self._next_stop = self._next_look
        if self.triggers:
            self._next_stop = min(self._next_stop, self.triggers[-1][0])

    def _stop(self) -> None:
        if self.dead:
            raise Killed
        if self._operations >= self._next_look:
            if self.world.now == self._last_look_at:
                raise BusyLoop(f"{self.name} did {_MOST_AT_ONCE} operations at once")
            self._last_look_at = self.world.now
            self._next_look = self._operations + _MOST_AT_ONCE
        action = None
        if self.triggers and self._operations >= self.triggers[-1][0]:
            _, action = self.triggers.pop()
        self._set_next_stop()
        if action:
            action()

    def instant_of(self, monotonic: float) -> float:
        """Return the true instant of this reading of its monotonic clock."""
        return (monotonic - self.origin) / self.rate

    def pause(self, seconds: float) -> None:
        """Stop all of its threads for a while (SIGSTOP, garbage collection)."""
        if self.dead:
            return
        self.world.log(self.name, f"is paused for {seconds:.3f} s")
        self.paused_until = max(self.paused_until, self.world.now + seconds)
        self.last_resumed_at = self.paused_until
        running = self.world.running
        if running is not None and running.process is self:
            running.park(0.0)

    def die(self) -> None:
        """End it at once (SIGKILL)."""
        if self.dead:
            return
        self.dead = True
        self._next_stop = 0  # its next operation raises Killed
        self.world.log(self.name, "dies")
        for call in self.on_death:
            call()
        self.world.schedule(self.world.now, self._end_threads)
        running = self.world.running
        if running is not None and running.process is self:
            raise Killed

    def _end_threads(self) -> None:
        for thread in self.threads:
            thread.end()


class Thread:
    """A thread of a process; replaces ``threading.Thread`` in the core."""

    def __init__(  # noqa: PLR0913  (keyword-only, most as in threading)
        self,
        *,
        target: Callable[..., object],
        args: tuple[Any, ...] = (),
        name: str = "",
        daemon: bool = True,
        process: Process | None = None,
        interruptible: bool = False,
    ) -> None:
        self.process: Process = process or current_thread().process
        self.world = self.process.world
        self.name = name
        self.daemon = daemon
        self.interruptible = interruptible
        self.process.threads.append(self)
        self.ident = len(self.process.threads)
        self._target = partial(target, *args)
        self._greenlet = greenlet(self._main, parent=self.world.hub)
        self._joiners: list[Thread] = []
        self._parks = 0
        self._parked = False
        self._started = False

    def start(self) -> None:
        """Let it run from now on."""
        self._started = True
        self.world.schedule(self.world.now, self._resume, _WOKEN)

    def is_alive(self) -> bool:
        """Tell whether it has started and has not ended."""
        return self._started and not self._greenlet.dead

    def join(self) -> None:
        """Wait for its end."""
        if self.is_alive():
            self._joiners.append(current_thread())
            current_thread().park(None)

    def park(self, seconds: float | None) -> bool:
        """Wait for `wake`, at most so long by the clock of the process.

        Returns:
            Whether it was woken in time.
        """
        self._parks = number = self._parks + 1
        self._parked = True
        world = self.world
        if seconds is not None:
            ends = world.now + max(0.0, seconds) / self.process.rate
            world.schedule(ends, self._time_out, number)
        woken: bool = world.hub.switch()
        if self.process.dead:
            raise Killed
        return woken

    def wake(self) -> bool:
        """End its wait. Return False if the wait has already ended."""
        was_parked, self._parked = self._parked, False
        if was_parked:
            self.world.schedule(self.world.now, self._resume, _WOKEN)
        return was_parked

    def end(self) -> None:
        """Raise Killed in it. Called by events, not by threads."""
        if self._greenlet:
            self.world.running = self
            self._greenlet.throw(Killed)
            self.world.running = None

    def _time_out(self, number: int) -> None:
        if self._parked and self._parks == number:
            self._parked = False
            self._resume(woken=False)

    def _resume(self, woken: bool) -> None:
        process, world = self.process, self.world
        if process.dead or self._greenlet.dead:
            return
        if world.now < process.paused_until:
            world.schedule(process.paused_until, self._resume, woken)
            return
        world.running = self
        self._greenlet.switch(woken)
        world.running = None

    def _main(self, _: bool) -> None:
        try:
            self._target()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  (becomes a finding)
            self.world.crashes.append(error)
            self.world.stopped = True
        for joiner in self._joiners:
            joiner.wake()


def current_thread() -> Thread:
    """Return the thread whose code is running."""
    thread = World.current.running
    if thread is None:
        message = "the code of a client ran outside of its threads"
        raise RuntimeError(message)
    return thread
