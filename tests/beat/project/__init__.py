"""The project that the beats and workers of these tests run."""

LONG = 3.0  # seconds that a long task takes
HELD = 0.75  # seconds for which a quick task keeps its lock
DATABASE = "PROJECT_DATABASE"  # the variable with the file of Django's database
