"""What can be seen of a node by looking at it: standing, clock, habits, permissions.

Nothing is judged here (``diagnostics`` does that), and nothing on the node changes.
What must be tried, to learn whether it is allowed, is tried on a key of its own that
ends after a second.
"""

from __future__ import annotations

import enum
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_redlock.core.lease import Holder
from celery_redlock.core.scripts import ALL_SCRIPTS, INSPECT
from celery_redlock.core.wire import ErrorReply

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_redlock.core.clock import Clock
    from celery_redlock.core.guard import Guard
    from celery_redlock.core.probe import Probe

__all__ = [
    "COMMANDS",
    "Chart",
    "Glance",
    "Rhythm",
    "Standing",
    "denied_command",
    "examine",
    "glance",
]

_CALLED_BY_SCRIPTS = {
    verb.lower()
    for script in ALL_SCRIPTS
    for verb in re.findall(r"redis\.call\('(\w+)'", script.source)
}
COMMANDS = tuple(
    sorted(_CALLED_BY_SCRIPTS | {"eval", "evalsha", "script|load", "info", "scan"})
)
"""What a user of the nodes must be allowed to do, as ACLs call it."""

_SAMPLE = 500  # keys, of which some are looked at
_BEATS = 10  # looks at a clock
_MS, _US = 1000, 1_000_000
_NO_QUARANTINE = -2  # as PTTL says it


class Standing(enum.Enum):
    """Whether a node votes; the value says it in words."""

    VOTES = "votes"
    QUARANTINED = "in quarantine"
    RECOVERING = "recovers its fences"
    FORGETFUL = "is new or has restarted"
    CLOSED = "is closed for a reconfiguration"
    ESTRANGED = "is set up differently"
    UNFIT = "may not vote"
    SILENT = "is silent"


@dataclass(frozen=True, slots=True)
class Glance:
    """A node at one moment.

    Attributes:
        label: Its name.
        silence: Why nothing was seen of it; ``""`` when it was.
        misfit: Why it must not vote whatever it says, or ``""``.
        info: What INFO says, name by name.
        meta: What it knows of the deployment: config, run_id, synced.
        quarantine: Seconds for which it does not vote; 0 when it is in none.
        guarded: Whether the restart guard is on.
        config: What we think of the deployment, to be compared with its.
    """

    label: str
    silence: str = ""
    misfit: str = ""
    info: Mapping[str, str] = {}  # noqa: RUF008
    meta: Mapping[str, str] = {}  # noqa: RUF008
    quarantine: float = 0.0
    config: str = ""


