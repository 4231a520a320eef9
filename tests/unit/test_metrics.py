"""Metrics: one table of what a broker counts; each of its rows reaches every place that it names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from broker_rig import Rig

from whimbrel.broker.limits.figures import count, figures_of, now, read_figures
from whimbrel.broker.shell.metrics import FIGURES, LogFigures, prometheus, system_values

ROOT = Path(__file__).parents[2]
METRICS = {name + "_total" * figure.is_counter for kind in FIGURES for name, figure in figures_of(kind).items()}
_NAMED = re.compile(r"\bwhimbrel_([a-z]+(?:_[a-z]+)*)")
_OTHERS = ("pipeline", "rendezvous", "campus")
"""Programs with metrics of their own."""
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]


@dataclass(kw_only=True)
class _Table:
    here: int | None = now("what is here", topic="a/here", place="a.here")
    done: int = count("what was done", topic="a/here", has_rate=True)


def test_a_figure_that_is_not_known_is_shown_nowhere() -> None:
    """A log that nobody has looked at yet has no size; 0 would be a lie."""
    assert [each.name for each in read_figures(_Table(done=3))] == ["done"]
    assert [(each.name, each.value) for each in read_figures(_Table(here=0, done=3))] == [("here", 0), ("done", 3)]


def test_every_figure_is_a_metric_with_its_sentence(tmp_path: Path) -> None:
    """So that whoever finds a number need not read the code."""
    rig = Rig(tmp_path)
    log = LogFigures(**dict.fromkeys(figures_of(LogFigures), 7))
    lines = prometheus(rig.broker, 5_000_000, 0, log).splitlines()
    names = {line.split()[2].removeprefix("whimbrel_") for line in lines if line.startswith("# HELP")}
    assert names == METRICS - {"learned_age_seconds"}, "the pipeline has not told anything yet"
    assert "# HELP whimbrel_received_total publications that clients sent" in lines
    assert "whimbrel_log_bytes 7.0" in lines
    assert "whimbrel_uptime_seconds 5.0" in lines


def test_every_figure_with_a_topic_is_published_and_those_with_one_topic_are_added(tmp_path: Path) -> None:
    """Mosquitto counts all that it dropped under one name."""
    rig = Rig(tmp_path)
    rig.broker.counters.dropped, rig.broker.counters.displaced = 2, 3
    told = system_values(rig.broker, 0, LogFigures(**dict.fromkeys(figures_of(LogFigures), 7)))
    topics = {figure.topic for kind in FIGURES for figure in figures_of(kind).values() if figure.topic}
    assert {f"$SYS/broker/{topic}" for topic in [*topics, "version", "uptime"]} == set(told)
    assert told["$SYS/broker/publish/messages/dropped"] == "5"
    assert told["$SYS/broker/log/bytes"] == "7"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_metric_that_a_page_names_exists(page: Path) -> None:
    """An alarm on a metric that does not exist never rings."""
    named = set(_NAMED.findall(page.read_text(encoding="utf-8")))
    assert {each for each in named if each not in METRICS and each.partition("_")[0] not in _OTHERS} == set()
