"""What a line in the log says besides its text: the fields that it carries.

Each line about something that matters has the name of the event and its facts as
attributes of the record, flat and with a common beginning: ``redlock_event``,
``redlock_key``. That is what JSON formatters and structlog's ``ExtraAdder`` show as
they are, and what can be searched for while texts change. The events and their
facts are in docs/monitoring.md.
"""

from __future__ import annotations

__all__ = ["about"]


def about(event: str, **facts: object) -> dict[str, object]:
    """Return the ``extra`` of a line.

    Args:
        event: What has happened, in a word that does not change between versions.
        **facts: What it has happened to. Never arguments of a task: they are private.
    """
    fields = {f"redlock_{name}": fact for name, fact in facts.items()}
    return {"redlock_event": event, **fields}
