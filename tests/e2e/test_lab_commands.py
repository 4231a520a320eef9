"""``whimbrel lab`` from end to end: sweeps on Spark, tables, plots, and points that are not made twice."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from whimbrel.cli.main import main
from whimbrel.lab.rendezvous.dumb import dumb

PNG = b"\x89PNG"


def _lab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["whimbrel", "lab", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    assert not exited.value.code
    return capsys.readouterr().out


def test_a_figure_is_a_table_a_plot_and_points_made_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The second run makes nothing: it reads the points of the first."""
    assert spark is not None
    options = ("campus-figure-2a", "--quick", "--out", str(tmp_path), "--json")
    first = json.loads(_lab(monkeypatch, capsys, *options))
    assert first["points"] == 12
    assert first["claims"]["at 100 % it is above the best"]
    assert first["assumptions"]["interval_s"] == 4_000
    assert (tmp_path / "campus-figure-2a.png").read_bytes().startswith(PNG)
    assert "| workload | 100 topics | 20 topics | paper |" in (tmp_path / "campus-figure-2a.md").read_text()
    made = sorted((tmp_path / "points").glob("*.parquet"))
    second = json.loads(_lab(monkeypatch, capsys, *options))
    assert sorted((tmp_path / "points").glob("*.parquet")) == made
    assert second["tables"] == first["tables"]


def test_the_other_experiments_run(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Figure 2b says what the wait phase predicts; a trace of one's own is a file in the ONE's format."""
    assert spark is not None
    text = _lab(monkeypatch, capsys, "campus-figure-2b", "--quick", "--out", str(tmp_path))
    assert "yes: the mean delay by formula (1) is below that of the flat plan" in text
    assert "the wait phase alone predicts 21 %" in text
    trace = tmp_path / "ring.trace"
    events = [(100 * turn + 7 * node, node, (node + 1) % 9) for turn in range(200) for node in range(9)]
    lines = [f"{time} CONN {one} {other} up\n{time + 5} CONN {one} {other} down\n" for time, one, other in events]
    trace.write_text("".join(lines))
    text = _lab(monkeypatch, capsys, "campus-trace", str(trace), "--topics", "4", "--quick", "--out", str(tmp_path))
    assert "the mean delay by formula (1) is best at" in text
    assert (tmp_path / "campus-trace-ring.png").read_bytes().startswith(PNG)


def test_a_sweep_of_small_points_is_made_once_on_spark(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Huang's dumb devices: the same seed gives the same tables, here and in a process without Spark."""
    assert spark is not None
    options = ("rendezvous-dumb", "--quick", "--out", str(tmp_path), "--json")
    first = json.loads(_lab(monkeypatch, capsys, *options))
    assert all(first["claims"].values())
    assert (tmp_path / "rendezvous-dumb.png").read_bytes().startswith(PNG)
    made = sorted((tmp_path / "rendezvous-dumb-points").glob("*.parquet"))
    second = json.loads(_lab(monkeypatch, capsys, *options))
    assert sorted((tmp_path / "rendezvous-dumb-points").glob("*.parquet")) == made
    assert second["tables"] == first["tables"]
    experiment = dumb(is_quick=True)
    here = experiment.find([point.measure() for point in experiment.own])
    assert [[list(row) for row in each.rows] for each in here.tables] == [each["rows"] for each in first["tables"]]
