"""A Django project whose schedule is in its database."""

from __future__ import annotations

import json
import os

import django
from celery import Celery
from django.conf import settings

from tests.beat.project import DATABASE
from tests.worker.project.app import SETTINGS

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ[DATABASE],
            "OPTIONS": {"timeout": 20},
        }
    },
    INSTALLED_APPS=["django_celery_beat"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    SECRET_KEY="of a project that lives for a second",
    TIME_ZONE="Europe/Berlin",
    USE_TZ=True,
)
django.setup()

app = Celery("project", set_as_current=False)
app.conf.update(json.loads(os.environ.get(SETTINGS, "{}")))
