"""A Django app whose models are written under fences."""
