"""The fields of a log line: its event and the facts about it.

Each line about an important event carries the name of the event and its facts as
attributes of the record, flat and with a common prefix: ``redlock_event``,
``redlock_key``. JSON formatters and structlog's ``ExtraAdder`` show them as they are,
and searches can rely on them while texts change. All events and their facts are in
``docs/reference/log-events.md``.
"""

from __future__ import annotations


def log_fields(event: str, **facts: object) -> dict[str, object]:
    """Return the ``extra`` of a log line.

    Args:
        event: The name of the event, which does not change between versions.
        **facts: What the event is about. Never arguments of a task: they are private.
    """
    fields = {f"redlock_{name}": fact for name, fact in facts.items()}
    return {"redlock_event": event, **fields}
