"""Locks in the admin: a list of the holders, and a page to release a lock.

Records of calls (``exactly_once_in``) and the messages in the outbox can be read and
searched, and not changed.

All staff users may look. To release a lock, a user needs the permission
``celery_redlock.release_heldlock`` and confirms on a page that states the risk. The
release leaves an entry in the admin's log, and a record on the nodes, which this page
and ``celery redlock show`` list. Only what was shown is released: if another client has
acquired the lock by then, it keeps the lock.
"""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import router, transaction
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.formats import date_format
from django.utils.http import urlencode
from django.utils.timezone import template_localtime

from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics.text import printable
from celery_redlock.contrib.django.models import CallRecord, HeldLock, OutboxMessage
from celery_redlock.contrib.django.project import celery_app
from celery_redlock.errors import RedlockError
from celery_redlock.operations.release import (
    Operator,
    ask_for_page,
    holders_text,
    release,
)
from celery_redlock.operations.scan import scan
from celery_redlock.operations.words import unknown_text
from celery_redlock.records.forced_releases import forced_releases
from celery_redlock.web import parts
from celery_redlock.web.parts import PageStyle

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.operations.release import Question

log = logging.getLogger(__name__)

_LIST = "admin:celery_redlock_heldlock_changelist"
_QUESTION = "admin:celery_redlock_heldlock_release"
_RELEASE = "celery_redlock.release_heldlock"


class _ReadOnly(admin.ModelAdmin):
    """An admin page of what tasks write, without a form to edit it."""

    show_full_result_count = False

    def has_add_permission(self, _request: HttpRequest) -> bool:
        """Return False: tasks write it."""
        return False

    def has_change_permission(self, _request: HttpRequest, _obj: object = None) -> bool:
        """Return False: only tasks write it."""
        return False

    has_delete_permission = has_change_permission


