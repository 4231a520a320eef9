"""The columnar hold's kernel is compiled once per user, before workers need it."""

from __future__ import annotations

from pathlib import Path

import pytest

from whimbrel.pipeline.columnar import first_use


def test_the_kernel_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run says nothing of it; where numba keeps its own cache, nobody can know."""
    monkeypatch.setattr(first_use, "kernels_folder", lambda _: tmp_path)
    said: list[str] = []
    assert not first_use.is_compiled()
    for _ in range(2):
        first_use.make_ready(said.append)
    assert first_use.is_compiled()
    assert said == [first_use.COMPILING]
    monkeypatch.setattr(first_use, "kernels_folder", lambda _: None)
    assert first_use.is_compiled()
