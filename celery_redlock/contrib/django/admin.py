"""Locks in the admin: who holds what since when, and a way to take a lock away.

Every member of the staff may look. To release a lock takes the permission
``celery_redlock.release_heldlock``, a page that says what it risks, and leaves an
entry in the admin's log. What is released is what was shown: should somebody else
have the lock by then, it is left alone.
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

from celery_redlock.contrib.django.models import HeldLock
from celery_redlock.contrib.django.project import celery_app
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.lease import Holder
from celery_redlock.core.removal import is_ours, remove, values_on
from celery_redlock.core.survey import survey
from celery_redlock.errors import RedlockError
from celery_redlock.runtime import runtime_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.http import HttpRequest, HttpResponse

    from celery_redlock.core.lease import Inspection
    from celery_redlock.core.survey import SeenLock, Survey

__all__ = ["HeldLockAdmin"]

log = logging.getLogger("celery_redlock.contrib.django")

_LIST = "admin:celery_redlock_heldlock_changelist"
_MOST = 500  # rows on a page
_RELEASE = "celery_redlock.release_heldlock"


@admin.register(HeldLock)
class HeldLockAdmin(admin.ModelAdmin):
    """A list of the locks that are held, and a page to release one."""

    def get_urls(self) -> list[Any]:
        """Return a list and a release; there is no row to add or change."""
        view, name = self.admin_site.admin_view, "celery_redlock_heldlock"
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            path("release/", view(self.release_view), name=f"{name}_release"),
        ]

    # -- permissions -----------------------------------------------------------------

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Every member of the staff may look."""
        return bool(request.user.is_active and request.user.is_staff)

    def has_view_permission(self, request: HttpRequest, _obj: Any = None) -> bool:
        """Every member of the staff may look."""
        return self.has_module_permission(request)

    def has_add_permission(self, _request: HttpRequest) -> bool:
        """Nobody: tasks take locks."""
        return False

    def has_change_permission(self, _request: HttpRequest, _obj: Any = None) -> bool:
        """Nobody."""
        return False

    def has_delete_permission(self, _request: HttpRequest, _obj: Any = None) -> bool:
        """Nobody: to release a lock is another thing."""
        return False

    # -- pages -----------------------------------------------------------------------

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """List the locks that are held, the oldest first.

        ``?q=invoice:*`` picks keys as Redis does, and ``?all=1`` shows what fewer
        nodes name than a majority as well.
        """
        if not self.has_view_permission(request):
            raise PermissionDenied
        pattern, everything = request.GET.get("q", ""), "all" in request.GET
        context: dict[str, Any] = {"pattern": pattern, "everything": everything}
        try:
            redlock = runtime_of(celery_app()).redlock
            seen = survey(
                redlock.addresses,
                redlock.guard.prefix,
                pattern or "*",
                timeout=redlock.timing.connect_timeout,
            )
        except RedlockError as error:
            messages.error(request, str(error))
        else:
            context |= _listing(seen, seen.locks if everything else seen.held)
        context["may_release"] = request.user.has_perm(_RELEASE)
        return self._page(request, "held_locks", "Held locks", context, extra_context)

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Ask, and release a lock if the answer is yes."""
        if not request.user.has_perm(_RELEASE):
            raise PermissionDenied
        key = request.POST.get("key") or request.GET.get("key", "")
        try:
            redlock = runtime_of(celery_app()).redlock
            seen = redlock.inspect(key) if key and "\n" not in key else None
        except RedlockError as error:
            messages.error(request, str(error))
            return redirect(_LIST)
        values = values_on(seen.ballot) if seen else {}
        if request.method == "POST":
            shown = request.POST.getlist("shown")
            values = {v: nodes for v, nodes in values.items() if _is_among(v, shown)}
            if values:
                self._release(request, key, list(values))
            else:
                messages.warning(
                    request,
                    f"{key} had changed hands or ended: nothing was released.",
                )
            return redirect(_LIST)
        if not values:
            messages.warning(request, f"Nobody holds {key}, as far as nodes answer.")
            return redirect(_LIST)
        context = {"key": key, "holders": _holders(seen, values)}
        context["ttl_left"] = seen.ttl_left if seen else 0
        return self._page(request, "release_lock", "Release a lock?", context)

    def _release(self, request: HttpRequest, key: str, values: list[str]) -> None:
        """Take the lock away. What cannot be logged is not done."""
        redlock = runtime_of(celery_app()).redlock
        who = ", ".join(str(Holder.parse(v)) if is_ours(v) else "?" for v in values)
        with transaction.atomic(using=router.db_for_write(LogEntry)):
            entry = LogEntry.objects.create(
                user_id=request.user.pk,
                content_type_id=ContentType.objects.get_for_model(HeldLock).pk,
                object_id=key,
                object_repr=key[:200],
                action_flag=DELETION,
                change_message=f"Releasing the lock of {who}.",
            )
            said = remove(redlock, key, values)
            done = sum(one is True for one in said.values())
            fact = f"on {done} of {len(said)} nodes, held by {who}"
            entry.change_message = f"Released {fact}."
            entry.save(update_fields=["change_message"])
        log.warning("%s released the lock %r %s.", request.user, key, fact)
        if done:
            messages.success(request, f"Released {key} {fact}.")
        else:
            messages.warning(request, f"Nothing of {key} was left to release.")
        for label, one in said.items():
            if isinstance(one, str):
                messages.warning(
                    request,
                    f"Node {label} {one}: what it has of the lock stays there until "
                    "its ttl has ended.",
                )

    def _page(
        self,
        request: HttpRequest,
        template: str,
        title: str,
        context: dict[str, Any],
        extra: dict[str, Any] | None = None,
    ) -> HttpResponse:
        everything = {
            **self.admin_site.each_context(request),
            "opts": HeldLock._meta,  # noqa: SLF001  (so Django's own templates have it)
            "title": title,
            **context,
            **(extra or {}),
        }
        return TemplateResponse(request, f"celery_redlock/{template}.html", everything)


def _listing(seen: Survey, locks: Iterable[SeenLock]) -> dict[str, Any]:
    rows = sorted((_row(lock, seen) for lock in locks), key=lambda row: row["since_s"])
    return {
        "seen": seen,
        "rows": rows[:_MOST],
        "not_shown": max(0, len(rows) - _MOST),
        "others": len(seen.others),
        "looked_at": len(seen.labels) - len(seen.unseen),
    }


def _row(lock: SeenLock, seen: Survey) -> dict[str, Any]:
    holder = lock.holder
    return {
        "key": lock.key,
        "holder": holder,
        "since": _since(holder),
        "age": SYSTEM_CLOCK.wall_us() / 1e6 - holder.started,
        "since_s": holder.started or math.inf,
        "ttl_left": None if math.isinf(lock.ttl_left) else lock.ttl_left,
        "votes": lock.votes,
        "held": lock.votes >= seen.quorum,
    }


def _holders(seen: Inspection | None, values: dict[str, list[str]]) -> list[Any]:
    return [
        {
            "holder": Holder.parse(value) if is_ours(value) else None,
            "since": _since(Holder.parse(value)),
            "age": SYSTEM_CLOCK.wall_us() / 1e6 - Holder.parse(value).started,
            "votes": len(nodes),
            "nodes": len(seen.ballot.labels) if seen else 0,
            "shown": _digest(value),
        }
        for value, nodes in values.items()
    ]


def _since(holder: Holder) -> datetime | None:
    if not holder.started:
        return None
    return datetime.fromtimestamp(holder.started, tz=timezone.utc)


def _digest(value: str) -> str:
    """Name a value in a page without showing it: its token proves ownership."""
    token = value.partition("\n")[0]
    return str(salted_hmac("celery_redlock.release", token).hexdigest())


def _is_among(value: str, shown: Iterable[str]) -> bool:
    return any(constant_time_compare(_digest(value), one) for one in shown)
