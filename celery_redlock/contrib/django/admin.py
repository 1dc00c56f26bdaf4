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
import math
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import router, transaction
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.crypto import constant_time_compare, salted_hmac

from celery_redlock.app.runtime import runtime_of
from celery_redlock.contrib.django.models import CallRecord, HeldLock, OutboxMessage
from celery_redlock.contrib.django.project import celery_app
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.keys import keys_of
from celery_redlock.core.lease import Holder
from celery_redlock.core.records.forced_releases import forced_releases
from celery_redlock.errors import RedlockError
from celery_redlock.operations.force_release import (
    Operator,
    is_ours,
    release_lock,
    values_on,
)
from celery_redlock.operations.inspect import (
    LockStatus,
    lock_status,
    other_settings,
)
from celery_redlock.operations.scan import other_permits, scan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.http import HttpRequest, HttpResponse

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.operations.scan import Scan, SeenHolder

__all__ = ["CallRecordAdmin", "HeldLockAdmin", "OutboxMessageAdmin"]

log = logging.getLogger(__name__)

_LIST = "admin:celery_redlock_heldlock_changelist"
_MOST = 500  # rows on a page
_MOST_RELEASES = 20
_MOST_LIMITS = 20
_RELEASE = "celery_redlock.release_heldlock"


@admin.register(HeldLock)
class HeldLockAdmin(admin.ModelAdmin):
    """A list of the locks that are held, and a page to release one."""

    def get_urls(self) -> list[Any]:
        """Return the pages: a list and a release, nothing to add or change."""
        view, name = self.admin_site.admin_view, "celery_redlock_heldlock"
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            path("release/", view(self.release_view), name=f"{name}_release"),
        ]

    # -- permissions -----------------------------------------------------------------

    def has_view_permission(self, request: HttpRequest, _obj: Any = None) -> bool:
        """All staff users may look."""
        return bool(request.user.is_active and request.user.is_staff)

    def has_add_permission(self, _request: HttpRequest, _obj: Any = None) -> bool:
        """No: tasks take locks, which have nothing to edit."""
        return False

    has_module_permission = has_view_permission
    has_change_permission = has_add_permission
    has_delete_permission = has_add_permission  # the release has one of its own

    # -- pages -----------------------------------------------------------------------

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """List the locks that are held, the oldest first, and permits for a start.

        ``?q=invoice:*`` selects keys as Redis does. ``?all=1`` also lists keys of which
        no majority names one holder.
        """
        if not self.has_view_permission(request):
            raise PermissionDenied
        pattern, everything = request.GET.get("q", ""), "all" in request.GET
        context: dict[str, Any] = {"pattern": pattern, "everything": everything}
        try:
            redlock = runtime_of(celery_app()).redlock
            seen = scan(redlock, pattern or "*")
        except RedlockError as error:
            messages.error(request, str(error))
        else:
            shown = seen.held + seen.possible + seen.starts
            shown = seen.found if everything else shown
            settings = other_settings(redlock, seen.nodes)
            context |= {**_listing(seen, shown), "settings": settings}
            context["releases"] = _releases(redlock)
        context["may_release"] = request.user.has_perm(_RELEASE)
        context |= extra_context or {}
        return self._page(request, "held_locks", "Held locks", context)

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation, and release a lock that was confirmed."""
        if not request.user.has_perm(_RELEASE):
            raise PermissionDenied
        key = request.POST.get("key") or request.GET.get("key", "")
        try:
            redlock = runtime_of(celery_app()).redlock
            found = lock_status(redlock, key) if key and "\n" not in key else None
        except RedlockError as error:
            messages.error(request, str(error))
            return redirect(_LIST)
        values = values_on(found.seen.ballot) if found else {}
        refusal = f"No node that answered has a lock for {key}."
        if found and found.is_held is None and not values:
            refusal += " It cannot be told whether it is held: too few nodes can tell."
        if request.method == "POST":
            shown = request.POST.getlist("shown")
            values = {v: nodes for v, nodes in values.items() if _is_among(v, shown)}
            refusal = f"{key} expired or has another holder: nothing was released."
        if not values:
            messages.warning(request, refusal)
            return redirect(_LIST)
        if request.method == "POST":
            self._release(request, key, list(values))
            return redirect(_LIST)
        holders = _holders(found, values)
        context: dict[str, Any] = {"key": key, "holders": holders}
        context["is_permit"] = any(one["limit"] for one in holders)
        context["is_kept"] = any(one["holder"].is_kept for one in holders)
        context["ttl_left"] = found.ttl_left if found else 0.0
        context["never_ends"] = math.isinf(context["ttl_left"])
        context["other_permits"] = other_permits(redlock, key)
        context["releases"] = _releases(redlock, key)
        return self._page(request, "release_lock", "Release a lock?", context)

    def _release(self, request: HttpRequest, key: str, values: list[str]) -> None:
        """Release the lock. If the log entry cannot be written, nothing is released."""
        redlock = runtime_of(celery_app()).redlock
        holders = ", ".join(str(Holder.parse(v)) if is_ours(v) else "?" for v in values)
        with transaction.atomic(using=router.db_for_write(LogEntry)):
            entry = LogEntry.objects.create(
                user_id=request.user.pk,
                content_type_id=ContentType.objects.get_for_model(HeldLock).pk,
                object_id=key,
                object_repr=key[:200],
                action_flag=DELETION,
                change_message=f"Releasing the lock of {holders}.",
            )
            reason = request.POST.get("reason", "").strip()
            operator = Operator(str(request.user), "the Django admin", reason)
            nodes = release_lock(redlock, key, values, operator)
            released = sum(nodes.results.values())
            fact = f"on {released} of {len(redlock.labels)} nodes, held by {holders}"
            why = f" Reason: {reason}" if reason else ""
            entry.change_message = f"Released {fact}.{why}"
            entry.save(update_fields=["change_message"])
        log.warning("%s released the lock %r %s.%s", request.user, key, fact, why)
        if len(nodes.unseen) >= redlock.quorum:
            few = f"The lock {key} may still be held: too few nodes were reached."
            messages.error(request, few)
        elif released:
            messages.success(request, f"Released {key} {fact}.")
        else:
            messages.warning(request, f"{key} had expired: nothing was released.")
        for label, reason in nodes.unseen.items():
            fact = f"Node {label} {reason}. It keeps the lock until its ttl has ended."
            messages.warning(request, fact)

    def _page(
        self, request: HttpRequest, template: str, title: str, context: dict[str, Any]
    ) -> HttpResponse:
        everything = {
            **self.admin_site.each_context(request),
            "opts": HeldLock._meta,  # noqa: SLF001  (so Django's own templates have it)
            "title": title,
            **context,
        }
        return TemplateResponse(request, f"celery_redlock/{template}.html", everything)


class _ReadOnly(admin.ModelAdmin):
    """Rows that tasks write, and that are changed by no other."""

    show_full_result_count = False

    def has_add_permission(self, _request: HttpRequest) -> bool:
        """No: tasks write rows."""
        return False

    def has_change_permission(self, _request: HttpRequest, _obj: Any = None) -> bool:
        """No: a row is what has happened, or what will."""
        return False

    has_delete_permission = has_change_permission


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


def _listing(seen: Scan, locks: Iterable[SeenHolder]) -> dict[str, Any]:
    rows = sorted((_row(lock) for lock in locks), key=lambda row: row["since_s"])
    return {
        "seen": seen,
        "rows": rows[:_MOST],
        "not_shown": max(0, len(rows) - _MOST),
        "others": len(seen.others),
        "limits": seen.limits[:_MOST_LIMITS],
        "more_limits": max(0, len(seen.limits) - _MOST_LIMITS),
        "doubts": {node.label: node.doubt for node in seen.nodes if node.doubt},
    }


def _releases(redlock: Redlock, key: str | None = None) -> list[dict[str, Any]]:
    """Return the latest releases by operators, for a template."""
    found = forced_releases(redlock, key)[:_MOST_RELEASES]
    zone = timezone.utc
    return [
        {"release": one, "at": datetime.fromtimestamp(one.at, tz=zone)} for one in found
    ]


def _row(lock: SeenHolder) -> dict[str, Any]:
    holder = lock.holder
    return {
        "key": lock.key,
        **_of(holder, lock.key),
        "since_s": holder.started or math.inf,
        "ttl_left": None if math.isinf(lock.ttl_left) else lock.ttl_left,
        "votes": lock.votes,
        "held": lock.is_held,
    }


def _holders(found: LockStatus | None, values: dict[str, list[str]]) -> list[Any]:
    return [
        {
            **_of(Holder.parse(value), found.seen.key if found else ""),
            "is_ours": is_ours(value),
            "votes": len(nodes),
            "nodes": len(found.nodes) if found else 0,
            "shown": _digest(value),
        }
        for value, nodes in values.items()
    ]


def _of(holder: Holder, key: str) -> dict[str, Any]:
    """Return a holder of this key, for a template."""
    since = datetime.fromtimestamp(holder.started, tz=timezone.utc)
    limit, number = holder.permit(key) or (None, 0)
    return {
        "holder": holder,
        "since": since if holder.started else None,
        "age": SYSTEM_CLOCK.wall() - holder.started,
        "limit": limit,
        "number": number,
        "others": [one for one in keys_of(holder.whole_key(key)) if one != key],
    }


def _digest(value: str) -> str:
    """Identify a value on a page without showing its token, which proves ownership."""
    token = value.partition("\n")[0]
    made = salted_hmac("celery_redlock.release", token, algorithm="sha256")
    return str(made.hexdigest())


def _is_among(value: str, shown: Iterable[str]) -> bool:
    return any(constant_time_compare(_digest(value), one) for one in shown)
