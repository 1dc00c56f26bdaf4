"""Runs the scripts in this process, as a Redis server runs them: the same Lua.

``lupa`` has the Lua 5.1 that Redis has. Around a script there is what Redis gives it:
KEYS and ARGV, ``redis.call`` and ``redis.pcall``, and the same conversions.

=======  ==============================================  ============================
Redis    in Lua                                          in the reply of a script
=======  ==============================================  ============================
integer  number                                          integer, without a fraction
text     string                                          text
no text  false                                           no text; so is nil. true is 1
list     table                                           list, up to the first nil
status   table with ok                                   text
error    an error, which ends the script;                error
         with ``pcall`` a table with err
=======  ==============================================  ============================

A number in a command is written as Redis writes it, with 17 digits. What Redis has and
no script of ours uses is missing here, and a script that uses it ends with an error:
other commands, ``cjson``, ``redis.sha1hex``, and Lua's own ``pcall``, which would catch
the exceptions of a store.

A runtime of Lua runs one script at a time. Who runs a script takes a runtime out of a
pool, and puts it back. So threads, greenlets that switch while a store loads keys, and
scripts within each other never share one, and the child of a fork finds only those in
the pool that ran no script. An exception of a store passes through Lua as it is.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

from lupa import lua51

from celery_redlock.basics.resp import ErrorReply
from celery_redlock.scripts.keyspace import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redlock.scripts import Script
    from celery_redlock.scripts.keyspace import Keyspace


_PRELUDE = b"""
local commands, lists, pcall, number_of = ...

local redis = {pcall = pcall}

function redis.call(name, ...)
  local command = commands[name]
  if command then return command(...) end
  -- To make the table here costs half as much as in Python.
  if lists[name] then return {lists[name](...)} end
  error('Unknown Redis command called from script: ' .. tostring(name), 2)
end

function redis.error_reply(text) return {err = text} end

function redis.status_reply(text) return {ok = text} end

-- As a server reads numbers, whose locale has a decimal point.
local function to_number(value, base)
  if not base and type(value) == 'string' and string.find(value, '.', 1, true) then
    return number_of(value)
  end
  return tonumber(value, base)
end

local globals = {redis = redis, tonumber = to_number, string = string, table = table,
  math = math, assert = assert, error = error, ipairs = ipairs, next = next,
  pairs = pairs, select = select, tostring = tostring, type = type, unpack = unpack}
setmetatable(globals, {
  __index = function(_, name)
    error('Script attempted to access nonexistent global variable ' .. name, 2)
  end,
  __newindex = function(_, name)
    error('Script attempted to create global variable ' .. name, 2)
  end,
})

-- Return a function that runs a script on KEYS and ARGV, or, if they are few, on the
-- number of keys and all words. It returns the number of items of a list, then the
-- items; of another reply, or of a long list, -1 and the reply.
return function(source, name)
  source = 'return function(KEYS, ARGV) ' .. source .. '\\nend'
  local script = setfenv(assert(loadstring(source, name)), globals)()
  return function(KEYS, ARGV, ...)
    if type(KEYS) == 'number' then
      local count, words = KEYS, {ARGV, ...}
      KEYS, ARGV = {unpack(words, 1, count)}, {unpack(words, count + 1)}
    end
    local reply, length = script(KEYS, ARGV), 0
    if type(reply) ~= 'table' or reply.err or reply.ok then return -1, reply end
    while reply[length + 1] ~= nil do length = length + 1 end
    if length > 200 then return -1, reply end -- Lua has room for more on its stack
    return length, unpack(reply, 1, length)
  end
