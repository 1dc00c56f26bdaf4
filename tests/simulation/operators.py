"""Operators: processes that run one command of an operator on the simulated network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.errors import RedlockError
from celery_redlock.operations.reconfigure import reconfigure
from tests.simulation.clients import new_redlock
from tests.simulation.world import Thread

if TYPE_CHECKING:
    from tests.simulation.oracles import Oracle
    from tests.simulation.plan import Plan
    from tests.simulation.world import Process

_LOOKS = 20  # for a moment in which no lock lives, for which an operator waits
_BETWEEN_LOOKS = 0.05  # seconds
_PATIENCE = 2.0  # seconds for which reconfigure tries a step again


def run_command(process: Process, plan: Plan, oracle: Oracle, command: str) -> None:
    """Start a command in this process.

    Args:
        process: The process of the command.
        plan: Has the settings.
        oracle: Observes the command.
        command: "init n" with settings n; "reconfigure m n" from settings m to n;
            "reconfigure m n abort" takes that back.
    """
    name, *words = command.split()
    numbers = [int(word) for word in words if word.isdigit()]
    services = [new_redlock(process, plan, number) for number in numbers]

    def say(text: str) -> None:
        process.world.log(process.name, text)

    def run() -> None:
        oracle.count(f"operator {name}{' abort' * ('abort' in words)}")
        say(f"runs {command}")
        if name == "init" and oracle.opened_settings:
            return  # this would be another deployment, beside the one that was moved
        try:
            if name == "init":
                for _ in range(_LOOKS):
                    if oracle.is_quiet:
                        break
                    process.clock.sleep(_BETWEEN_LOOKS)
                oracle.init_begun(process)
                services[0].initialize()
            else:
                is_abort = "abort" in words
                reconfigure(*services, abort=is_abort, on_step=say, patience=_PATIENCE)
            oracle.count(f"operator {name} done")
            say("is done")
        except RedlockError as error:
            oracle.count(f"operator {name} refused")
            say(f"cannot: {error}")

    Thread(target=run, process=process).start()
