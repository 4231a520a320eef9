"""Brokers that are forked from one process which has loaded everything: a start takes milliseconds, not a core second.

A suite starts some hundred brokers, and each would import the same modules and load the same kernels again. Here one
process does that once (this module, run), and every broker is a fork of it: a process of its own with its own files,
signals, memory and end, that runs ``whimbrel serve`` with the arguments of its test.
Rule: the process that forks has one thread and has run nothing of a broker, so a fork has no state of another.
Rule: brokers whose clocks are moved by hand come of a second such process, so those of all others are untouched.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from tests.e2e.stepped_clock import Clocked, SteppedClock

__all__ = ["Forked", "fork_broker"]

_MAX_BYTES = 1 << 16
_PRELOAD = "LD_PRELOAD"
_READY = b"ready"
_START_S = 300.0


class Forked:
    """One broker that was forked; as much of ``subprocess.Popen`` as a test needs."""

    def __init__(self, pid: int, stderr: int, status: int) -> None:
        self.pid = pid
        self.stderr = os.fdopen(stderr, encoding="utf-8")
        self._status = status
        self._code: int | None = None

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self._code is None and not select.select([self._status], [], [], 0)[0]:
            with suppress(ProcessLookupError):  # it ends just now
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status, negative for a signal, once it has ended."""
        if self._code is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"broker {self.pid}", timeout or 0.0)
            self._code = int(os.read(self._status, 16))
            os.close(self._status)
        return self._code


def fork_broker(
    arguments: Sequence[str],
    clock: SteppedClock | None = None,
    *,
    most_files: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Forked:
    """Start ``whimbrel serve`` with *arguments* in this folder; its standard error is a pipe.

    It may open *most_files*, if that is given, and else as many as this process. It gets the variables of *environment*
    beside those of this process; a library that they preload is loaded by a forking process of its own.
    """
    variables = {**os.environ, **(environment or {})}
    request: dict[str, object] = {
        "arguments": list(arguments),
        "folder": str(Path.cwd()),
        "environment": variables,
        "files": (most_files, most_files) if most_files else resource.getrlimit(resource.RLIMIT_NOFILE),
    }
    if clock is not None:
        request |= {"steps": str(clock.path), "fsync_s": clock.fsync_s}
    told, stderr = os.pipe()
    ended, status = os.pipe()
    with _LOCK:
        server = _server(is_clocked=clock is not None, preload=variables.get(_PRELOAD, ""))
        socket.send_fds(server, [json.dumps(request).encode()], [stderr, status])
        os.close(stderr)
        os.close(status)
        pid = int(server.recv(_MAX_BYTES))
    return Forked(pid, told, ended)


_LOCK = Lock()
_ROOT = Path(__file__).parents[2]


@cache
def _server(*, is_clocked: bool, preload: str) -> socket.socket:
    """Start the process that forks; it ends with this one, whose end of the connection it reads."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.e2e.broker_forks", str(theirs.fileno()), *["clocked"][:is_clocked]]
    variables = {**os.environ, _PRELOAD: preload} if preload else None
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd=_ROOT, env=variables)
    theirs.close()
    atexit.register(_end, process, ours)
    ours.settimeout(_START_S)
    assert ours.recv(_MAX_BYTES) == _READY
    return ours


def _end(process: subprocess.Popen[bytes], link: socket.socket) -> None:
    link.close()
    process.wait()


# -- the process that forks --------------------------------------------------------------------------------------------


def _load() -> None:
    """Load what a broker loads until its first publication has gone through, and what its command line does."""
    for name in ("typer._adapters", "uvloop"):  # typer loads pydantic in it, where its version does
        with suppress(ImportError):
            import_module(name)
    from whimbrel.broker.shell import collector, server  # noqa: F401 # loaded for the forks
    from whimbrel.cli import serve  # noqa: F401 # so
    from whimbrel.match.first_use import make_ready
    from whimbrel.match.kernels.compiled import load_numba_alone
    from whimbrel.match.matcher import Interest, Matcher

    load_numba_alone()
    make_ready(lambda _: None)
    Matcher.load([("one", Interest(filter_text="a == 'x'"))]).match_parts(None, {"a": "x"})
    gc.collect()
    gc.freeze()  # what is here stays, and no fork need look at it


def _serve_forks(link: socket.socket, clocked: Clocked | None) -> None:
    """Fork a broker for each request; tell how each ended."""
    waking, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which ends the brokers
    statuses: dict[int, int] = {}
    link.send(_READY)
    while True:
        ready, _, _ = select.select([link.fileno(), waking], [], [])
        if waking in ready:
            os.read(waking, 4_096)
            _tell_ended(statuses)
        if link.fileno() in ready:
            request, files, _, _ = socket.recv_fds(link, _MAX_BYTES, 2)
            if not request:
                return
            stderr, status = files
            pid = os.fork()
            if not pid:
                link.close()
                for each in (waking, wake, status, *statuses.values()):
                    os.close(each)
                told = json.loads(request)
                if clocked is not None:
                    clocked.follow(Path(told["steps"]), told["fsync_s"])
                _become_broker(told, stderr)
            os.close(stderr)
            statuses[pid] = status
            link.send(str(pid).encode())


def _tell_ended(statuses: dict[int, int]) -> None:
    for pid in list(statuses):
        found, raw = os.waitpid(pid, os.WNOHANG)
        if found:
            status = statuses.pop(pid)
            os.write(status, str(os.waitstatus_to_exitcode(raw)).encode())
            os.close(status)


def _become_broker(request: dict[str, Any], stderr: int) -> None:
    """Be a process as ``python -m whimbrel serve`` would be if the test had started it, to its end."""
    from whimbrel.cli.main import main

    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(stderr, 2)
        os.close(stderr)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        resource.setrlimit(resource.RLIMIT_NOFILE, request["files"])
        sys.argv = ["whimbrel", "serve", *request["arguments"]]
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:  # noqa: BLE001 # as Python itself would
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    clocks = Clocked() if "clocked" in sys.argv else None  # before our modules, some of which keep a clock
    _load()
    _serve_forks(socket.socket(fileno=int(sys.argv[1])), clocks)
