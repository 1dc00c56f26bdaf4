"""The modules that are mutated, and the tests that judge their mutants."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_CORE = "tests/unit/lock"
_SIMULATION = (
    "tests/simulation/test_scenarios.py",
    "tests/simulation/test_histories.py",
)


@dataclass(frozen=True)
class Module:
    """One module of the package.

    Attributes:
        path: The file, from the root of the project.
        fast: The tests that see every mutant.
        slow: The tests that see the mutants that survive these.
    """

    path: str
    fast: tuple[str, ...]
    slow: tuple[str, ...] = _SIMULATION

    @property
    def source(self) -> str:
        """The text of the file."""
        return (ROOT / self.path).read_text("utf-8")


def _unit(*names: str) -> tuple[str, ...]:
    return tuple(f"{_CORE}/test_{name}.py" for name in names)


def _on_nodes(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/nodes/test_{name}.py" for name in names)


MODULES = {
    "fence": Module(
        "celery_redlock/locks/fence.py", _unit("fence", "several_keys", "redlock")
    ),
    "quorum": Module(
        "celery_redlock/wire/quorum.py",
        _unit("quorum", "fence", "redlock", "several_keys", "refusals"),
    ),
    "restart_guard": Module(
        "celery_redlock/members/restart_guard.py",
        _unit("restart_guard", "guard_decisions", "deployment", "view"),
        (
            *_SIMULATION,
            *_on_nodes("restart_guard", "recovery", "reconfiguration"),
            *_on_nodes("differing_clients", "misfits"),
        ),
    ),
    "extension": Module(
        "celery_redlock/locks/extension.py",
        _unit("extension", "watchdog", "several_keys", "permits"),
    ),
    "redlock": Module(
        "celery_redlock/locks/redlock.py",
        (
            *_unit("redlock", "refusals", "reentrance", "permits"),
            *_unit("fence", "claims", "extension", "wait_queue", "deployment"),
            *_unit("several_keys", "watchdog", "successors"),
            *_unit("restart_guard", "guard_decisions"),
            "tests/unit/test_lease.py",
            "tests/unit/locking",
        ),
        (
            *_SIMULATION,
            *_on_nodes("init", "texts_of_keys", "several_keys", "wait"),
            *_on_nodes("event_loop", "recovery", "services", "fork"),
            "tests/stores/test_ensure.py",
        ),
    ),
}
