"""The lock options of a task: what may be written, and which call has which key.

Read in this order: ``call_key`` (a call is reduced to the name that it locks),
``lock_options`` (all options, and which of them go together; each policy adds its own
rules, see ``policies``).
"""

__all__ = ["call_key", "lock_options"]
