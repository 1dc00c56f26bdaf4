"""Effects that happen once: in a database, which decides when a lock cannot.

A lock keeps two copies of a call from working at the same time. It cannot undo what a
copy does after its lock was lost. A database can: it refuses the late copy.

* `exactly_once` runs a body in one transaction with a record of the call, for tasks
  with ``exactly_once_in``. `call_records` says what a record is, and deletes old ones.
* `outbox` publishes messages if, and only if, such a transaction commits.
* `fences` refuses a write whose fence is less than the stored one.
* `stored` writes values into columns of records and messages.

``contrib.django`` and ``contrib.sqlalchemy`` store all this with their ORM. Both have
the few statements, each in its own words. In SQL they would be there once, and this
package would have to know what an ORM knows: dialects, moments, parameters.
"""

from __future__ import annotations

__all__ = ["call_records", "exactly_once", "fences", "outbox", "stored"]
