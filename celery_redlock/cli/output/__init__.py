"""The parts that all commands share: running a command, and formatting results.

``session`` runs a command and prints for operators or, with ``--json``, for programs,
once or again and again; ``format`` makes tables, and sentences about locks and nodes;
``ink`` colors lines, and cleans them of what could control a terminal.
"""

__all__ = ["format", "ink", "session"]
