"""What the pipeline learned, as a broker reads it: the newest counts, and nothing that is broken disturbs."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from broker_rig import Rig, subscribing

from whimbrel.broker.settings.config import Config, PipelineSettings
from whimbrel.broker.shell.metrics import connected_devices, prometheus
from whimbrel.broker.shell.operate import feedback_reader as learning
from whimbrel.broker.shell.operate.feedback_reader import FeedbackReader
from whimbrel.broker.state import feedback as words
from whimbrel.broker.state.feedback import Announcements, Feedback, PipelineResults
from whimbrel.model.tables import TABLES
from whimbrel.mqtt.packets import Publish
from whimbrel.pipeline.files.delta import DeltaOutput

Link = tuple[str, int, str, float | None]
PLAN, LINKS = "$SYS/broker/replicas", "$SYS/broker/link/"


def _write(path: Path, table: pa.Table, written_s: int = 1_000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    os.utime(path, (written_s, written_s))


def _links(*rows: Link) -> pa.Table:
    """Return a table ``link_quality`` as the pipeline writes it, as far as the broker is concerned."""
    columns = zip(*rows, strict=True) if rows else ((), (), (), ())
    names = ("node", "seq", "device", "network_connection")
    kinds = (pa.string(), pa.int64(), pa.string(), pa.float64())
    return pa.table({name: pa.array(each, kind) for name, each, kind in zip(names, columns, kinds, strict=True)})


def _plan(copies: dict[str, int]) -> pa.Table:
    return pa.table({
        "subject": pa.array(copies, pa.string()),
        "subscribers": pa.array([7] * len(copies), pa.int64()),
        "replicas": pa.array(copies.values(), pa.int64()),
    })  # fmt: skip


def _lead(out: Path, table: str, version: str) -> None:
    """Let a table's link lead to another version, as the stream does."""
    beside = out / "_versions" / f"_link-{table}"
    beside.symlink_to(Path("_versions") / table / version)
    beside.rename(out / table)


def _feedback_reader(out: Path, *, most: int = 100) -> FeedbackReader:
    return FeedbackReader(out, "node-1", most=most)


# -- links -------------------------------------------------------------------------------------------------------------


def test_the_newest_row_of_a_device_of_this_node_counts(tmp_path: Path) -> None:
    """Numbers decide what is newest, not the order of rows or files; another node's device is another device."""
    _write(tmp_path / "link_quality" / "a.parquet", _links(("node-1", 9, "d", 0.9), ("node-2", 50, "d", 0.1)))
    _write(tmp_path / "link_quality" / "b.parquet", _links(("node-1", 8, "d", 0.8), ("node-1", 3, "e", 0.3)))
    assert _feedback_reader(tmp_path).look().connections == {"d": 0.9, "e": 0.3}


def test_what_is_not_known_is_not_told(tmp_path: Path) -> None:
    """Null is a link of which nothing was ever measured; it is no zero."""
    _write(tmp_path / "link_quality" / "a.parquet", _links(("node-1", 1, "d", None), ("node-1", 2, "e", 0.0)))
    assert _feedback_reader(tmp_path).look().connections == {"e": 0.0}


