"""What a script is, what it answers, and the Lua that several of them share."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

__all__ = [
    "FREE",
    "GRANTED",
    "MISCONFIGURED",
    "OWNED",
    "QUARANTINED",
    "RUN_ID",
    "TAKEN",
    "UNSYNCED",
    "Script",
]

GRANTED, TAKEN, FREE, QUARANTINED, UNSYNCED, MISCONFIGURED = range(1, 7)


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua script.

    Attributes:
        name: What it is called in tests and traces.
        source: The Lua.
        whole: Send the source each time, where nobody may hear "forgotten".
        sha: Its SHA-1 in hex, by which a node knows it once it has seen it.
    """

    name: str
    source: str
    whole: bool = False
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False)
        object.__setattr__(self, "sha", digest.hexdigest())


# Everything below is local to one call.
OWNED = """
local function owned(value, token)
  return value and string.sub(value, 1, #token) == token
end
"""

RUN_ID = """
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
"""
