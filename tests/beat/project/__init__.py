"""What the beats and workers of these tests run."""

LONG = 3.0  # seconds that a long task takes
HELD = 1.5  # seconds for which a quick task keeps its lock
