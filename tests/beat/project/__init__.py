"""What the beats and workers of these tests run."""

LONG = 3.0  # seconds that a long task takes
HELD = 0.75  # seconds for which a quick task keeps its lock
DATABASE = "PROJECT_DATABASE"  # names the file of the Django project's
