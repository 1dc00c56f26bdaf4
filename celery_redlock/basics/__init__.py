"""Small parts that every room uses, and that know no other one.

``clock``, ``timing``, ``backoff``: the time, the durations of a deployment, and pauses.
``text``, ``glob``, ``spelling``, ``signature``, ``secret``: what is checked of a text
that comes from outside, patterns of keys, likely names, the parameters of a function,
and what is shown of a URL with a password. ``log_fields``, ``log_limit``: lines of the
log. ``process``: what a fork must not copy, and how threads start and end. ``forks``:
what a fork waits for. ``callbacks``: functions that belong to others. ``resp``: from
commands to bytes and from bytes to replies. ``selector``: waits for sockets, in a
thread or a greenlet. ``finding_codes``: the findings of the doctor that a setting can
name. ``command``: the command that errors and log lines name.
"""

__all__ = [
    "backoff",
    "callbacks",
    "clock",
    "command",
    "finding_codes",
    "forks",
    "glob",
    "log_fields",
    "log_limit",
    "process",
    "resp",
    "secret",
    "selector",
    "signature",
    "spelling",
    "text",
    "timing",
]
