"""The machine and the versions of a run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

_PACKAGES = (
    "celery-redlock",
    "celery",
    "redis",
    "hiredis",
    "redlock-py",
    "pottery",
    "aioredlock",
    "python-redis-lock",
    "celery-once",
    "celery-singleton",
    "celery-heimdall",
    "psycopg",
    "etcd3gw",
    "kazoo",
)


def describe() -> dict[str, Any]:
    """Return the machine, the programs and their versions."""
    from celery_redlock.devnodes import find_redis_server  # noqa: PLC0415  (see plain)

    server = subprocess.run(  # noqa: S603  (the redis-server that is measured)
        [find_redis_server(), "--version"], capture_output=True, text=True, check=True
    )
    words = dict(word.partition("=")[::2] for word in server.stdout.split())
    return {
        "processor": f"{os.cpu_count()} × {_processor()}",
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "redis-server": words.get("v", server.stdout.strip()),
        "packages": ", ".join(f"{name} {_version(name)}" for name in _PACKAGES),
        "load when begun": f"{os.getloadavg()[0]:.1f}",
        "taken": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(absent)"


def _field(path: str, name: str) -> str:
    file = Path(path)
    for line in file.read_text().splitlines() if file.is_file() else ():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _processor() -> str:
    return _field("/proc/cpuinfo", "model name") or platform.processor()


def _memory() -> str:
    total = _field("/proc/meminfo", "MemTotal").partition(" ")[0]
    return f"{int(total) / 2**20:.1f} GiB" if total else "unknown"
