"""The demo's pipeline, which is a process of its own: how it tells what went wrong."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from whimbrel.cli.demo.following import portable
from whimbrel.cli.demo.pipeline import PipelineDiedError, WardPipeline
from whimbrel.errors import InvalidValueError


def test_a_pipeline_that_is_killed_is_an_error_that_says_so(tmp_path: Path) -> None:
    """As where memory runs out: the demo must not wait for it for ever."""
    ended = threading.Event()
    pipeline = WardPipeline(tmp_path / "log", "n", tmp_path / "out", on_first=lambda: None, on_end=ended.set)
    pipeline.start()
    pipeline._process.kill()
    assert ended.wait(60)
    pipeline.follow()  # nobody listens, which is no error of its own
    with pytest.raises(PipelineDiedError, match="ended with status -9"):
        pipeline.result()
    pipeline.break_off()


def test_what_went_wrong_there_is_raised_here() -> None:
    """Our errors as they are; those of others, which may not be sent, as what they say."""

    class OthersError(Exception):
        def __init__(self, number: int, name: str) -> None:
            super().__init__(f"{number} {name}")

    found = portable(InvalidValueError("option", 7, "less"))
    assert isinstance(found, InvalidValueError)
    assert str(found) == str(InvalidValueError("option", 7, "less"))
    assert str(portable(OthersError(7, "sins"))) == "OthersError: 7 sins"