end
"""
# What scripts call. Each is a method here.
_COMMANDS = (
    *("get", "set", "del", "pttl", "pexpire", "hget", "hgetall", "hset", "hdel"),
    *("hstrlen", "zadd", "zrem", "zcard", "zrank", "zscore", "zremrangebyscore"),
    *("publish", "info"),
)
_LISTS = ("time", "mget", "hmget", "zpopmin", "zrevrange", "zrangebyscore")
_FEW = 200  # words
_MOST = 2**63 - 1  # of an integer reply


_free: list[_LuaRuntime] = []  # the runtimes that run no script


def run(
    script: Script, keys: Sequence[bytes], args: Sequence[bytes], keyspace: Keyspace
) -> Any:
    """Run a script on these keys. Return its reply: None, an int, bytes or a list.

    An error of the script is returned as an ``ErrorReply``. What the script changed
    before stays changed, as on a server.
    """
    try:
        runtime = _free.pop()
    except IndexError:
        runtime = _LuaRuntime()
    try:
        return runtime.run(script, keys, args, keyspace)
    except (CommandError, lua51.LuaError) as error:
        text = str(error).partition("\nstack traceback:")[0]
        return ErrorReply(text if isinstance(error, CommandError) else f"ERR {text}")
    finally:
        _free.append(runtime)


class _LuaRuntime:
    """A runtime of Lua, with the scripts that it has compiled."""

    _keys: Keyspace

    def __init__(self) -> None:
        self._lua = lua51.LuaRuntime(
            encoding=None,
            unpack_returned_tuples=True,
            register_eval=False,
            register_builtins=False,
        )
        self._table = self._lua.table_from
        self._ok = self._table({b"ok": b"OK"})
        self._compiled: dict[str, Callable[..., Any]] = {}
        self._commands = {
            name.upper().encode(): getattr(self, f"_{name}") for name in _COMMANDS
        }
        self._lists = {
            name.upper().encode(): getattr(self, f"_{name}") for name in _LISTS
        }
        self._compile = self._lua.execute(
            _PRELUDE,
            self._table(self._commands),
            self._table(self._lists),
            self._pcall,
            _number_of,
        )

    def run(
        self,
        script: Script,
        keys: Sequence[bytes],
        args: Sequence[bytes],
        keyspace: Keyspace,
    ) -> Any:
        compiled = self._compiled.get(script.sha)
        if compiled is None:
            source, name = script.source.encode(), f"@{script.name}.lua".encode()
            compiled = self._compiled[script.sha] = self._compile(source, name)
        self._keys = keyspace
        try:
            if len(keys) + len(args) <= _FEW:  # to make a table here takes longer
                reply = compiled(len(keys), *keys, *args)
            else:
                reply = compiled(self._table(keys), self._table(args))
        finally:
            del self._keys
        if not isinstance(reply, tuple):
            return []
        length, *items = reply
        return _reply(items[0]) if length < 0 else [*map(_reply, items)]

    def _pcall(self, name: bytes, *words: Any) -> Any:
        try:
            if command := self._commands.get(name):
                return command(*words)
            return self._table(self._lists[name](*words))
        except CommandError as error:
            return self._table({b"err": str(error).encode()})

    # -- commands: a number may come as int or float, and text as bytes ----------------

    def _get(self, name: bytes) -> bytes | bool:
        value = self._keys.get(name)
        return False if value is None else value

    def _mget(self, *names: bytes) -> tuple[Any, ...]:
        values = self._keys.mget(names)
        return tuple(False if value is None else value for value in values)

    def _set(self, name: bytes, value: Any, option: bytes = b"", px: Any = b"0") -> Any:
        if option == b"KEEPTTL":
            self._keys.replace(name, _word(value))
        elif not option:
            self._keys.set(name, _word(value))
        elif option == b"PX" and (ms := _integer(px)) > 0:
            self._keys.set(name, _word(value), px=ms)
        else:
            raise CommandError("ERR syntax error")
        return self._ok

    def _del(self, name: bytes) -> int:
        return int(self._keys.delete(name))

    def _pttl(self, name: bytes) -> int:
        return self._keys.pttl(name)

    def _pexpire(self, name: bytes, ms: Any) -> int:
        return int(self._keys.pexpire(name, _integer(ms)))

    def _hget(self, name: bytes, field: bytes) -> bytes | bool:
        value = self._keys.hgetall(name).get(field)
        return False if value is None else value

    def _hmget(self, name: bytes, *fields: bytes) -> tuple[Any, ...]:
        found = self._keys.hgetall(name).get
        return tuple(map(found, fields, repeat(False)))  # noqa: FBT003  (nil)

    def _hgetall(self, name: bytes) -> Any:
        pairs = self._keys.hgetall(name).items()
        return self._table([word for pair in pairs for word in pair])

    def _hset(self, name: bytes, *words: Any) -> int:
        known = self._keys.hgetall(name)
        fields = {words[i]: _word(words[i + 1]) for i in range(0, len(words), 2)}
        new = len(fields) - len(fields.keys() & known.keys())
        self._keys.hset(name, fields)
        return new

    def _hdel(self, name: bytes, *fields: bytes) -> int:
        gone = fields & self._keys.hgetall(name).keys()
        for field in fields:
            self._keys.hdel(name, field)
        return len(gone)

    def _hstrlen(self, _name: bytes, _field: bytes) -> int:
        self._keys.note_vote()  # see shared/proof.lua
        return 0

    def _zadd(self, name: bytes, score: Any, member: bytes) -> int:
        is_new = self._keys.zscore(name, member) is None
        self._keys.zadd(name, member, float(score))
        return int(is_new)

    def _zrem(self, name: bytes, member: bytes) -> int:
        was_there = self._keys.zscore(name, member) is not None
        self._keys.zrem(name, member)
        return int(was_there)

    def _zcard(self, name: bytes) -> int:
        return self._keys.zcard(name)

    def _zrank(self, name: bytes, member: bytes) -> int | bool:
        rank = self._keys.zrank(name, member)
        return False if rank is None else rank

    def _zscore(self, name: bytes, member: bytes) -> bytes | bool:
        score = self._keys.zscore(name, member)
        return False if score is None else b"%.17g" % score

    def _zpopmin(self, name: bytes) -> tuple[Any, ...]:
        member = self._keys.zpopmin(name)
        return () if member is None else (member, b"0")

    def _zrevrange(
        self, name: bytes, _first: int, last: int, _with: bytes
    ) -> tuple[Any, ...]:
        """Return the members from the first one down, with their scores."""
        latest = [*self._keys.zset(name).items()][: -last - 2 : -1]
        return tuple(word for one, score in latest for word in (one, b"%.17g" % score))

    def _zrangebyscore(
        self,
        name: bytes,
        least: bytes,
        most: bytes,
        _limit: bytes,
        _offset: Any,
        count: Any,
    ) -> tuple[Any, ...]:
        count = int(count)
        if least == b"-inf":
            return tuple(self._keys.zrangebyscore(name, float(most), count))
        above = float(least.removeprefix(b"("))
        scores = self._keys.zset(name).items()
        return tuple([member for member, score in scores if score > above][:count])

    def _zremrangebyscore(self, name: bytes, least: Any, most: Any) -> int:
        first, last = float(least), float(most)
        scores = self._keys.zset(name).items()
        gone = [member for member, score in scores if first <= score <= last]
        for member in gone:
            self._keys.zrem(name, member)
        return len(gone)

    def _publish(self, channel: bytes, message: bytes) -> int:
        return self._keys.publish(channel, message)

    def _time(self) -> tuple[bytes, bytes]:
        seconds, microseconds = divmod(self._keys.now_us(), 1_000_000)
        return b"%d" % seconds, b"%d" % microseconds

    def _info(self, section: bytes) -> bytes:
        """Return what the scripts look for in this section."""
        started_ms = self._keys.proven_start_ms()
        if section == b"server":
            uptime = 0
            if started_ms is not None:
                uptime = (self._keys.now_us() // 1000 - started_ms) // 1000
            return b"uptime_in_seconds:%d\r\n" % uptime
        if section == b"replication":
            offset = 0 if self._keys.may_be_copy() else -1
            return b"role:master\r\nmaster_replid:%b\r\nsecond_repl_offset:%d\r\n" % (
                self._keys.replid,
                offset,
            )
        if section == b"stats":
            evicted = self._keys.evicted
            return b"\r\nevicted_keys:%b\r\n" % evicted if evicted else b""
        if section == b"memory":
            policy, limit = self._keys.evicts or b"noeviction", bool(self._keys.evicts)
            return b"\r\nmaxmemory:%d\r\nmaxmemory_policy:%b\r\n" % (limit, policy)
        has_voted = b"" if started_ms is not None else b"cmdstat_hstrlen:calls=1\r\n"
        return b"cmdstat_hmget:calls=1\r\n" + has_voted


def _number_of(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _word(value: Any) -> bytes:
    """Return a word of a command as bytes."""
    if isinstance(value, bytes):
        return value
    return b"%d" % value if isinstance(value, int) else b"%.17g" % value


def _integer(value: Any) -> int:
    try:
        return int(_word(value))
    except ValueError:
        raise CommandError("ERR value is not an integer or out of range") from None


def _reply(value: Any) -> Any:
    """Return a reply of a script, as a server sends it."""
    if isinstance(value, bytes) or (type(value) is int and -_MOST <= value <= _MOST):
        return value
    if value is None or value is False:
        return None
    if isinstance(value, (int, float)):
        return max(-_MOST - 1, min(_MOST, int(value)))
    if (error := value[b"err"]) is not None:
        return ErrorReply(error.decode(errors="replace"))
    if (status := value[b"ok"]) is not None:
        return status
    items: list[Any] = []
    while (item := value[len(items) + 1]) is not None:
        items.append(_reply(item))
    return items
