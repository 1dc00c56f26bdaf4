"""Leave things out of a plan for as long as the same kind of finding remains."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.history import play

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.simulation.plan import ClientPlan, Plan

__all__ = ["minimised"]

_MOST_TRIES = 600


def minimised(plan: Plan, *, blind_to: Iterable[str] = ()) -> Plan:
    """Return the smallest plan found in which the first finding's kind recurs.

    A plan that finds nothing is returned as it is. Only the plan shrinks; the
    network's dice belong to the seed and to the two ends of a way, so that they
    mostly fall as before.
    """
    kinds = {finding.kind for finding in play(plan, blind_to=blind_to).findings[:1]}
    tries = _MOST_TRIES
    smaller = True
    while kinds and smaller:
        smaller = False
        for candidate in _candidates(plan):
            tries -= 1
            if tries < 0:
                return plan
            found = play(candidate, blind_to=blind_to).findings
            if kinds & {finding.kind for finding in found}:
                plan, smaller = candidate, True
                break
    return plan


def _candidates(plan: Plan) -> Iterator[Plan]:
    """Yield plans with less in them, the greatest cuts first."""
    if len(plan.clients) > 1:
        for client in plan.clients:
            yield _without_client(plan, client)
    half = len(plan.faults) // 2
    if half > 1:
        yield plan.without(faults=plan.faults[:half])
        yield plan.without(faults=plan.faults[half:])
    for number in range(len(plan.faults)):
        rest = plan.faults[:number] + plan.faults[number + 1 :]
        yield plan.without(faults=rest)
    if len(plan.probes) > 1:
        for number in range(len(plan.probes)):
            rest_of_probes = plan.probes[:number] + plan.probes[number + 1 :]
            yield plan.without(probes=rest_of_probes)
    for client in plan.clients:
        yield from _with_less_to_do(plan, client)
    yield from _plainer(plan)


def _without_client(plan: Plan, client: ClientPlan) -> Plan:
    gone = client.name
    return plan.without(
        clients=tuple(other for other in plan.clients if other is not client),
        faults=tuple(f for f in plan.faults if gone not in (f.on, f.peer)),
    )


def _with_less_to_do(plan: Plan, client: ClientPlan) -> Iterator[Plan]:
    for number, task in enumerate(client.tasks):
        before, after = client.tasks[:number], client.tasks[number + 1 :]
        if before or after:
            yield _with_client(plan, replace(client, tasks=before + after))
        for index in range(len(task)):
            shorter = task[:index] + task[index + 1 :]
            if shorter:
                tasks = (*before, shorter, *after)
                yield _with_client(plan, replace(client, tasks=tasks))


def _with_client(plan: Plan, changed: ClientPlan) -> Plan:
    return plan.without(
        clients=tuple(
            changed if client.name == changed.name else client
            for client in plan.clients
        )
    )


def _plainer(plan: Plan) -> Iterator[Plan]:
    """Yield plans with better clocks and a steadier network."""
    for node in plan.nodes:
        if (node.rate, node.skew) != (1.0, 0.0):
            nodes = tuple(
                replace(n, rate=1.0, skew=0.0) if n is node else n for n in plan.nodes
            )
            yield plan.without(nodes=nodes)
    for client in plan.clients:
        if client.rate != 1.0:
            yield _with_client(plan, replace(client, rate=1.0))
        steady = client.weather._replace(spikes=0.0, spike=0.0, stutter=0.0)
        if client.weather != steady:
            yield _with_client(plan, replace(client, weather=steady))
