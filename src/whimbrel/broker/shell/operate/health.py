"""Health and metrics: answers to HTTP requests for ``/healthz`` and ``/metrics``."""

from __future__ import annotations

from whimbrel.broker.shell.disk.log_truncator import LogTruncator
from whimbrel.broker.shell.metrics import prometheus
from whimbrel.broker.shell.net.http import Answer
from whimbrel.broker.shell.preparation import Preparation
from whimbrel.broker.shell.running import Running, monotonic_us

__all__ = ["answer"]


def answer(running: Running | None, preparation: Preparation, keeper: LogTruncator, method: str, path: str) -> Answer:
    """Return the answer to a request for metrics or health; *running* is None while the broker restores its state."""
    if method != "GET":
        return Answer(status=405, body=b"only GET\n", headers=(("Allow", "GET"),))
    if path not in ("/healthz", "/metrics"):
        return Answer(status=404, body=b"there are /metrics and /healthz\n")
    if running is None or (path == "/healthz" and preparation.reason is not None and _trouble(running) is None):
        return Answer(status=503, body=f"starting: {preparation.reason}\n".encode(), headers=(("Retry-After", "5"),))
    if path == "/healthz":
        trouble = _trouble(running)
        return Answer(status=200, body=b"ok\n") if trouble is None else Answer(status=503, body=trouble)
    text = prometheus(running.broker, monotonic_us() - running.started_us, running.clock.now(), keeper.figures())
    return Answer(status=200, body=text.encode(), content_type="text/plain; version=0.0.4; charset=utf-8")


def _trouble(running: Running) -> bytes | None:
    """Return why the broker cannot accept publications, as a line; None if it can."""
    if running.failure is not None or running.broker.is_refusing:
        return b"the disk cannot be written to\n"
    if running.broker.is_short:
        return b"the disk is nearly full: publications are refused until there is room\n"
    return None
