"""The lock options of a task: what may be written, and which call has which key.

Read in this order: ``call_key`` (a call is reduced to the name that it locks),
``arguments`` (all options with their types and meanings); then their groups, each with
its defaults and what it refuses: ``key_options``, ``unique_options``,
``policy_options`` (each policy adds its own rules, see ``policies``) and
``exactly_once``; ``lock_options`` (all groups together). ``values`` checks flags, and
puts the name of an option in front of its error, ``foreign`` has names of other
libraries and of settings, which are refused, and ``broker`` says how calls wait in an
app's broker.
"""

__all__ = [
    "arguments",
    "broker",
    "call_key",
    "exactly_once",
    "lock_options",
    "values",
]
