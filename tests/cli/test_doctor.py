"""``redlock doctor``: what it says, its exit codes, and the ACL that it prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.permissions import COMMANDS, acl_rules
from celery_redlock.core.redlock import Redlock
from celery_redlock.core.survey import survey
from celery_redlock.devnodes import DevNodes, ServerOptions
from celery_redlock.diagnostics import Finding, diagnose
from celery_redlock.election import Elector
from tests.nodes.support import PATIENT, client, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.project import Project

HEALTHY = {"one-host"}  # these are tests: all nodes are on this machine
