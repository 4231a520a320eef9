"""The log's reserve of file descriptors."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from whimbrel.broker.shell.net.open_files import connections_allowed, crowd, descriptors_needed
from whimbrel.log.descriptors import keep_reserve, open_descriptor
from whimbrel.log.files import put


@pytest.fixture
def none_left(tmp_path: Path) -> Iterator[None]:
    """Let this process have as many descriptors as it has open once its folder is made."""
    assert tmp_path.is_dir()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []
    # Above the highest: tests before this one may have left descriptors open, with gaps below them.
    highest = max(int(each.name) for each in Path("/dev/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, before[1]))
    try:
        while True:
            opened.append(os.dup(0))
    except OSError:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for each in opened:
            os.close(each)


@pytest.mark.usefixtures("none_left")
def test_the_log_opens_its_files_when_all_descriptors_are_used_up(tmp_path: Path) -> None:
    """Nothing else does, then and afterwards."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(OSError, match="Too many open files") as refused:
        os.close(os.open(tmp_path, os.O_RDONLY))
    assert refused.value.errno == errno.EMFILE
    put(tmp_path / "a", b"x")
    descriptor = open_descriptor(tmp_path / "a", os.O_RDONLY)
    assert os.read(descriptor, 2) == b"x"
    os.close(descriptor)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == soft
    with pytest.raises(FileNotFoundError):
        open_descriptor(tmp_path / "b", os.O_RDONLY)


def test_the_limit_that_connections_meet_is_below_that_of_the_log() -> None:
    """By the reserve; it is never lowered below what there was, but for the reserve."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert keep_reserve(1) == min(before[0], before[1] - 64)
        assert keep_reserve(before[1]) == before[1] - 64
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("descriptors", [257, 300, 960, 1_000, 20_000, 1_000_000])
def test_no_more_connections_are_allowed_than_there_are_descriptors_for(descriptors: int) -> None:
    """And not one less."""
    allowed = connections_allowed(descriptors)
    assert allowed >= 1
    assert descriptors_needed(allowed) <= descriptors < descriptors_needed(allowed + 2)
    assert crowd(allowed) > allowed
