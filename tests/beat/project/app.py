"""The app of the worker tests, with the tasks of the beat tests."""

from __future__ import annotations

import json
import os

from tests.beat.project import tasks  # noqa: F401  (they register)
from tests.worker.project.app import SETTINGS, create_app

app = create_app(json.loads(os.environ.get(SETTINGS, "{}")))
