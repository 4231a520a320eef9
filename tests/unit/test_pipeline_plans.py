"""Plans of streams: written down once, and nobody goes on with another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.hold.retention import Retention
from whimbrel.pipeline import TABLES_MADE
from whimbrel.pipeline.batch.job import BatchJob
from whimbrel.pipeline.batch.window_tables import plan_copies
from whimbrel.pipeline.plans import FORMAT, READABLE, Plan, StreamPlan, settled_plan

RETENTION = Retention(ttl_us=7, max_held=3)
PLAN = StreamPlan(tables=("deliveries", "latency"), window_us=5, retention=RETENTION, assume_receipts=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a stream keeps its plan."""
    (tmp_path / "out" / "_stream").mkdir(parents=True)
    return tmp_path / "out" / "_stream" / "plan.json"


def rewrite(path: Path, **changed: object) -> None:
    """Change what was written; None takes a field out."""
    found = json.loads(path.read_text(encoding="utf-8")) | changed
    path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}), encoding="utf-8")


def test_a_stream_goes_on_with_the_plan_it_began_with(path: Path) -> None:
    """And nothing is left beside the file."""
    assert settled_plan(path, PLAN) == settled_plan(path, PLAN) == PLAN
    assert [each.name for each in path.parent.iterdir()] == ["plan.json"]
    assert json.loads(path.read_text(encoding="utf-8"))["format"] == FORMAT


@pytest.mark.parametrize(
    ("name", "value", "found", "allowed"),
    [
        ("window_us", 900_000_000, "15m", "--window 0.005ms"),
        ("tables", ("deliveries",), "deliveries", "--tables deliveries,latency"),
        ("retention", Retention(ttl_us=8, max_held=3), "(ttl 0.008ms, max-held 3)", "--retention (ttl 0.007ms"),
        ("assume_receipts", True, "--assume-receipts", "no --assume-receipts"),
        ("lateness_us", 0, "0s", "--lateness 1d"),
        ("horizon_us", 3_600_000_000, "1h", "--horizon 7d"),
        ("nodes", 1, "1", "--nodes 100"),
        ("slots_per_node", 1, "1", "--slots-per-node 10"),
        ("sample_bytes", 1, "1", "--sample-bytes 100"),
    ],
)
def test_another_plan_is_refused_by_what_differs(path: Path, name: str, value: Any, found: str, allowed: str) -> None:
    """Tables would mean one thing in their first half and another in their second."""
    settled_plan(path, PLAN)
    with pytest.raises(InvalidValueError) as told:
        settled_plan(path, replace(PLAN, **{name: value}))
    text = str(told.value)
    assert text.startswith(f"This stream began with {allowed}")
    assert text.endswith(f"; keep it, or choose another --out for {found}")
    others = {"--window", "--nodes", "--tables", "--lateness"} - {f"--{name.removesuffix('_us')}"}
    assert not any(other in text for other in others)
    assert settled_plan(path, PLAN) == PLAN


def test_every_field_but_two_is_settled(path: Path) -> None:
    """How much is read at once, and how long rows are kept, changes no row; a field that is new must be thought of."""
    settled_plan(path, PLAN)
    other = replace(PLAN, facts_per_batch=7, keep_us=9)
    assert settled_plan(path, other) == other
    written = set(json.loads(path.read_text(encoding="utf-8")))
    assert {"format", *StreamPlan.__dataclass_fields__} - written == {"facts_per_batch", "keep_us"}


@pytest.mark.parametrize("name", ["window_us", "lateness_us", "horizon_us", "assume_receipts", "tables"])
def test_what_an_older_whimbrel_did_not_write_is_as_the_default(path: Path, name: str) -> None:
    """It worked as if the field had been there, with the value that is the default now."""
    plan = replace(PLAN, window_us=StreamPlan().window_us, tables=TABLES_MADE)
    settled_plan(path, plan)
    rewrite(path, **{name: None})
    assert settled_plan(path, plan) == plan
    with pytest.raises(InvalidValueError, match=name.removesuffix("_us").replace("_", "-")):
        settled_plan(path, replace(plan, **{name: {"tables": ("matches",), "assume_receipts": True}.get(name, 9)}))  # type: ignore[arg-type]  # each its own