def test_only_new_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of months is not read again every ten seconds, in whichever version its files stand."""
    opened: list[str] = []
    real = pq.ParquetFile

    def noted(path: Path) -> pq.ParquetFile:
        opened.append(path.name)
        return real(path)

    monkeypatch.setattr(pq, "ParquetFile", noted)
    versions = tmp_path / "_versions" / "link_quality"
    _write(versions / "1" / "a.parquet", _links(("node-1", 1, "d", 0.1), ("node-1", 2, "e", 0.2)))
    _lead(tmp_path, "link_quality", "1")
    looking = _feedback_reader(tmp_path)
    assert looking.look().connections == {"d": 0.1, "e": 0.2}
    (versions / "2").mkdir()
    os.link(versions / "1" / "a.parquet", versions / "2" / "a.parquet")
    _write(versions / "2" / "b.parquet", _links(("node-1", 5, "d", 0.5)))
    _lead(tmp_path, "link_quality", "2")
    assert looking.look().connections == {"d": 0.5, "e": 0.2}
    assert looking.look() == PipelineResults()
    assert opened == ["a.parquet", "b.parquet"]


def test_files_that_were_put_together_change_nothing(tmp_path: Path) -> None:
    """Compaction makes a new file of rows that are known, beside files that stay."""
    out = tmp_path / "link_quality"
    for seq in range(3):
        _write(out / f"{seq}.parquet", _links(("node-1", seq, "d", seq / 10)))
    looking = _feedback_reader(tmp_path)
    looking.look()
    _write(out / "0-1.parquet", _links(("node-1", 0, "d", 0.0), ("node-1", 1, "d", 0.1)))
    (out / "0.parquet").unlink()
    (out / "1.parquet").unlink()
    assert looking.look().connections == {"d": 0.2}


def test_a_table_of_other_files_is_another_table(tmp_path: Path) -> None:
    """A batch run writes everything anew: what it does not have is not there, whatever its numbers."""
    out = tmp_path / "link_quality"
    _write(out / "a.parquet", _links(("node-1", 90, "d", 0.9), ("node-1", 91, "e", 0.9)))
    looking = _feedback_reader(tmp_path)
    looking.look()
    (out / "a.parquet").unlink()
    _write(out / "b.parquet", _links(("node-1", 5, "d", 0.5)))
    assert looking.look().connections == {"d": 0.5}


def _linked(seq: int, device: str, connection: float) -> pa.Table:
    """Return a row of ``link_quality`` with all of its columns."""
    row = {"node": "node-1", "seq": seq, "device": device, "since_at": 0, "reported_at": seq, "received": 1, "sent": 2}
    return pa.Table.from_pylist([row | {"network_connection": connection}], schema=TABLES["link_quality"].schema)


def test_a_delta_table_is_what_its_commits_say(tmp_path: Path) -> None:
    """Files that no commit names, or that compaction replaced, are none of it; what is new is learned."""
    out = tmp_path / "5 % of [x]"
    output, reader = DeltaOutput(out, "link_quality"), _feedback_reader(out)
    output.create()
    assert reader.look().troubles == ()
    for batch, connection in enumerate((0.1, 0.2, 0.3)):
        output.add(batch, _linked(batch, "d", connection))
        assert reader.look().connections == {"d": connection}
    pq.write_table(_linked(9, "d", 0.9), out / "link_quality" / "of-no-commit.parquet")
    assert reader.look().connections is None
    output.compact()
    output.add(3, _linked(3, "e", 0.5))
    assert reader.look().connections == {"d": 0.3, "e": 0.5}


def test_a_table_of_many_rows_is_read_whole(tmp_path: Path) -> None:
    """It is read, and made into Python's values, a piece at a time; no piece may be left out."""
    devices = {f"d{number}": number % 100 / 100 for number in range(2_500)}
    rows = [("node-1", seq, device, value) for seq, (device, value) in enumerate(devices.items())]
    _write(tmp_path / "link_quality" / "a.parquet", _links(*rows))
    assert _feedback_reader(tmp_path, most=10_000).look().connections == devices


def test_those_who_reported_last_are_kept(tmp_path: Path) -> None:
    """A bound that kept the first would know only devices that are gone."""
    rows = [("node-1", seq, f"d{seq}", 0.5) for seq in range(10)]
    _write(tmp_path / "link_quality" / "a.parquet", _links(*rows))
    looking = _feedback_reader(tmp_path, most=3)
    assert set(looking.look().connections or ()) == {"d7", "d8", "d9"}
    _write(tmp_path / "link_quality" / "b.parquet", _links(("node-1", 20, "d0", 0.1)))
    assert set(looking.look().connections or ()) == {"d8", "d9", "d0"}


# -- the plan ----------------------------------------------------------------------------------------------------------


def test_a_version_replaces_the_plan(tmp_path: Path) -> None:
    """A subject that nobody wants any more has no copies any more."""
    for version, copies in (("1", {"a": 1, "b": 9}), ("2", {"c": 3, "a": 2})):
        _write(tmp_path / "_versions" / "replicas" / version / "window.parquet", _plan(copies), int(version))
    _lead(tmp_path, "replicas", "1")
    looking = _feedback_reader(tmp_path)
    assert list((looking.look().replicas or {}).items()) == [("b", 9), ("a", 1)]
    _lead(tmp_path, "replicas", "2")
    found = looking.look()
    assert list((found.replicas or {}).items()) == [("c", 3), ("a", 2)]
    assert found.written_at == 2_000_000


def test_a_file_that_stays_does_not_keep_what_is_gone(tmp_path: Path) -> None:
    """The plan is whatever the table is now, however many files it has."""
    for name, copies in (("a", {"a": 1}), ("b", {"b": 2})):
        _write(tmp_path / "replicas" / f"{name}.parquet", _plan(copies))
    looking = _feedback_reader(tmp_path)
    assert looking.look().replicas == {"a": 1, "b": 2}
    (tmp_path / "replicas" / "b.parquet").unlink()
    assert looking.look().replicas == {"a": 1}


