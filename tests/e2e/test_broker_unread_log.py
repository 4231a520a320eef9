"""A broker whose log lines are read by no program serves its clients, and stops when it is told to."""

from __future__ import annotations

import fcntl
import re
import signal
from contextlib import ExitStack
from pathlib import Path

from tests.e2e.broker_forks import fork_broker
from tests.e2e.raw_client import RawClient

CLIENTS = 150
PIPE_BYTES = 4_096
_PORT = re.compile(r"listening.*\bmqtt=([0-9]+)")


def test_a_full_pipe_on_standard_error_stalls_no_client(tmp_path: Path) -> None:
    """Each client causes a line, together far more than the pipe takes: the broker waited for its reader, once."""
    broker = fork_broker(["--data", str(tmp_path / "data"), "--port", "0"])
    fcntl.fcntl(broker.stderr, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    lines: list[str] = []
    try:
        for line in broker.stderr:
            lines.append(line)
            if found := _PORT.search(line):
                break
        assert found is not None, "".join(lines)
        with ExitStack() as stack:  # and from here on the pipe is not read
            for number in range(CLIENTS):
                client = stack.enter_context(RawClient(int(found[1])))
                assert client.connect(f"client-{number}").code == 0
            client.ping()
        broker.send_signal(signal.SIGTERM)
        lines += broker.stderr  # now it is
        assert broker.wait(30.0) == 0
    finally:
        broker.kill()
        broker.stderr.close()
    connected = [line for line in lines if " connected " in line]
    assert len(connected) == CLIENTS
    assert sum(map(len, connected)) > 2 * PIPE_BYTES
    assert "stopped" in lines[-1]
