"""Policies for calls that cannot have their lock, or lose it: one file a policy.

A policy answers a situation with a decision; the package ``task`` performs it. Three
task options take one: by a *word*, by a *decision*, or by a callable that gets the
situation and returns either::

    def urgent_ones_wait(conflict: Conflict) -> ConflictDecision | str:
        return Wait(timeout=60) if conflict.kwargs.get("urgent") else "skip"

    def replays_in_order(conflict: Conflict) -> ConflictDecision | str:
        return BufferOne(keep="first" if conflict.kwargs.get("replay") else "latest")

    def forced_ones_replace(conflict: Conflict) -> ConflictDecision | str:
        return CancelRunning(grace=5) if conflict.kwargs.get("force") else "skip"

A conflict can be met twice: when a call is published, where it is claimed
(``unique_while``), and when it is executed. ``{"publish": ..., "execute": ...}``
answers each in its own way.

Read in this order: ``base`` (situations, the decision base classes and their hooks),
``skip`` (the shortest policy), ``raise_``, ``allow``, ``retry``, ``wait``,
``buffer_one``, ``cancel_running``; for lost locks ``abort`` and ``warn``; ``registry``
(from the value of a task option to a decision).

Exported are the situations, the decisions, and the options that take them. To add a
policy, write a file like ``skip``, and do what "Add a policy" in the page about the
architecture says.
"""

from celery_redlock.policies.abort import Abort
from celery_redlock.policies.allow import Run
from celery_redlock.policies.base import (
    Conflict,
    ConflictDecision,
    DecidedCall,
    Decision,
    Loss,
    LossDecision,
    Outage,
    OutageDecision,
    PublishDecision,
    RefusedCall,
    Situation,
    TaskOptions,
    WorkerCall,
    policy,
)
from celery_redlock.policies.buffer_one import BufferOne
from celery_redlock.policies.cancel_running import CancelRunning
from celery_redlock.policies.raise_ import Raise
from celery_redlock.policies.registry import (
    ON_BACKEND_ERROR,
    ON_CONFLICT,
    ON_LOCK_LOST,
    ON_PUBLISH,
    Policy,
    PolicyOption,
    at_stage,
    given_at,
    label_of,
    publish_policy,
)
from celery_redlock.policies.retry import Retry
from celery_redlock.policies.skip import Skip
from celery_redlock.policies.wait import Wait
from celery_redlock.policies.warn import Warn

__all__ = [
    "ON_BACKEND_ERROR",
    "ON_CONFLICT",
    "ON_LOCK_LOST",
    "ON_PUBLISH",
    "Abort",
    "BufferOne",
    "CancelRunning",
    "Conflict",
    "ConflictDecision",
    "DecidedCall",
    "Decision",
    "Loss",
    "LossDecision",
    "Outage",
    "OutageDecision",
    "Policy",
    "PolicyOption",
    "PublishDecision",
    "Raise",
    "RefusedCall",
    "Retry",
    "Run",
    "Situation",
    "Skip",
    "TaskOptions",
    "Wait",
    "Warn",
    "WorkerCall",
    "at_stage",
    "given_at",
    "label_of",
    "policy",
    "publish_policy",
]