def test_the_largest_plans_are_kept(tmp_path: Path) -> None:
    """A bound leaves out what matters least; of equals the name decides, so that nothing flickers."""
    _write(tmp_path / "replicas" / "a.parquet", _plan({"d": 1, "c": 2, "b": 2, "a": 2}))
    assert _feedback_reader(tmp_path, most=2).look().replicas == {"a": 2, "b": 2}


def test_an_empty_plan_is_a_plan(tmp_path: Path) -> None:
    """A table with no rows says that there is nothing to spread; one without files says nothing."""
    _write(tmp_path / "replicas" / "a.parquet", _plan({}))
    assert _feedback_reader(tmp_path).look().replicas == {}
    assert _feedback_reader(tmp_path / "elsewhere").look() == PipelineResults()


# -- what is broken ----------------------------------------------------------------------------------------------------


def _trouble(found: PipelineResults) -> str:
    assert found.connections is None
    assert found.replicas is None
    (trouble,) = found.troubles
    return trouble


@pytest.mark.parametrize("data", [b"", b"PAR1", b"no Parquet at all" * 100])
def test_a_file_that_is_none_is_a_trouble(tmp_path: Path, data: bytes) -> None:
    """Whatever stands there, the look ends and says which table it was."""
    path = tmp_path / "link_quality" / "a.parquet"
    path.parent.mkdir()
    path.write_bytes(data)
    assert _trouble(_feedback_reader(tmp_path).look()).startswith("link_quality: ")


def test_a_file_that_was_cut_off_is_a_trouble(tmp_path: Path) -> None:
    """A copy that was interrupted, say."""
    path = tmp_path / "replicas" / "a.parquet"
    _write(path, _plan({f"subject/{number}": 5 for number in range(5_000)}))
    path.write_bytes(path.read_bytes()[:-50])
    assert _trouble(_feedback_reader(tmp_path).look()).startswith("replicas: ")


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    """A table of an older Whimbrel does not say of which node it is; a guess would mix nodes up."""
    older = _links(("node-1", 1, "d", 0.5)).drop_columns(["node"])
    _write(tmp_path / "link_quality" / "a.parquet", older)
    trouble = _trouble(_feedback_reader(tmp_path).look())
    assert "found no column node, allowed is a table with node, seq, device, network_connection" in trouble


def test_a_column_of_another_kind_is_a_trouble(tmp_path: Path) -> None:
    """A newer Whimbrel may count otherwise."""
    _write(tmp_path / "replicas" / "a.parquet", pa.table({"subject": ["a"], "replicas": ["many"]}))
    assert "many" in _trouble(_feedback_reader(tmp_path).look())


@pytest.mark.parametrize("value", [-0.1, 1.01, float("nan"), float("inf")])
def test_a_value_that_is_none_is_a_trouble(tmp_path: Path, value: float) -> None:
    """A policy that is promised 0 to 1 must not be given anything else."""
    _write(tmp_path / "link_quality" / "a.parquet", _links(("node-1", 1, "d", 0.5), ("node-1", 2, "e", value)))
    assert "a number from 0 to 1" in _trouble(_feedback_reader(tmp_path).look())


def test_a_plan_of_no_copies_is_a_trouble(tmp_path: Path) -> None:
    """The source has one at least."""
    _write(tmp_path / "replicas" / "a.parquet", _plan({"a": 0}))
    assert "found 0, allowed is at least 1" in _trouble(_feedback_reader(tmp_path).look())


def test_a_file_that_is_too_large_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody makes the broker read for minutes."""
    monkeypatch.setattr(learning, "MAX_FILE_BYTES", 10)
    _write(tmp_path / "replicas" / "a.parquet", _plan({"a": 1}))
    assert "allowed is at most 10" in _trouble(_feedback_reader(tmp_path).look())


def test_too_many_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor list for minutes."""
    monkeypatch.setattr(learning, "MAX_FILES", 2)
    for number in range(3):
        _write(tmp_path / "replicas" / f"{number}.parquet", _plan({"a": 1}))
    assert "more than 2 files" in _trouble(_feedback_reader(tmp_path).look())