def test_so_is_a_part_of_the_retention_that_was_not_written(path: Path) -> None:
    """A field within a field is a field."""
    plan = StreamPlan(tables=TABLES_MADE, retention=Retention(ttl_us=7), assume_receipts=False)
    settled_plan(path, plan)
    rewrite(path, retention={"ttl_us": 7})
    assert settled_plan(path, plan) == plan
    with pytest.raises(InvalidValueError, match="retention"):
        settled_plan(path, StreamPlan(retention=Retention(ttl_us=7, max_held=3)))


@pytest.mark.parametrize("version", [min(READABLE) - 1, FORMAT + 1])
def test_what_another_whimbrel_wrote_is_refused(path: Path, version: int) -> None:
    """Its tables are others, or we do not know what it remembers."""
    settled_plan(path, PLAN)
    rewrite(path, format=version)
    with pytest.raises(InvalidValueError, match=f"found {version}, allowed is {FORMAT}; begin a new stream"):
        settled_plan(path, PLAN)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", "{}", '"format"', '{"window_us": 5}', "\ud800", "[" * 99_999]
)
def test_what_is_no_plan_is_refused(path: Path, text: str) -> None:
    """With where it is and what to do; it is left alone."""
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(
        InvalidValueError, match=r"plan\.json: found another content, allowed is .* start the stream anew"
    ):
        settled_plan(path, PLAN)
    assert path.read_bytes() == text.encode(errors="surrogatepass")


@pytest.mark.parametrize("version", [0, -1, "1", 1.5, True])
def test_a_format_that_never_was_is_refused(path: Path, version: object) -> None:
    """A number from one on."""
    settled_plan(path, PLAN)
    rewrite(path, format=version)
    with pytest.raises(InvalidValueError, match=f"allowed is {FORMAT}"):
        settled_plan(path, PLAN)


@pytest.mark.parametrize(
    "wrong",
    [
        {"window_us": 0},
        {"horizon_us": 0},
        {"nodes": 0},
        {"slots_per_node": 0},
        {"sample_bytes": 0},
        {"lateness_us": -1},
        {"facts_per_batch": 0},
        {"tables": ("deliveries", "publications")},
    ],
)
def test_what_makes_no_sense_is_no_plan(wrong: dict[str, Any]) -> None:
    """Before a folder is made for it."""
    with pytest.raises(InvalidValueError):
        StreamPlan(**wrong)
    if next(iter(wrong)) in Plan.__dataclass_fields__:
        with pytest.raises(InvalidValueError):
            Plan(**wrong)


@pytest.mark.parametrize("assumed", [False, True])
def test_the_log_says_of_receipts_what_a_plan_does_not(tmp_path: Path, *, assumed: bool) -> None:
    """As in a batch run; a stream that has begun goes on as it began, and one that is told otherwise does not."""
    path = tmp_path / "_stream" / "plan.json"
    path.parent.mkdir()
    assert settled_plan(path, StreamPlan(), assumed=assumed).assume_receipts is assumed
    assert settled_plan(path, StreamPlan(), assumed=not assumed).assume_receipts is assumed
    with pytest.raises(InvalidValueError, match="--assume-receipts"):
        settled_plan(path, StreamPlan(assume_receipts=not assumed))


def test_who_names_no_tables_goes_on_with_those_that_were_begun(tmp_path: Path) -> None:
    """A newer Whimbrel that makes more tables takes a stream over as it is; one that begins makes all."""
    path = tmp_path / "_stream" / "plan.json"
    path.parent.mkdir()
    assert settled_plan(path, StreamPlan()).tables == TABLES_MADE
    path.unlink()
    assert settled_plan(path, StreamPlan(tables=("latency",))).tables == ("latency",)
    assert settled_plan(path, StreamPlan()).tables == ("latency",)


def test_a_batch_run_names_the_subjects_that_its_plan_for_replicas_does_not_serve(tmp_path: Path) -> None:
    """The table has a row for each subject; without the sentence nobody would see which of them found no place."""
    here = str(tmp_path)

    def told(plan: Plan) -> dict[str, Any]:
        job = BatchJob(log=here, out=here, folder="", scratch=here, tables=("replicas",), plan=plan, now=1)
        found: dict[str, Any] = json.loads(plan_copies(job, {"a": (1, 1), "b": (1, 3), "c": (1, 2)}, None)[1].told)
        return found

    crowded = told(Plan(nodes=2, slots_per_node=1))
    assert crowded["note"] == "2 of 3 subjects are beyond the memory and keep one copy, their source's: c, a"
    assert told(Plan(nodes=2, slots_per_node=2)) == {"nodes": 2, "slots_per_node": 2}
