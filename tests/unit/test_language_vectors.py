"""Our own vectors: the corners of the language, each with the outcome the specification gives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from whimbrel.language.vectors import BACKENDS, failures, read_vectors

HERE = Path(__file__).parent / "vectors.jsonl"
SHARED = Path(__file__).parents[3] / "shared" / "data" / "elvin-vectors.jsonl"
IN_PROCESS = [name for name in BACKENDS if name != "spark"]  # which takes seconds to start: tests/differential


@pytest.mark.parametrize("backend", IN_PROCESS)
def test_our_vectors_pass(backend: str) -> None:
    """One meaning in every backend."""
    with HERE.open("rb") as lines:
        vectors = list(read_vectors(lines, source=HERE.name))
    assert len(vectors) > 150
    assert failures(vectors, BACKENDS[backend]) == []


@pytest.mark.parametrize("backend", IN_PROCESS)
def test_the_vectors_checked_against_an_elvin_router_pass(backend: str) -> None:
    """They live outside the repository; without them this test says that it is skipped."""
    if not SHARED.exists():
        pytest.skip("the vectors checked against an Elvin router are not on this machine")
    with SHARED.open("rb") as lines:
        assert failures(list(read_vectors(lines, source=SHARED.name)), BACKENDS[backend]) == []
