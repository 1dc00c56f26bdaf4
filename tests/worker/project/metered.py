"""Metrics of the app, served at the port that a test chooses."""

from __future__ import annotations

import os

from celery_redlock import metrics
from tests.harness.metrics import PORT
from tests.worker.project.app import app

metrics.install(app, port=int(os.environ[PORT]), host="127.0.0.1")
