"""Type checkers and the lock options agree, and checkers refuse wrong arguments."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from celery import Celery, Task

from celery_redlock import LockOptions, policies
from celery_redlock.options import arguments
from celery_redlock.options.arguments import LockArguments, TaskArguments
from docs.reference.generate import texts_below

ROOT = Path(__file__).parents[3]
REFUSED = "  # refused"

USES = """
from datetime import timedelta
from typing import Any

from celery_redlock import LockOptions, SingletonTask, singleton_task
from celery_redlock.options.arguments import LockArguments
from celery_redlock.policies import BufferOne, Conflict, Wait

class Base(SingletonTask):
    colour = "red"

def urgent_ones_wait(conflict: Conflict) -> Wait | str:
    if conflict.limit is not None and conflict.limit.period > 60:
        return "skip"
    return Wait(timeout=60) if conflict.kwargs.get("urgent") else "skip"

@singleton_task
def plain(number: int) -> None: ...

@singleton_task(key="a:{number}", on_conflict="retry", ttl=timedelta(minutes=1))
def keyed(number: int) -> None: ...

@singleton_task(on_conflict=urgent_ones_wait, on_backend_error="run", name="called")
def called() -> None: ...

@singleton_task(on_conflict={"publish": "raise", "execute": BufferOne(keep="first")})
def staged() -> None: ...

@singleton_task(key="imports", limit=10, rate="30/m", rate_limit="5/s")
def limited() -> None: ...

@singleton_task(keys={"tenant:{tenant}": 1, "all": 9}, rate=(30, timedelta(hours=1)))
def by_tenant(tenant: str) -> None: ...

@singleton_task(keys=["account:{source}", "account:{target}"], rate=(30, 0.5))
def pair(source: int, target: int) -> None: ...

@singleton_task(base=Base, bind=True, autoretry_for=(OSError,), rate_limit="3/s")
def based(task: Any) -> None: ...

def from_elsewhere(options: dict[str, Any], arguments: LockArguments) -> LockOptions:
    singleton_task(**options)(print)
    return LockOptions(**arguments)

@singleton_task(key="order:{number}")
def named(number: int, note: str = "") -> str:
    return note

@singleton_task(bind=True, max_retries=3)
def bound(self: SingletonTask, number: int) -> list[int]:
    return [number] if self.request.retries else []

@singleton_task
def counted(number: int) -> int:
    return number

class Import(SingletonTask[[int], str]):
    def run(self, number: int) -> str:
        return str(number)

def import_all(task: SingletonTask[[int], str]) -> str:
    return task(3) + task.delay(3).get()

async def in_a_view() -> str:
    async with named.alock(3, note="x"), named.alock(3, wait=0.5) as lease:
        lease.ensure()
    return (await named.adelay(3)).get() + (await named.aapply_async((3,))).get()

named(3).upper() + named(number=3, note="x").upper()
named.delay(3, note="x").get(timeout=1).upper()
named.apply_async((3,), countdown=1).get().upper()
named.lock_key(3).upper()
named.explain(3)
named.s(3)
named.s()  # the task before it gives the rest
named.si(3, "x")
bound(3) + bound.delay(3).get()
counted(3) + counted.delay(number=3).get()
import_all(Import())
named.retry
with named.lock(3, "x"), named.lock(3, wait=5), bound.lock(3), Import().lock(3):
    pass

same: list[SingletonTask] = [plain, keyed, called, staged, based, limited, pair]
plain(1)
if (conflict := keyed.delay(number=1).conflict) is not None:
    conflict.retry_after
keyed.apply_async((1,), countdown=3)
keyed.explain(1)
based.colour
with keyed.lock(1) as lease:
    lease.ensure()
lease.fence + 1

