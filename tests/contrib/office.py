"""A Django site with an admin: its settings, and its users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.test import Client

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
    """Make the site's URLs when Django reads them, after it loaded the apps."""
    if name != "urlpatterns":
        raise AttributeError(name)
    from django.contrib import admin  # noqa: PLC0415  (not before Django is set up)
    from django.urls import path  # noqa: PLC0415

    from celery_redlock.contrib.django.admin import HeldLockAdmin  # noqa: PLC0415
    from celery_redlock.contrib.django.models import HeldLock  # noqa: PLC0415

    ops = admin.AdminSite(name="ops")
    ops.register(HeldLock, HeldLockAdmin)
    found = [path("admin/", admin.site.urls), path("ops/", ops.urls)]
    globals()[name] = found
    return found


def log_in(name: str, *permissions: str, **fields: Any) -> Client:
    """Return a browser in which a new staff user has logged in.

    Args:
        name: The name of the new user.
        permissions: The codenames of their permissions.
        **fields: Other columns of the user.
    """
    from django.contrib.auth.models import Permission, User  # noqa: PLC0415
    from django.test import Client  # noqa: PLC0415

    user = User.objects.create_user(name, **{"is_staff": True, **fields})
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    browser = Client()
    browser.force_login(user)
    return browser
