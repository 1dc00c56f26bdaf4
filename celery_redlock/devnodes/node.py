"""One real redis-server that you can pause, kill and restart."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.devnodes.server import (
    ServerOptions,
    find_redis_server,
    free_port,
    spawn,
)
from celery_redlock.errors import RedlockError

if TYPE_CHECKING:
    import subprocess

__all__ = ["DevNode"]

_COMMAND_TIMEOUT = 5.0
_POLL_EVERY = 0.005
_PORT_TRIES = 20
_PORT_TAKEN = "Address already in use"


class DevNode:
    """One redis-server of `DevNodes`. Not thread-safe.

    Attributes:
        port: Its port on 127.0.0.1, the same after a restart; 0 if it listens on a
            unix socket, or was never started.
    """

    def __init__(
        self, *, binary: str | None = None, options: ServerOptions | None = None
    ) -> None:
        self.port = 0
        self._binary = binary
        self._options = options or ServerOptions()
        limited = self._options.username is not None
        self._admin = secrets.token_hex() if limited else self._options.password
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._client: redis.Redis | None = None
        self._settled = False

    def __repr__(self) -> str:
        where = f"127.0.0.1:{self.port}" if self.port else self._folder / "socket"
        return f"<DevNode {where}>"

    @property
    def url(self) -> str:
        """How a client reaches it, with its password. Ready to use once started."""
        user = self._options.username, self._options.password
        return self._options.url(self._folder, self.port, *user)

    @property
    def pid(self) -> int:
        """The process id of the server.

        Raises:
            RedlockError: It is not running.
        """
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether the process exists; a paused one does."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the server has logged since it was last started."""
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.is_file() else ""

    def launch(self) -> None:
        """Start the process and return at once; `start` waits for it.

        Raises:
            RedlockError: There is no redis-server on this machine.
        """
        if self.is_running:
            return
        self._hang_up()
        binary = self._binary or find_redis_server()
        if not self._folder.name:
            self._folder = Path(tempfile.mkdtemp(prefix="redlock-node-"))
        if not (self._settled or self._options.unix_socket):
            self.port = free_port()
        (self._folder / "data").mkdir(exist_ok=True)
        config = self._folder / "redis.conf"
        config.touch(mode=0o600)
        config.write_text(
            self._options.redis_conf(self._folder, self.port, self._admin)
        )
        self._process = spawn(
            [binary, str(config)], self._folder / "log", self._options.environment
        )

    def start(self) -> None:
        """Start the server and return when it answers. Twice is as good as once.

        Raises:
            RedlockError: It did not come up, and is not running. The message ends
                with what it logged.
        """
        for _ in range(_PORT_TRIES):
            self.launch()
            if self._comes_up():
                self._settled = True
                return
            if self._settled or _PORT_TAKEN not in self.log:
                break
        fact = f"did not answer within {self._options.start_timeout:g} s"
        if not self.is_running:
            fact = "ended as soon as it was started"
        self.kill()
        raise RedlockError(
            f"{self!r} {fact} and is not running. Its log ends with:\n"
            f"{self.log[-1500:].strip()}"
        )

    def stop(self) -> None:
        """End the server, paused or not, and remove its folder. Twice is harmless."""
        self.kill()
        if self._folder.name:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = Path()
            self._settled = False

    def pause(self) -> None:
        """Stop the process (SIGSTOP): connections are accepted, nothing is answered.

        Raises:
            RedlockError: It is not running.
        """
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        if sys.platform == "linux":  # the signal is sent; wait until it has worked
            flags = os.WSTOPPED | os.WEXITED | os.WNOWAIT
            os.waitid(os.P_PID, process.pid, flags)

    def resume(self) -> None:
        """Let the process go on after `pause` (SIGCONT).

        Raises:
            RedlockError: It is not running.
        """
        self._running().send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once, paused or not (SIGKILL), as a crash does."""
        self._hang_up()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self, *, keep_memory: bool = False) -> None:
        """End the server and start it again at the same address.

        Args:
            keep_memory: By default it comes back empty. With this, a server that
                runs writes a snapshot first, and one that is dead comes back with
                what it had written while it lived (by ``SAVE``, or to the
                append-only file if its options ask for one).

        Raises:
            RedlockError: It could not write the snapshot (and still runs), or did
                not come up again (and does not run).
        """
        if keep_memory and self.is_running:
            self.resume()
            self.command("SAVE")
        self.kill()
        if self._folder.name and not keep_memory:
            shutil.rmtree(self._folder / "data", ignore_errors=True)
        self.start()

    def command(self, *words: str | bytes | float) -> Any:
        """Send one command, with all rights, and return the reply as redis-py does.

        Raises:
            RedlockError: It is not running, answered with an error, or did not
                answer within 5 seconds (and may have done it all the same).
        """
        self._running()
        try:
            return self._connected().execute_command(*words)
        except redis.RedisError as error:
            raise RedlockError(f"{self!r}, asked to {words[0]!r}: {error}") from error

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RedlockError(f"{self!r} is not running. Start or restart it first.")
        return self._process

    def _connected(self) -> redis.Redis:
        if self._client is None:
            self._client = redis.Redis.from_url(
                self._options.url(self._folder, self.port, None, self._admin),
                decode_responses=True,
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=_COMMAND_TIMEOUT,
            )
        return self._client

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _comes_up(self) -> bool:
        """Wait until the server answers, has ended, or has had its time."""
        clock = SYSTEM_CLOCK
        deadline = clock.monotonic() + self._options.start_timeout
        while self.is_running and clock.monotonic() < deadline:
            try:
                info = self.command("INFO")
                # Another server may have the port; and ours talks while it loads.
                if info["process_id"] == self.pid and not info["loading"]:
                    return True
            except RedlockError:
                pass
            clock.sleep(_POLL_EVERY)
        return False
