"""A project whose base classes change each call when it is published."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from typing import Any

from celery import Task
from celery import signals as celery_signals
from kombu.utils.uuid import uuid

from celery_redlock import singleton_task
from tests.projects.app import new_app, note, notes

app = new_app("base-classes")
later: list[Any] = []


class Named(Task):
    """Gives each job an id that an operator can read."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish with such an id."""
        options["task_id"] = f"{self.name}-{uuid()}"
        return super().apply_async(args, kwargs, **options)


class Traced(Task):
    """Sends a trace id in the headers, and nothing else."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish with the header."""
        return super().apply_async(args, kwargs, headers={"x_trace": "t"}, **options)


class Carrying(Task):
    """Carries the id of the web request in a keyword."""

    abstract = True
    typing = False

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish with the keyword."""
        kwargs = {**(kwargs or {}), "request_id": "r-1"}
        return super().apply_async(args, kwargs, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run without the keyword."""
        kwargs.pop("request_id")
        return super().__call__(*args, **kwargs)


class AfterCommit(Task):
    """Publishes when the transaction is committed."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Keep the call until then."""
        send = functools.partial(super().apply_async, args, kwargs, **options)
        later.append(send)


def job(account: str) -> str:
    """Do nothing for the account."""
    note(account)
    return account


UNIQUE = {"key": "{account}", "unique_while": "queued", "app": app, "acks_late": True}

named: Any = singleton_task(**UNIQUE, name="named", base=Named)(job)
traced: Any = singleton_task(**UNIQUE, name="traced", base=Traced)(job)
carrying: Any = singleton_task(**UNIQUE, name="carrying", base=Carrying)(job)
committed: Any = singleton_task(**UNIQUE, name="committed", base=AfterCommit)(job)


RETURNS: Any = {"app": app, "ttl": 60, "acks_late": True, "reject_on_worker_lost": True}
region = {} if "worker" in sys.argv else {"name": "eu"}  # a process of the pool has it


def killed_once(name: str) -> None:
    """Kill the process that runs this, the first time."""
    note(name)
    if len(notes(name)) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


@singleton_task(**RETURNS, name="unpacked", key="{account}")
def unpacked(account: Any) -> str:
    """Work for an account, which the main process knows by its number."""
    killed_once("unpacked")
    return str(account)


@singleton_task(**RETURNS, name="extended", key="extended:{account}")
def extended(account: Any) -> str:
    """Work for an account, in the language of the request."""
    killed_once("extended")
    return str(account)


def in_region(n: int) -> str:
    """Return the key of a number in the region of this process."""
    return f"{region['name']}:{n}"


@singleton_task(**RETURNS, name="regional", key=in_region)
def regional(n: int) -> str:
    """Work in a region of which the main process knows nothing."""
    killed_once("regional")
    return str(n)


@celery_signals.worker_process_init.connect(weak=False)
def _find_region(**_: Any) -> None:
    region["name"] = "eu"


@celery_signals.before_task_publish.connect(weak=False)
def _add(sender: str, body: Any, **_: Any) -> None:
    if sender == "extended":
        body[1]["locale"] = "de"


@celery_signals.task_prerun.connect(weak=False)
def _take(task: Any, args: Any, kwargs: Any, **_: Any) -> None:
    if task.name == "extended":
        kwargs.pop("locale")
    if task.name == "unpacked":
        args[0] = f"account {args[0]}"
