"""The lock options of a task: what may be written, and which call has which key.

Read in this order: ``call_key`` (a call is reduced to the name that it locks),
``arguments`` (all options with their types and meanings), ``lock_options`` (their
defaults, and which of them go together; each policy adds its own rules, see
``policies``), ``exactly_once`` (records of calls in a database), ``foreign`` (options
of other libraries, which are refused), ``broker`` (how calls wait in the broker of an
app).
"""

__all__ = ["arguments", "broker", "call_key", "exactly_once", "foreign", "lock_options"]
