"""A writer that is killed: what it acknowledged is there, whatever moment it was."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from whimbrel.log.reader import read
from whimbrel.log.verification import verify
from whimbrel.log.writer import LogWriter
from whimbrel.model.notification import Notification

# Appends groups for ever, and says after each sync which seq is durable.
WRITER = """
import random, sys
from pathlib import Path
from whimbrel.log.writer import LogWriter
from whimbrel.model.notification import Notification

draw = random.Random(int(sys.argv[2]))
with LogWriter(Path(sys.argv[1]), "n", segment_bytes=20_000) as log:
    while True:
        for _ in range(draw.randint(1, 30)):
            seq = log.next_seq
            body = seq.to_bytes(8, "big") * draw.randint(0, 40)
            log.append(Notification(node="n", seq=seq, published_at=seq, body=body))
        sys.stdout.write(f"{log.sync()}\\n")
        sys.stdout.flush()
"""


def test_kill_9_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Five times: written, killed, recovered and gone on with; every acknowledged fact is there, in order, once."""
    acknowledged = 0
    for number in range(5):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "log"), str(number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(20 + 17 * number):
                acknowledged = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            told = process.stdout.read().split()  # what it said before it died counts as well
        acknowledged = max([acknowledged, *map(int, told)])
        with LogWriter(tmp_path / "log", "n") as log:
            assert log.durable_seq >= acknowledged
            last = log.durable_seq
        facts = list(read(tmp_path / "log", "n"))
        assert [fact.seq for fact in facts] == list(range(1, last + 1))
        assert all(
            isinstance(fact, Notification) and fact.body == fact.seq.to_bytes(8, "big") * (len(fact.body) // 8)
            for fact in facts
        )
    assert not verify(tmp_path / "log").problems
