"""The demo's page and line are functions of a value: they fit the screen, and show what there is."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from whimbrel.cli.demo.page import line, page
from whimbrel.cli.demo.picture import draw_picture
from whimbrel.cli.demo.summary import Summary, draw
from whimbrel.cli.demo.tallies import Latency, Receipt, Tallies, percentiles
from whimbrel.cli.demo.view import Bar, Bed, DemoSnapshot, Owner, PipelineView, Why
from whimbrel.pipeline.accounts import Account, DeviceAccount
from whimbrel.sim.witnesses import Received, Spoken

PIPELINE = PipelineView(
    doing="",
    batch=7,
    facts=1_234,
    took_s=0.8,
    behind=321,
    behind_s=1.5,
    state=99,
    rows={"matches": 5_000, "deliveries": 6_000},
    latency=Latency(2_000, 30_000),
    popularity=tuple(Bar(f"bed/ICU-{number}/vitals", 100 - number, "9 want it") for number in range(8)),
    replicas=tuple(Bar(f"bed/W3-{number}/pump", 12 - number, "5%") for number in range(8)),
    away={"nurse-phone": 17},
)
VIEW = DemoSnapshot(
    phase="busy",
    elapsed_s=12.3,
    busy_s=11.2,
    seconds=60.0,
    devices=40,
    present=31,
    published=1_500,
    received=2_750,
    published_per_s=(10, 150, 151),
    received_per_s=(0, 250, 290),
    latency=Latency(1_100, 9_900),
    longest_held_us=12_000_000,
    owners=(Owner(name="nurse", here=("nurse-desk",), away=("nurse-phone",), held=17),),
    why=(Why("12:00:00", "nurse-desk", "bed/ICU-1/vitals", "pulse is 117", 1_500),),
    pipeline=PIPELINE,
    beds={"ICU-1": Bed(121, 90), "ICU-3": Bed(81, None), "W3-8": Bed(70, 98)},
    batteries={"porter-7": 12},
)


def _printed(view: DemoSnapshot, width: int, height: int) -> list[str]:
    out = io.StringIO()
    console = Console(
        file=out, width=width, height=height, force_terminal=True, color_system=None, legacy_windows=False
    )
    console.print(page(view, width=width, height=height), end="")
    return out.getvalue().rstrip("\n").split("\n")


@pytest.mark.parametrize(("width", "height"), [(100, 35), (200, 60), (80, 24), (40, 12), (20, 5)])
def test_the_page_fits_the_screen(width: int, height: int) -> None:
    """A page that scrolls is no page."""
    lines = _printed(VIEW, width, height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width


def test_the_page_shows_all_of_it_on_a_usual_screen() -> None:
    """Rates, latencies, who is away, what is held, how far behind, what is popular, what is planned, and why."""
    shown = "\n".join(_printed(VIEW, 100, 40))
    for words in (
        "31 of 40 devices here   11 of 60 s", "p50 1.1 ms   p99 9.9 ms", "p50 2.0 ms   p99 30.0 ms",
        "1.5 s behind", "bed/ICU-0/vitals", "bed/W3-0/pump", "pulse is 117", "▁▇",
    ):  # fmt: skip
        assert words in shown, words
    assert re.search(r"nurse +17 +nurse-phone +nurse-desk", shown)


@pytest.mark.parametrize(("width", "height"), [(100, 35), (80, 24)])
def test_the_ward_is_drawn_as_a_plan(width: int, height: int) -> None:
    """Rooms with the last vital signs of each bed, the corridor with the badges, and who is at the station."""
    lines = [each.strip() for each in _printed(VIEW, width, height)]
    begin = next(number for number, each in enumerate(lines) if each.startswith("┌─ICU-1"))
    assert lines[begin : begin + 7] == [
        "┌─ICU-1────────┬─ICU-2────────┬─ICU-3────────┬─station─────────────────────┐",
        "│ ♥ 121  O₂ 90 │ –            │ ♥  81  O₂ –  │ here: nurse                 │",
        "├──────────────┴──────────────┴──────────────┴─────────────────────────────┤",
        "│ corridor    nurse-1 unknown yet    nurse-2 unknown yet    porter-7 12 %  │",
        "├─W3-4─────────┬─W3-5─────────┬─W3-6─────────┬─W3-7─────────┬─W3-8─────────┤",
        "│ –            │ –            │ –            │ –            │ ♥  70  O₂ 98 │",
        "└──────────────┴──────────────┴──────────────┴──────────────┴──────────────┘",
    ]
    assert any("who is away" in each for each in lines)


def test_the_replica_plan_goes_from_the_most_copies_to_the_fewest() -> None:
    """The first few subjects are equally popular, and six equal bars are no plan to look at."""
    bars = tuple(Bar(f"subject-{number:02}", 9 - number // 4) for number in range(20))
    shown = "\n".join(_printed(replace(VIEW, pipeline=replace(PIPELINE, replicas=bars)), 100, 40))
    assert re.findall(r"subject-([0-9]+)", shown) == ["00", "03", "07", "11", "15", "19"]


def test_a_picture_of_the_page_names_no_host_but_that_of_its_format(tmp_path: Path) -> None:
    """It stands in documents, and must not fetch anything when it is looked at."""
    draw_picture(VIEW, tmp_path / "page.svg")
    drawn_page = (tmp_path / "page.svg").read_text(encoding="utf-8")
    assert re.findall(r"https?://[^\"' )]+", drawn_page) == ["http://www.w3.org/2000/svg"]
    assert "ICU-1" in drawn_page
    assert len(drawn_page) < 100_000


def test_a_small_screen_keeps_what_matters_most() -> None:
    """Traffic first; what does not fit is left out whole."""
    shown = "\n".join(_printed(VIEW, 100, 12))
    assert "published/s" in shown
    assert "who is away" not in shown


def test_before_spark_has_started_the_page_says_so() -> None:
    """The page lives from the first second."""
    early = replace(VIEW, pipeline=PipelineView())
    assert "starting Spark …" in "\n".join(_printed(early, 100, 35))
    assert line(early).endswith("pipeline starting Spark …")


def test_the_line_says_it_in_one() -> None:
    """For pipes: plain text, and nothing that moves a cursor."""
    assert line(VIEW) == (
        "   12 s  busy; 31/40 devices here; published 1,500 (104/s), received 2,750 (180/s); p50 1.1 ms, p99 9.9 ms; "
        "pipeline batch 7, 1.5 s behind; 17 held"
    )


# -- counting ----------------------------------------------------------------------------------------------------------


def _receipt(at_s: float, waited_us: int, *, is_live: bool = True) -> Receipt:
    return Receipt(at_s, "phone", "bed/1", b"{}", waited_us, is_live)


def test_tallies_are_by_second_and_forget_old_latencies() -> None:
    """The present second is not whole, and not shown; what was measured long ago says nothing of now."""
    tallies = Tallies(100.0)
    for at_s in (100.1, 100.9, 102.0):
        tallies.note_published(at_s)
    tallies.note_received(_receipt(100.5, 9_000), is_told=False)
    tallies.note_received(_receipt(112.0, 1_000), is_told=True)
    tallies.note_received(_receipt(112.0, 60_000_000, is_live=False), is_told=False)
    assert tallies.per_second("published", 103.5, 10) == [2, 0, 1]
    assert tallies.per_second("published", 102.5, 10) == [2, 0]
    assert tallies.latency(112.1) == Latency(1_000, 1_000)
    assert (tallies.received, tallies.longest_held_us, len(tallies.recent)) == (3, 60_000_000, 1)


def test_percentiles_are_of_values_that_occurred() -> None:
    """Half are at most the one, 99 of 100 at most the other; weights count."""
    assert percentiles(list(range(1, 101))) == Latency(50, 99)
    assert percentiles([5, 1], [1, 99]) == Latency(1, 1)
    assert percentiles([]) == Latency(None, None)


# -- the summary -------------------------------------------------------------------------------------------------------

SUMMARY = Summary(
    account=Account(
        notifications=3,
        wanted=4,
        devices=(DeviceAccount(device="phone", delivered=3, held=1), DeviceAccount(device=None, expired=2)),
        gap_count=0,
        gaps=(),
    ),
    spoken=Spoken(acknowledged=2, once=1, lost=0, in_doubt=0, arrived=0, in_log=3),
    received=(Received(device="phone", notifications=3, again=0, unseen=0, unconfirmed=0),),
    gap_count=0,
    gaps=(),
)


def _summary(summary: Summary) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(draw(summary))
    return out.getvalue()


def test_a_summary_that_closes_says_so() -> None:
    """Per device, and in all; whoever was not there has a line too."""
    shown = _summary(SUMMARY)
    assert SUMMARY.closes
    assert "Nothing lost: all " in shown
    found = [each.split() for each in shown.splitlines()]
    assert ["phone", "3", "1", "·", "·", "·", "·", "3", "·", "·"] in found
    assert ["no", "device", "·", "·", "2", "·", "·", "·"] in found
    assert ["all", "3", "1", "2", "0", "0", "0", "3", "0", "0"] in found
    assert "withheld" not in shown


@pytest.mark.parametrize("is_of_devices", [True, False])
def test_a_summary_that_does_not_close_tells_why(is_of_devices: bool) -> None:  # noqa: FBT001 # a parameter
    """A gap of the account or of what devices say: either way it does not close."""
    account = replace(SUMMARY.account, gap_count=30, gaps=("n:7 is gone",))
    broken = (
        replace(SUMMARY, gap_count=30, gaps=("n:7 is gone",)) if is_of_devices else replace(SUMMARY, account=account)
    )
    shown = _summary(broken)
    assert not broken.closes
    assert broken.as_json()["closes"] is False
    assert "30 deliveries are not accounted for:" in shown
    assert "n:7 is gone" in shown
    assert "and 29 more" in shown