singleton_task(on_conflit="skip")  # refused
singleton_task(on_conflict="skipp")  # refused
singleton_task(on_conflict={"publish": "retry"})  # refused
singleton_task(on_lock_lost="skip")  # refused
singleton_task(on_backend_error="abort")  # refused
singleton_task(unique_while="waiting")  # refused
singleton_task(key=42)  # refused
singleton_task(ttl="30")  # refused
singleton_task(limit="5")  # refused
singleton_task(limit=2.5)  # refused
singleton_task(limits=5)  # refused
singleton_task(keys={"imports": "10"})  # refused
singleton_task(keys={"imports": None})  # refused
singleton_task(rate=10)  # refused
singleton_task(rate=(10, "m"))  # refused
singleton_task(rate=("10", 60))  # refused
singleton_task(on_conflict={"publish": "retry"}, limit=5)  # refused
singleton_task(renew="no")  # refused
singleton_task(acks_late="yes")  # refused
singleton_task(expires=timedelta(hours=1))  # refused
singleton_task(retrys=3)  # refused
lease.fence + "1"  # refused
keyed.delay(1).conflict.phase  # refused
named("wrong")  # refused
named(3) + 1  # refused
named.delay("wrong")  # refused
named.delay()  # refused
named.delay(3, nota="x")  # refused
named.delay(3).get() + 1  # refused
named.apply_async((3,)).get() + 1  # refused
named.lock("wrong")  # refused
named.lock(3, wait="long")  # refused
named.alock("wrong")  # refused
named.adelay("wrong")  # refused
named.lock_key("wrong")  # refused
named.explain("wrong")  # refused
named.si("wrong")  # refused
bound("wrong")  # refused
bound.delay(None, 3)  # refused
bound(3) + 1  # refused
counted("wrong")  # refused
Import()("wrong")  # refused
Import().delay("wrong")  # refused
"""

# What celery-types declares of these classes: they are generic.
STUBS = {
    "__init__.pyi": """
from typing import Any, Generic, ParamSpec, TypeVar

from .canvas import Signature
from .result import AsyncResult

_P = ParamSpec("_P")
_R_co = TypeVar("_R_co", covariant=True)

class Celery:
    def __init__(self, main: str = ...) -> None: ...

class Task(Generic[_P, _R_co]):
    throws: tuple[type[Exception], ...]
    def delay(self, *args: _P.args, **kwargs: _P.kwargs) -> AsyncResult[_R_co]: ...
    def s(self, *args: Any, **kwargs: Any) -> Signature[_R_co]: ...
    def si(self, *args: _P.args, **kwargs: _P.kwargs) -> Signature[_R_co]: ...
    def retry(self, *, countdown: float | None = ...) -> Exception: ...
""",
    "result.pyi": """
from typing import Generic, TypeVar

_R_co = TypeVar("_R_co", covariant=True)

class AsyncResult(Generic[_R_co]):
    @property
    def result(self) -> _R_co | BaseException: ...
    def get(self, timeout: float | None = ...) -> _R_co: ...
""",
    "canvas.pyi": """
from typing import Generic, TypeVar
from .result import AsyncResult

_R_co = TypeVar("_R_co", covariant=True)

class Signature(Generic[_R_co]):
    def delay(self) -> AsyncResult[_R_co]: ...
""",
}

USES_WITH_STUBS = """
# pyright: strict
from typing import Any

from celery import Celery, Task
from celery_redlock import SingletonTask, singleton_task

class Base(Task[..., Any]):
    pass

class Import(SingletonTask[[int], str], Base):
    def run(self, number: int) -> str:
        return str(number)

@singleton_task(app=Celery("proj"), base=Base)
def send(number: int) -> str:
    return str(number)

def by_celerys_class(task: Task[[int], str]) -> str:
    return task.delay(3).get()