def test_work_in_progress_is_not_looked_at(tmp_path: Path) -> None:
    """Spark and the stream write beside what is done, under names that begin so."""
    _write(tmp_path / "replicas" / "a.parquet", _plan({"a": 1}))
    _write(tmp_path / "replicas" / "_temporary" / "b.parquet", _plan({"b": 1}))
    _write(tmp_path / "replicas" / ".c.parquet", _plan({"c": 1}))
    (tmp_path / "replicas" / "_SUCCESS").touch()
    assert _feedback_reader(tmp_path).look().replicas == {"a": 1}


def test_a_file_that_vanishes_is_a_trouble_until_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between listing and opening a version may go; the next look finds the one that replaced it."""
    path = tmp_path / "replicas" / "a.parquet"
    _write(path, _plan({"a": 1}))
    looking = _feedback_reader(tmp_path)
    with monkeypatch.context() as patch:
        real = pq.ParquetFile

        def too_late(found: Path) -> pq.ParquetFile:
            found.unlink()
            return real(found)

        patch.setattr(pq, "ParquetFile", too_late)
        assert "replicas" in _trouble(looking.look())
    _write(path, _plan({"a": 2}))
    assert looking.look().replicas == {"a": 2}


def test_one_broken_table_does_not_hide_the_other(tmp_path: Path) -> None:
    """The two have nothing to do with each other."""
    _write(tmp_path / "replicas" / "a.parquet", _plan({"a": 1}))
    (tmp_path / "link_quality").mkdir()
    (tmp_path / "link_quality" / "a.parquet").write_bytes(b"?")
    found = _feedback_reader(tmp_path).look()
    assert found.replicas == {"a": 1}
    assert len(found.troubles) == 1


def test_a_table_that_went_away_is_a_trouble(tmp_path: Path) -> None:
    """One that was never there is none: the pipeline may begin later."""
    _write(tmp_path / "replicas" / "a.parquet", _plan({"a": 1}))
    looking = _feedback_reader(tmp_path)
    looking.look()
    shutil.rmtree(tmp_path / "replicas")
    assert "no files" in _trouble(looking.look())


def test_a_broken_file_is_tried_again(tmp_path: Path) -> None:
    """Good rows beside it are not lost, and the table is whole as soon as it is repaired."""
    out = tmp_path / "link_quality"
    _write(out / "a.parquet", _links(("node-1", 1, "d", 0.1)))
    looking = _feedback_reader(tmp_path)
    looking.look()
    _write(out / "b.parquet", _links(("node-1", 2, "d", 0.2)))
    (out / "c.parquet").write_bytes(b"?")
    assert "link_quality" in _trouble(looking.look())
    _write(out / "c.parquet", _links(("node-1", 3, "e", 0.3)))
    assert looking.look().connections == {"d": 0.2, "e": 0.3}


# -- what is known -----------------------------------------------------------------------------------------------------


def _known(**lessons: object) -> Feedback:
    known = Feedback()
    known.take(PipelineResults(**lessons))  # type: ignore[arg-type]  # the test's own words
    return known


def test_what_is_known_stays_when_nothing_new_is_read() -> None:
    """A pipeline that stops makes what it said older, not less."""
    known = _known(connections={"d": 0.5}, replicas={"a": 3}, written_at=1_000)
    known.take(PipelineResults(troubles=("link_quality: gone", "replicas: gone")))
    assert (known.network_connection("d"), known.network_connection("e")) == (0.5, None)
    assert (known.replicas("a"), known.replicas("b")) == (3, None)
    assert (known.devices, known.subjects, known.failures) == (1, 1, 2)
    assert known.age_us(5_000) == 4_000


def test_nothing_known_has_no_age_and_a_clock_that_was_set_back_no_negative_one() -> None:
    """An operator's alarm is on this number."""
    assert Feedback().age_us(5_000) is None
    assert _known(written_at=9_000).age_us(5_000) == 0


def test_the_plan_is_told_in_full_largest_first_and_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of a million subjects must not be one packet, and the campus needs those of small topics, too."""
    copies = {f"s{number}": 2_000 - number for number in range(1_500)}
    parts = [json.loads(part) for part in _known(replicas=copies).plan]
    assert [list(part.items()) for part in parts] == [list(copies.items())[:1_000], list(copies.items())[1_000:]]
    monkeypatch.setattr(words, "MAX_PLAN_BYTES", 20)
    monkeypatch.setattr(words, "MAX_PARTS", 3)
    assert _known(replicas=copies).plan == ('{"s0":2000}', '{"s1":1999}', '{"s2":1998}')


def test_parts_of_a_plan_have_topics_of_their_own_and_are_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever listens to the first part alone goes on as before; a smaller plan leaves nothing of the larger."""
    monkeypatch.setattr(words, "MAX_SUBJECTS", 1)
    announcements, known = Announcements(tells_links=False), _known(replicas={"a": 3, "b": 2, "c": 1})
    assert announcements.changes(known, ()) == {PLAN: '{"a":3}', f"{PLAN}/1": '{"b":2}', f"{PLAN}/2": '{"c":1}'}
    known.take(PipelineResults(replicas={"a": 3, "c": 2}))
    assert announcements.changes(known, ()) == {f"{PLAN}/1": '{"c":2}', f"{PLAN}/2": ""}


