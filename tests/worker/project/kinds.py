"""The ways in which users define tasks, all of them with a lock."""

from __future__ import annotations

from typing import Any, ClassVar

from celery import Celery, Task
from celery.worker.request import Request

from celery_redlock import SingletonTask, singleton_task
from tests.worker.project.body import hold, recorded, stage


@singleton_task(name="bound", bind=True, key="{key}")
def bound(self: Task, key: str) -> str:
    """Run until the gate opens; ``self`` is no argument of the call."""
    hold(key)
    return str(self.request.id)


class HouseRequest(Request):
    """A user's request class, which runs in the worker's main process."""

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Note that the pool took the task."""
        stage().note(self.args[0], "house-accepted", task_id=self.id)
        super().on_accepted(pid, time_accepted)


class HouseTask(Task):
    """A user's base class."""

    abstract = True
    Request = HouseRequest

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Note the call, as some bases do."""
        stage().note(args[0] if args else kwargs["key"], "house-called")
        return super().__call__(*args, **kwargs)

    def on_success(self, *told: Any) -> None:
        """Note the success."""
        _, _, args, kwargs = told
        stage().note(args[0] if args else kwargs["key"], "house-success")


@singleton_task(name="of-the-house", base=HouseTask, key="{key}")
def of_the_house(key: str) -> str:
    """Run until the gate opens, with hooks of the user's own."""
    return hold(key)


def register(app: Celery) -> None:
    """Define the tasks that need an app."""

    class ClassTask(SingletonTask):
        name = "class-based"
        redlock: ClassVar[dict[str, Any]] = {"key": "{key}"}

        def run(self, key: str) -> str:
            return hold(key)

    app.register_task(ClassTask())

    @app.task(
        name="by-base",
        base=SingletonTask,
        redlock={"unique_on": ["key"]},
        shared=False,  # the next app has its own
    )
    def by_base(key: str, value: int = 1) -> str:
        return hold(key)

    @singleton_task(app=app, name="by-app", key="{key}", shared=False)
    def by_app(key: str) -> str:
        with recorded(key) as task_id:
            return task_id
