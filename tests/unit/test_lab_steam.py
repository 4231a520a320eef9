"""STEAM's figures and claims, made again, without Spark: what does not depend on the machine is asserted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from whimbrel.cli.main import main
from whimbrel.lab.experiment import Experiment, run
from whimbrel.lab.steam.city import city
from whimbrel.lab.steam.filters import filters
from whimbrel.lab.steam.scale import scale
from whimbrel.lab.steam.traffic_light import traffic_light
from whimbrel.nearby.group.subscriptions import NearbySubscription


def _claims(experiment: Experiment, tmp_path: Path) -> dict[str, bool]:
    result = run(None, experiment, tmp_path)
    assert result.plot.read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / f"{experiment.name}.md").read_text(encoding="utf-8") == result.text
    return {claim: is_so for claim, is_so in result.findings.claims.items() if "processor" not in claim}


def test_the_traffic_light_is_the_papers_cell_for_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Figure 2, and the next light; as the command prints it."""
    assert all(_claims(traffic_light(), tmp_path).values())
    monkeypatch.setattr(sys, "argv", ["whimbrel", "lab", "steam-traffic-light", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "| s3 | match | match | no match | yes | no |" in capsys.readouterr().out


def test_the_subject_column_is_what_the_cars_node_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A car that subscribes to ambulances does not match the subject of a light, and the table says so."""
    other = NearbySubscription(subject="ambulance")
    monkeypatch.setattr("whimbrel.lab.steam.traffic_light.NearbySubscription", lambda **_: other)
    play = traffic_light().make
    assert play is not None
    rows = play()
    assert {row["subject"] for row in rows} == {"no match"}
    assert {row["propagated"] for row in rows} == {"no"}


def test_figure_3a_and_the_work_of_both_parts(tmp_path: Path) -> None:
    """Who gets what, and how many filters are asked where; the times are of core seconds, and not asserted."""
    experiment = filters(is_quick=True)
    claims = _claims(experiment, tmp_path)
    assert claims["Figure 3a: e1 to C1, e2 to C2, e3 to C2 and C3"]
    assert claims["Figure 3b: A to C1 and C2, B to C2 and C3, delivered where content matches"]
    text = (tmp_path / "steam-filters.md").read_text(encoding="utf-8")
    assert "| 1,000 | 1,000 | 0 | 1 | 117 | 117 | 11,700 |" in text


def test_a_village_shows_the_claims_of_the_city(tmp_path: Path) -> None:
    """Limiting space limits load, and without loss nothing is missed."""
    claims = _claims(city(is_quick=True), tmp_path)
    del claims["the simulation is faster than real time"]
    assert all(claims.values())


def test_load_for_each_entity_does_not_grow_with_the_city(tmp_path: Path) -> None:
    """And a join is felt near it only."""
    assert all(_claims(scale(is_quick=True), tmp_path).values())