@admin.register(HeldLock)
class HeldLockAdmin(_ReadOnly):
    """A list of the locks that are held, and a page to release one.

    The release has a permission of its own.
    """

    def get_urls(self) -> list[Any]:
        """Return the pages: a list and a release, nothing to add or change."""
        view, name = self.admin_site.admin_view, "celery_redlock_heldlock"
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            path("release/", view(self.release_view), name=f"{name}_release"),
        ]

    # -- permissions -----------------------------------------------------------------

    def has_view_permission(self, request: HttpRequest, _obj: object = None) -> bool:
        """Return whether the user is staff: all staff users may look."""
        return bool(request.user.is_active and request.user.is_staff)

    has_module_permission = has_view_permission

    # -- pages -----------------------------------------------------------------------

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """List the locks that are held, the oldest first, and permits for a start.

        ``?q=invoice:*`` selects keys as Redis does. ``?all=1`` also lists keys of which
        no majority names one holder. ``?page=2`` is the second hundred.
        """
        if not self.has_view_permission(request):
            raise PermissionDenied
        pattern, everything = request.GET.get("q", ""), "all" in request.GET
        if fact := parts.search_refusal(pattern):
            messages.error(request, fact)
            return self._page(request, "held_locks", "Held locks", {})
        context: dict[str, Any] = {"pattern": pattern, "everything": everything}
        may_release = request.user.has_perm(_RELEASE)
        style = PageStyle(self._question_url if may_release else None, _local)
        try:
            redlock = runtime_of(celery_app()).redlock
            seen = scan(redlock, pattern or "*")
        except RedlockError as error:
            messages.error(request, str(error))
        else:
            context |= {
                "seen": seen,
                "unknown": unknown_text(seen),
                "settings": seen.nodes.settings,
                "locks": parts.lock_list(seen, style, request.GET.dict()),
                "limits": parts.limit_list(seen),
                "doubts": seen.nodes.doubts,
                "releases": _releases(redlock, None, style),
            }
        context |= extra_context or {}
        return self._page(request, "held_locks", "Held locks", context)

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation, and release a lock that was confirmed."""
        if not request.user.has_perm(_RELEASE):
            raise PermissionDenied
        key = request.POST.get("key") or request.GET.get("key", "")
        try:
            redlock = runtime_of(celery_app()).redlock
            asked = ask_for_page(redlock, key)
            if request.method == "POST":
                values = asked.confirmed(request.POST.getlist("shown"))
                self._release(request, asked, values)
                return redirect(self._url(_LIST))
        except RedlockError as error:
            messages.warning(request, str(error))
            return redirect(self._url(_LIST))
        style = PageStyle(at=_local)
        context: dict[str, Any] = {
            "key": key,
            "question": parts.question(asked, style),
            "digests": asked.digests(),
            "releases": _releases(redlock, key, style),
        }
        return self._page(request, "release_lock", "Release a lock?", context)

    def _release(
        self, request: HttpRequest, asked: Question, values: list[str]
    ) -> None:
        """Release the lock. If the log entry cannot be written, nothing is released."""
        redlock, key = runtime_of(celery_app()).redlock, asked.key
        name = printable(key)  # PostgreSQL has no NUL in a text
        with transaction.atomic(using=router.db_for_write(LogEntry)):
            entry = LogEntry.objects.create(
                user_id=request.user.pk,
                content_type_id=ContentType.objects.get_for_model(HeldLock).pk,
                object_id=name,
                object_repr=name[:200],
                action_flag=DELETION,
                change_message=printable(
                    f"Releasing the lock of {holders_text(values)}."
                ),
            )
            reason = request.POST.get("reason", "")
            operator = Operator(str(request.user), "the Django admin", reason)
            done = release(redlock, asked, values, operator)
            log.warning("%s released the lock %r%s", operator.who, key, done.fact)
            entry.change_message = f"Released{done.fact}"
            entry.save(update_fields=["change_message"])
        for level, text in done.messages:
            messages.add_message(request, getattr(messages, level.upper()), text)

    def _page(
        self, request: HttpRequest, template: str, title: str, context: dict[str, Any]
    ) -> HttpResponse:
        request.current_app = self.admin_site.name  # for the links of the template
        everything = {
            **self.admin_site.each_context(request),
            "opts": HeldLock._meta,  # noqa: SLF001  (so Django's own templates have it)
            "title": title,
            **context,
        }
        return TemplateResponse(request, f"celery_redlock/{template}.html", everything)

    def _question_url(self, key: str) -> str:
        """Return the address of the page that asks before a lock is released."""
        return f"{self._url(_QUESTION)}?{urlencode({'key': key})}"

    def _url(self, name: str) -> str:
        """Return the address of a page in this site: a project may have several."""
        return str(reverse(name, current_app=self.admin_site.name))


@admin.register(CallRecord)
class CallRecordAdmin(_ReadOnly):
    """The records of calls with ``exactly_once_in``, to be read only.

    A record that was changed or deleted would let a call run again, or keep it out. The
    search is for a whole task id, or for a part of the key or of the task's name.
    """

    list_display = ("task", "task_id", "key", "state", "fence", "recorded_at")
    list_filter = ("state",)
    ordering = ("-recorded_at",)
    search_fields = ("=task_id", "task", "key")


@admin.register(OutboxMessage)
class OutboxMessageAdmin(_ReadOnly):
    """The messages in the outbox, to be read only, without their arguments.

    A few are normal while transactions end. Older ones wait for the periodic task
    ``celery_redlock.publish_outbox``.
    """

    list_display = ("task", "id", "written_at")
    ordering = ("written_at",)
    search_fields = ("=id", "task")
    exclude = ("body",)


def _releases(redlock: Redlock, key: str | None, style: PageStyle) -> str | None:
    found, nodes = forced_releases(redlock, key), len(redlock.labels)
    return parts.release_list(found, nodes, style)


def _local(seconds: float) -> str:
    """Return an instant in the time zone of the site."""
    at = datetime.fromtimestamp(seconds, tz=timezone.utc)
    return str(date_format(template_localtime(at), "Y-m-d H:i:s"))