by_celerys_class(send)
by_celerys_class(Import())
send.s(3).delay().get().upper()
send.si(3).delay().get().upper()
send.delay(3).get().upper()
send.apply((3,)).get().upper()
send.AsyncResult("id").get().upper()
send.s(3).delay().get() + 1  # refused
send.si(3).delay().get() + 1  # refused
send.apply((3,)).get() + 1  # refused
send.AsyncResult("id").get() + 1  # refused
send.delay(3).result + 1  # refused
send.retry(countdown=5)
send.retry(countdwn=5)  # refused
singleton_task(base=int)  # refused
"""


def refused_lines(printed: str) -> list[int]:
    """Return the numbers of the lines with errors."""
    return sorted(
        {int(n) for n in re.findall(r"uses\.py:(\d+)(?::\d+)?(?: -|:) error", printed)}
    )


def check(
    folder: Path, *command: str, uses: str = USES, **environment: str
) -> list[int]:
    """Run a type checker on a sample; return the lines that it refuses."""
    (folder / "uses.py").write_text(uses, "utf-8")
    done = subprocess.run(  # noqa: S603  (our own commands)
        [sys.executable, "-m", *command, "uses.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return refused_lines(done.stdout)


def expected_lines(uses: str = USES) -> list[int]:
    """Return the numbers of the lines that are to be refused."""
    lines = enumerate(uses.splitlines(), 1)
    return [number for number, line in lines if line.endswith(REFUSED)]


@pytest.mark.long
def test_mypy_refuses_wrong_words_and_types_only(tmp_path: Path) -> None:
    """Mypy, as strict as it can be, refuses the wrong lines and no others."""
    pytest.importorskip("mypy", reason="mypy is not installed")

    assert check(tmp_path, "mypy", "--strict") == expected_lines()


@pytest.mark.long
def test_pyright_refuses_wrong_words_and_types_only(tmp_path: Path) -> None:
    """Pyright, which many editors use, refuses the same lines."""
    pytest.importorskip("pyright", reason="pyright is not installed")
    config = f'{{"extraPaths": ["{ROOT}"], "reportUnusedExpression": false}}'
    (tmp_path / "pyrightconfig.json").write_text(config, "utf-8")

    python = f"--pythonpath={sys.executable}"
    assert check(tmp_path, "pyright", python) == expected_lines()


@pytest.fixture
def folder_with_stubs(tmp_path: Path) -> Path:
    """Give a folder in which checkers find stubs of Celery."""
    stubs = tmp_path / "typings" / "celery"
    stubs.mkdir(parents=True)
    for name, text in STUBS.items():
        (stubs / name).write_text(text, "utf-8")
    return tmp_path


@pytest.mark.long
def test_mypy_sees_types_through_stubs_of_celery(folder_with_stubs: Path) -> None:
    """Where Celery has types, signatures and results have those of the function."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    folder, uses = folder_with_stubs, USES_WITH_STUBS
    path = str(folder / "typings")

    refused = check(folder, "mypy", "--strict", uses=uses, MYPYPATH=path)

    assert refused == expected_lines(uses)


@pytest.mark.long
def test_pyright_sees_types_through_stubs_of_celery(folder_with_stubs: Path) -> None:
    """Pyright, as strict as it can be, sees the same, and finds no unknown type."""
    pytest.importorskip("pyright", reason="pyright is not installed")
    folder, uses = folder_with_stubs, USES_WITH_STUBS
    config = f'{{"extraPaths": ["{ROOT}"], "reportUnusedExpression": false}}'
    (folder / "pyrightconfig.json").write_text(config, "utf-8")

    refused = check(folder, "pyright", f"--pythonpath={sys.executable}", uses=uses)

    assert refused == expected_lines(uses)


# -- one source --------------------------------------------------------------------


def test_every_option_has_its_type_and_its_text() -> None:
    """The arguments are the fields of the options, in order, and each has a text."""
    options = [option.name for option in fields(LockOptions) if option.init]

    assert list(LockArguments.__annotations__) == options
    assert list(texts_below(LockArguments)) == options


@pytest.mark.parametrize(
    ("word", "option"),
    [
        (arguments.ConflictWord, policies.ON_CONFLICT),
        (arguments.PublishWord, policies.ON_PUBLISH),
        (arguments.LossWord, policies.ON_LOCK_LOST),
        (arguments.OutageWord, policies.ON_BACKEND_ERROR),
    ],
    ids=["on_conflict", "publish", "on_lock_lost", "on_backend_error"],
)
def test_words_are_those_of_the_policies(
    word: object, option: policies.PolicyOption[policies.Situation, policies.Decision]
) -> None:
    """A policy of the package is a word for type checkers, and so is no other word."""
    ours: Mapping[str, type] = {
        name: kind
        for name, kind in option.words.items()
        if kind.__module__.startswith("celery_redlock.")
    }

    assert list(get_args(word)) == sorted(ours)


def test_every_other_argument_is_one_of_celerys() -> None:
    """Celery has a use for each, and each of Celery's task options is an argument."""
    names = get_type_hints(TaskArguments).keys() - LockArguments.__annotations__.keys()
    task = Celery._task_from_fun.__code__  # noqa: SLF001  (it has no public list)
    decorators = {*task.co_varnames, "redlock", "shared", "lazy"}
    routing = {"queue", "exchange", "routing_key", "compression", "delivery_mode"}
    retries = {"autoretry_for", "dont_autoretry_for", "store_eager_result"}
    retries |= {name for name in names if name.startswith("retry_")}
    newer = {"acks_on_failure", "acks_on_timeout", "retry_on_worker_lost"}
    options = {name for name, _ in Task.from_config}

    assert names <= {*dir(Task), *decorators, *routing, *retries, *newer}
    assert options <= names
