"""The lab without Spark: confidence, names of points, what the wait phase predicts, and the shape of findings."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whimbrel.errors import InvalidValueError, MalformedLineError
from whimbrel.lab import points, spark_sweep
from whimbrel.lab.campus_figure_2a import figure_2a
from whimbrel.lab.campus_figure_2b import figure_2b, predicted_ratio
from whimbrel.lab.campus_optimum import optimum
from whimbrel.lab.campus_trace import trace_experiment
from whimbrel.lab.confidence import estimate
from whimbrel.lab.points import Place, Point, measure
from whimbrel.sim.campus.scenario import Campus


def test_a_mean_has_students_margin() -> None:
    """Five seeds 1 to 5: the mean is 3, and t(4) = 2.776 times the standard error its margin."""
    found = estimate([1, 2, 3, 4, 5])
    assert (found.mean, found.count) == (3, 5)
    assert found.margin == pytest.approx(2.776 * math.sqrt(2.5 / 5), rel=1e-3)
    assert str(estimate([100.0, 110.0])) == "105 ± 63.5"
    assert math.isnan(estimate([None]).mean)


def test_the_wait_phase_alone_predicts_what_the_page_says() -> None:
    """(Σ√S)² / (T·ΣS) is 0.791; whole numbers of copies and subscribers move it little."""
    many = Campus(zipf_exponent=0.8, subscribers=800)
    assert predicted_ratio(many, nodes=10_000) == pytest.approx(0.791, abs=0.001)
    assert predicted_ratio(Campus(zipf_exponent=0.8)) == pytest.approx(0.79, abs=0.03)


def test_the_full_experiments_have_what_was_ordered() -> None:
    """Topics 100, 70, 50 and 20, workloads from 10 to 100 %, at least five seeds, 500,000 s."""
    points = figure_2a().points
    base = {(point.campus.topics, point.campus.workload, point.seed) for point in points}
    assert {
        (topics, load / 10, seed) for topics in (100, 70, 50, 20) for load in range(1, 11) for seed in range(1, 6)
    } <= base
    assert {point.place.seconds for point in points} == {500_000.0}
    plans = {(point.campus.allocation, point.campus.zipf_exponent) for point in figure_2b().points}
    assert plans == {("sqrt", 0.8), ("flat", 0.8)}
    assert {0.5, 0.75} < {point.campus.exponent for point in optimum().points}


def test_a_point_is_named_by_what_decides_its_result(tmp_path: Path) -> None:
    """Another seed is another point; the same trace elsewhere is the same one."""
    point = Point(campus=Campus(), seed=1)
    assert point.key == Point(campus=Campus(), seed=1).key
    assert len({point.key, replace(point, seed=2).key, replace(point, campus=Campus(workload=0.7)).key}) == 3
    here, there = (Place(trace=str(tmp_path / name), digest="d") for name in ("a", "b"))
    assert replace(point, place=here).key == replace(point, place=there).key


def test_a_point_of_another_source_is_another_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result of a simulator that was changed since is not taken for one of today's."""
    point = Point(campus=Campus(), seed=1)
    before = point.key
    monkeypatch.setattr(points, "_source_digest", lambda: "another")
    assert point.key != before


def test_a_point_measured_twice_is_the_same_but_for_the_time_it_took() -> None:
    """Same seed, same bytes."""
    point = Point(campus=Campus(topics=10, interval_s=500), seed=3, place=Place(seconds=5_000.0))
    one, other = (measure(point) | {"core_s": 0.0} for _ in range(2))
    assert one == other
    assert one["delivered"] > 0


def test_a_bad_trace_is_refused_before_spark_starts(tmp_path: Path) -> None:
    """With file and line."""
    file = tmp_path / "bad.trace"
    file.write_text("1 CONN 1 1 up\n")
    with pytest.raises(MalformedLineError, match=r"bad.trace: line 1, column 1: found node 1 in contact with itself"):
        trace_experiment(file)


def test_a_broken_file_of_points_is_named(tmp_path: Path) -> None:
    """A disk that was full leaves half a file; the answer is which one to remove, not a traceback."""
    (tmp_path / "part-0.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InvalidValueError, match=r"part-0.parquet: found a damaged Parquet file"):
        spark_sweep._read_kept(tmp_path)
    assert spark_sweep._read_kept(tmp_path / "nowhere") == {}


def test_points_of_a_sweep_that_was_killed_are_found(tmp_path: Path) -> None:
    """Spark keeps what its finished tasks wrote apart until the batch is done; only half-written files are left out."""
    quick = Point(campus=Campus(topics=2, interval_s=500), seed=1, place=Place(seconds=5_000))
    row = measure(quick)
    for folder in ("_temporary/0/task_1", "_temporary/0/_temporary/attempt_2"):
        (tmp_path / folder).mkdir(parents=True)
    pq.write_table(
        pa.Table.from_pylist([row], schema=spark_sweep._arrow_schema(points.SCHEMA)),
        tmp_path / "_temporary/0/task_1/part-0.parquet",
    )
    (tmp_path / "_temporary/0/_temporary/attempt_2/part-1.parquet").write_bytes(b"PAR1")
    assert spark_sweep._read_kept(tmp_path) == {quick.key: row}