def test_only_what_changed_is_announced() -> None:
    """Way-servers listen for a new plan, not for the same one every ten seconds."""
    announcements, known = Announcements(tells_links=False), Feedback()
    assert announcements.changes(known, {"d"}) == {}
    known.take(PipelineResults(replicas={"a": 3, 'b"': 1}, connections={"d": 0.5}))
    assert announcements.changes(known, {"d"}) == {PLAN: '{"a":3,"b\\"":1}'}
    assert announcements.changes(known, {"d"}) == {}
    known.take(PipelineResults(replicas={}))
    assert announcements.changes(known, {"d"}) == {PLAN: ""}


def test_links_are_announced_of_who_is_here() -> None:
    """A device that left is not to be found under ``$SYS``, nor one whose name would be another topic."""
    announcements = Announcements(tells_links=True)
    known = _known(connections={"d": 0.5, "e": 0.25, "f/#": 0.5, "h\x1b": 0.5})
    assert announcements.changes(known, {"d", "f/#", "g", "h\x1b"}) == {f"{LINKS}d": "0.500"}
    known.take(PipelineResults(connections={"d": 0.75, "e": 0.25}))
    assert announcements.changes(known, {"d", "e"}) == {f"{LINKS}d": "0.750", f"{LINKS}e": "0.250"}
    assert announcements.changes(known, {"e"}) == {f"{LINKS}d": ""}
    assert announcements.changes(known, {"e"}) == {}


def test_many_links_are_announced_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty thousand at once would be a moment in which nobody is served."""
    monkeypatch.setattr(words, "MAX_LINKS", 4)
    devices = {f"d{number}" for number in range(10)}
    announcements, known = Announcements(tells_links=True), _known(connections=dict.fromkeys(devices, 0.5))
    turns = [announcements.changes(known, devices) for _ in range(4)]
    assert [len(each) for each in turns] == [4, 4, 2, 0]
    assert set().union(*turns) == {LINKS + device for device in devices}


# -- in the broker -----------------------------------------------------------------------------------------------------


def test_an_announcement_is_retained_until_it_is_taken_away(tmp_path: Path) -> None:
    """Whoever subscribes later finds what there is now, and not what there was."""
    rig = Rig(tmp_path)
    early = rig.client("early")
    early.send(subscribing(f"{LINKS}#"))
    early.take()
    rig.broker.tell_system({f"{LINKS}d": "0.500", f"{LINKS}e": "0.250"}, rig.now)
    rig.broker.tell_system({f"{LINKS}d": ""}, rig.now)
    rig.flush()
    assert [(each.topic[-1], each.payload) for each in early.taken(Publish)] == [
        ("d", b"0.500"), ("e", b"0.250"), ("d", b""),
    ]  # fmt: skip
    late = rig.client("late")
    late.send(subscribing(f"{LINKS}#"))
    assert [(each.topic[-1], each.retain) for each in late.taken(Publish)] == [("e", True)]


def test_metrics_say_how_much_is_known_and_how_old_it_is(tmp_path: Path) -> None:
    """What nobody can see will be wrong for a month."""
    rig = Rig(tmp_path, replace(Config(), pipeline=PipelineSettings(tables="tables")))
    rig.client("d")
    assert connected_devices(rig.broker) == {"d"}
    assert "whimbrel_learned_age_seconds" not in prometheus(rig.broker, 0, rig.now)
    lessons = PipelineResults(
        connections={"d": 0.5}, replicas={"a": 3, "b": 1}, written_at=rig.now - 4_000_000, troubles=("replicas: odd",)
    )
    rig.broker.feedback.take(lessons)
    lines = prometheus(rig.broker, 0, rig.now).splitlines()
    for line in ("devices 1.0", "subjects 2.0", "age_seconds 4.0", "failures_total 1.0"):
        assert f"whimbrel_learned_{line}" in lines
