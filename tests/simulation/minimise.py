"""Remove parts of a plan for as long as the same kind of finding remains."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.history import play

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.plan import ClientPlan, Operation, Plan

_MOST_TRIES = 600


def minimised(plan: Plan) -> Plan:
    """Return the smallest plan that still shows the kind of the first finding.

    A plan without a finding is returned as it is. The random numbers of the network
    belong to the seed and to the two ends of a path, so a smaller plan mostly meets
    the same delays.
    """
    kinds = {finding.kind for finding in play(plan).findings[:1]}
    tries = _MOST_TRIES
    smaller = True
    while kinds and smaller:
        smaller = False
        for candidate in _candidates(plan):
            tries -= 1
            if tries < 0:
                return plan
            found = play(candidate).findings
            if kinds & {finding.kind for finding in found}:
                plan, smaller = candidate, True
                break
    return plan


def _candidates(plan: Plan) -> Iterator[Plan]:
    """Yield smaller plans, the greatest cuts first."""
    if len(plan.clients) > 1:
        for client in plan.clients:
            yield plan.but(
                clients=tuple(other for other in plan.clients if other is not client),
                faults=tuple(
                    f for f in plan.faults if client.name not in (f.on, f.peer)
                ),
            )
    half = len(plan.faults) // 2
    if half > 1:
        yield plan.but(faults=plan.faults[:half])
        yield plan.but(faults=plan.faults[half:])
    for faults in _without_one(plan.faults):
        yield plan.but(faults=faults)
    if len(plan.final_quorums) > 1:
        for quorums in _without_one(plan.final_quorums):
            yield plan.but(final_quorums=quorums)
    for client in plan.clients:
        for tasks in _shorter(client.tasks):
            yield _with_client(plan, replace(client, tasks=tasks))
    yield from _with_better_conditions(plan)


def _without_one(items: tuple[object, ...]) -> Iterator[tuple[object, ...]]:
    for index in range(len(items)):
        yield items[:index] + items[index + 1 :]


def _shorter(
    tasks: tuple[tuple[Operation, ...], ...],
) -> Iterator[tuple[tuple[Operation, ...], ...]]:
    for number, task in enumerate(tasks):
        before, after = tasks[:number], tasks[number + 1 :]
        if before or after:
            yield before + after
        if len(task) > 1:
            for index in range(len(task)):
                yield (*before, task[:index] + task[index + 1 :], *after)


def _with_client(plan: Plan, changed: ClientPlan) -> Plan:
    return plan.but(
        clients=tuple(
            changed if client.name == changed.name else client
            for client in plan.clients
        )
    )


def _with_better_conditions(plan: Plan) -> Iterator[Plan]:
    """Yield plans with better clocks and a steadier network."""
    for node in plan.nodes:
        if (node.rate, node.skew) != (1.0, 0.0):
            exact = replace(node, rate=1.0, skew=0.0)
            yield plan.but(nodes=tuple(exact if n is node else n for n in plan.nodes))
    for client in plan.clients:
        if client.rate != 1.0:
            yield _with_client(plan, replace(client, rate=1.0))
        steady = client.conditions._replace(spikes=0.0, spike=0.0, partial_sends=0.0)
        if client.conditions != steady:
            yield _with_client(plan, replace(client, conditions=steady))
