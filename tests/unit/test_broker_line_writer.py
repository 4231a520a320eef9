"""Log lines come from a thread: in order, bounded, counted where they are dropped, and all there at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from whimbrel.broker.shell.operate.line_writer import LineWriter

LONG_S = 30.0
"""How long a test waits at most; only a failing one does."""


class _Pipe:
    """A pipe whose reader takes nothing until it is told to."""

    def __init__(self) -> None:
        self.data = b""
        self.is_read, self.is_full = threading.Event(), threading.Event()

    def write(self, data: bytes) -> int:
        """Take a few bytes, once the reader reads."""
        self.is_full.set()
        assert self.is_read.wait(LONG_S)
        taken = data[:7]
        self.data += taken
        return len(taken)


def test_lines_are_written_in_order_and_at_the_end_all_of_them() -> None:
    """The last lines before a stop are those that say why."""
    pipe = _Pipe()
    pipe.is_read.set()
    writer = LineWriter(pipe.write)
    lines = [f"line {number} — ü\n" for number in range(1_000)]
    for line in lines:
        writer.write(line)
    assert writer.end(LONG_S)
    assert pipe.data.decode() == "".join(lines)


def test_a_full_pipe_keeps_no_writer_waiting_and_the_newest_lines() -> None:
    """A line costs bounded memory and no time, and how many are missing is said where they are missing."""
    pipe = _Pipe()
    writer = LineWriter(pipe.write, most_bytes=100)
    writer.write("the first\n")
    assert pipe.is_full.wait(LONG_S)  # its thread has taken it, and waits for the reader
    for number in range(1_000):
        writer.write(f"line {number:04}\n")
    assert writer.dropped == 990
    pipe.is_read.set()
    assert writer.end(LONG_S)
    first, dropped, *last = pipe.data.decode().splitlines()
    assert first == "the first"
    assert dropped == "990 log lines dropped: standard error was not read fast enough"
    assert last == [f"line {number:04}" for number in range(990, 1_000)]


def test_the_end_does_not_wait_for_a_reader_that_takes_nothing() -> None:
    """A broker must stop although its log is not read."""
    pipe = _Pipe()
    writer = LineWriter(pipe.write)
    writer.write("never read\n")
    assert not writer.end(0.0)
    pipe.is_read.set()


def test_a_reader_that_is_gone_hurts_no_writer() -> None:
    """Whatever read the log may have ended, and the broker serves on."""
    reading, writing = os.pipe()
    os.close(reading)
    writer = LineWriter(lambda data: os.write(writing, data))
    writer.write("to no reader\n")
    writer.write("nor this\n")
    assert writer.end(LONG_S)
    os.close(writing)


def test_a_file_that_was_copied_and_truncated_continues_at_its_beginning(tmp_path: Path) -> None:
    """`2>> whimbrel.log` and `copytruncate`, as docs/how-to/rotate-logs.md says."""
    path = tmp_path / "whimbrel.log"
    with path.open("ab", buffering=0) as file:
        writer = LineWriter(lambda data: os.write(file.fileno(), data))
        writer.write("before\n")
        assert writer.drain(LONG_S)
        os.truncate(path, 0)
        writer.write("after\n")
        assert writer.drain(LONG_S)
        assert path.read_bytes() == b"after\n"
        path.rename(tmp_path / "renamed")
        writer.write("to the renamed file\n")
        assert writer.end(LONG_S)
    assert (tmp_path / "renamed").read_bytes() == b"after\nto the renamed file\n"
    assert not path.exists()


def test_a_line_may_be_written_within_a_line_and_after_the_end() -> None:
    """The garbage collector runs destructors wherever it likes, and libraries log as the interpreter ends."""
    pipe = _Pipe()
    pipe.is_read.set()
    writer = LineWriter(pipe.write)
    with writer._changed:
        writer.write("within\n")
    assert writer.end(LONG_S)
    writer.write("after\n")
    assert pipe.data == b"within\nafter\n"


@pytest.mark.parametrize("ends", ["raise SystemExit(3)", "1 / 0", "import logging; logging.error('last')"])
def test_a_crash_loses_no_line(ends: str) -> None:
    """However the process comes to its end, the last lines say why."""
    program = (
        "import sys, logging\n"
        "from whimbrel.broker.shell.operate.line_writer import stderr_from_a_thread\n"
        "with stderr_from_a_thread():\n"
        "    for number in range(3_000): sys.stderr.write(f'line {number}\\n')\n"
        f"    {ends}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    assert lines[:3_000] == [f"line {number}" for number in range(3_000)]
    assert lines[-1] in ("line 2999", "ZeroDivisionError: division by zero", "ERROR:root:last")
