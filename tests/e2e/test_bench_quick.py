"""The benchmarks run, and what they measure is right; how long it takes is not a test's business."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_RUN = Path(__file__).parents[2] / "bench" / "run.py"
_ALL = {path.stem.removeprefix("bench_") for path in _RUN.parent.glob("bench_*.py")}
_BY_HAND = {"churn", "kills", "live", "month", "pipeline"}
"""These keep Spark busy for a minute or two, and what they check has tests of its own: ``test_pipeline_continuous``,
``test_pipeline_kill``, ``test_pipeline_matchers``, ``test_pipeline_tables``. Whoever changes one, or what it
measures, says ``python bench/run.py live --quick``."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(_ALL - _BY_HAND))
def test_every_benchmark_runs_and_its_results_are_right(tmp_path: Path, name: str) -> None:
    """A benchmark that nobody runs rots, and a fast wrong answer is wrong."""
    command = [sys.executable, str(_RUN), name, "--quick", "--json", "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["passed"]
    assert list(found["reports"]) == [name]
    report = found["reports"][name]
    assert report["checks"]
    assert all(check["passed"] for check in report["checks"])
    assert all(ratio > 0 for comparison in report["comparisons"] for ratio in comparison["ratios"].values())
    assert all(comparison["ratios"] for comparison in report["comparisons"])
    assert json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8")) == report
    assert (tmp_path / f"{name}.md").read_text(encoding="utf-8").startswith(f"# Benchmark: {name}")
