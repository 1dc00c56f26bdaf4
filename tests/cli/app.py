"""The app of the user's project: commands in processes import this and no test."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_redlock import singleton_task

SETTINGS = "PROJ_SETTINGS"


def new_app(settings: Mapping[str, Any]) -> Celery:
    """Return the project's app, with one task.

    Where ``proj_import`` is set, there is another one, with these options.
    """
    app = Celery("proj", set_as_current=False)
    app.conf.update(broker_url="memory://", result_backend="cache+memory://")
    app.conf.update(settings)

    @singleton_task(
        app=app, name="proj.send_invoice", key="invoice:{number}", shared=False
    )
    def send_invoice(number: int) -> None: ...

    if options := settings.get("proj_import"):

        @singleton_task(app=app, name="proj.import", shared=False, **options)
        def import_rows() -> None: ...

    return app


def app_of_the_environment() -> Celery:
    """Return the app with the settings of the test."""
    return new_app(json.loads(os.environ[SETTINGS]))
