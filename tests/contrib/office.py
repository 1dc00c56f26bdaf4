"""A Django site with an admin: what its settings are, and people who use it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from django.core.management import call_command
from django.db import connections

if TYPE_CHECKING:
    from django.test import Client

__all__ = ["SETTINGS", "log_in", "open_office"]

APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "celery_redlock.contrib.django",
]

SETTINGS: dict[str, Any] = {
    "INSTALLED_APPS": [*APPS, "tests.contrib.shop"],
    "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
    "MIDDLEWARE": [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
    "ROOT_URLCONF": __name__,
    "SECRET_KEY": "of a site that lives for a second",
    "STATIC_URL": "static/",
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    "USE_TZ": True,
}


def __getattr__(name: str) -> Any:
    """Make the site's URLs, which Django wants here, once its apps are loaded."""
    if name != "urlpatterns":
        raise AttributeError(name)
    from django.contrib import admin  # noqa: PLC0415  (not before Django is set up)
    from django.urls import path  # noqa: PLC0415

    globals()[name] = found = [path("admin/", admin.site.urls)]
    return found


def open_office(alias: str) -> None:
    """Make this database the default one, with the tables of Django's own apps."""
    connections.settings["default"] = connections.settings[alias]
    with contextlib.suppress(AttributeError):
        del connections["default"]
    call_command("migrate", verbosity=0, run_syncdb=True)


def log_in(name: str, *permissions: str, **facts: Any) -> Client:
    """Return a browser in which a new member of the staff has logged in.

    Args:
        name: Of the user, who is made.
        permissions: Codenames of what they may do.
        **facts: Other columns of the user.
    """
    from django.contrib.auth.models import Permission, User  # noqa: PLC0415
    from django.test import Client  # noqa: PLC0415

    user = User.objects.create_user(name, **{"is_staff": True, **facts})
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    browser = Client()
    browser.force_login(user)
    return browser
