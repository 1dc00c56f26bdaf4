"""Settings of the site. The settings for locks begin at CELERY_REDLOCK_NODES.

Optional variables of the environment:

=====================  =========================================================
``DATABASE_URL``       ``postgresql://user:password@host:5432/name``; default SQLite
``CELERY_BROKER_URL``  the broker; default a Redis on this machine
``REDLOCK_NODES``      the URLs of the lock nodes, separated by commas, or the URL of
                       a store, which may have commas of its own
``REPORTS_VAR``        the folder for the SQLite file and the logs
``REPORT_SECONDS``     the duration of a report; default 8
``FETCH_SECONDS``      the duration of a fetch for a tenant; default 12
=====================  =========================================================
"""

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

BASE = Path(__file__).resolve().parent.parent
VAR = Path(os.environ.get("REPORTS_VAR") or BASE / "var")

DEBUG = True
SECRET_KEY = "of an example that runs on one machine"  # noqa: S105
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_celery_beat",
    "django_celery_results",
    "celery_redlock.contrib.django",  # system checks, and locks in the admin
    "reports",
    "imports",
    "invoices",
    "limits",
    "live",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
STATICFILES_DIRS = [BASE / "static"]

USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"


def _database(url: str) -> dict[str, Any]:
    if not url:
        VAR.mkdir(parents=True, exist_ok=True)
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": VAR / "db.sqlite3",
            "OPTIONS": {
                # Many processes write here, and wait for each other.
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
            },
        }
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }


DATABASES = {"default": _database(os.environ.get("DATABASE_URL", ""))}

# -- Celery --------------------------------------------------------------------

CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL", "redis://127.0.0.1:6379/0")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_RESULT_BACKEND = "django-db"  # the result of a skipped call names the holder
CELERY_TASK_ACKS_LATE = True  # a job that is killed halfway ...
CELERY_TASK_REJECT_ON_WORKER_LOST = True  # ... is run again
CELERY_WORKER_PREFETCH_MULTIPLIER = 1

# -- Locks ---------------------------------------------------------------------

# Independent masters: no replicas of each other, and not the broker.
CELERY_REDLOCK_NODES = re.split(
    r",(?=\w+://)",
    os.environ.get(
        "REDLOCK_NODES",
        "redis://127.0.0.1:7001/0,redis://127.0.0.1:7002/0,redis://127.0.0.1:7003/0",
    ),
)
# The scheduler inside `celery beat -S redlock`.
CELERY_REDLOCK_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
# The defaults are 30, 60 and 0.05 s. These values are for watching: locks are renewed
# every 2 s, and a restarted node votes again after 13 s instead of 62. The time-out is
# long, because one machine runs all nodes and a browser. A store waits for its disk.
CELERY_REDLOCK_TTL = 6
CELERY_REDLOCK_MAX_TTL = 12
CELERY_REDLOCK_NODE_TIMEOUT = 0.2 if "redis" in CELERY_REDLOCK_NODES[0] else 1.0

# -- Reports -------------------------------------------------------------------

REPORT_SECONDS = float(os.environ.get("REPORT_SECONDS", "8"))
FETCH_SECONDS = float(os.environ.get("FETCH_SECONDS", "12"))
IMPORT_SECONDS = 12  # longer than the interval of the schedule
