"""``whimbrel log``: what people and scripts see, and what bad input does."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from ordered import NODE, a_history

from whimbrel.cli.main import main
from whimbrel.log import layout
from whimbrel.log.importing import DeadLetters, Imported, import_lines
from whimbrel.log.reader import read
from whimbrel.log.writer import LogWriter
from whimbrel.testing.clock import ManualClock


@dataclass(frozen=True)
class Done:
    """What a finished command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]

FEVER = {
    "table": "publications",
    "published_at": "2004-05-17T09:30:00Z",
    "subject": "ward/3",
    "publisher": "bed 7",
    "attributes": {"temperature": 38.5, "place": {"ward": "ICU"}},
    "body": "38.5",
    "qos": 1,
}
ASKED = {
    "table": "interests",
    "changed_at": 1084786200000001,
    "change": "added",
    "session": "nurse",
    "filter_text": "temperature > 38",
    "near": "56.1,10.2,50",
    "keys": ["producer:" + "0a" * 20],
}
GIVEN = {
    "table": "receipts",
    "handed_at": "2004-05-17T09:30:01Z",
    "session": "nurse",
    "device": "phone",
    "notification_node": "import",
    "notification_seq": 1,
    "body_hash": "00" * 32,
    "outcome": "delivered",
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``whimbrel log`` in this process, through its real entry point."""
    monkeypatch.setenv("COLUMNS", "100")

    def invoke(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["whimbrel", "log", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main()
        captured = capsys.readouterr()
        return Done(int(exited.value.code or 0), captured.out, captured.err)

    return invoke


def lines(folder: Path, *given: object) -> Path:
    """Write a file of lines."""
    path = folder / "facts.jsonl"
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in given), encoding="utf-8")
    return path


def test_import_then_show(run: Run, tmp_path: Path) -> None:
    """The way of somebody else's data into a log, and a look at it."""
    log = tmp_path / "log"
    done = run("import", log, lines(tmp_path, FEVER, "", ASKED, GIVEN))
    assert (done.code, done.out) == (0, "3 facts imported, seq 1 to 3\n")
    shown = run("show", log)
    assert shown.out.splitlines()[0] == (
        "import:1  2004-05-17T09:30:00.000000Z  publications  publisher=bed 7  subject=ward/3  "
        'attributes={"temperature": 38.5, "place.ward": "ICU"}  body=38.5  qos=1  retain=false  deliver_insecure=true'
    )
    assert len(run("show", log, "--since", 2).out.splitlines()) == 2
    assert len(run("show", log, "--limit", 1).out.splitlines()) == 1
    assert run("show", log, "--table", "interests").out.startswith("import:2")
    assert run("show", log, "--table", "matches").code == 2
    assert run("show", log, "--node", "other").code == 2


def test_a_log_that_is_imported_says_whether_devices_confirm(run: Run, tmp_path: Path) -> None:
    """Without receipts nothing would ever count as received; a batch job and a stream believe what the log says."""
    log = tmp_path / "log"
    run("import", log, lines(tmp_path, FEVER, ASKED))
    assert layout.assumes_receipts(log)
    run("export", log, "--all", "--into", tmp_path / "other")
    assert layout.assumes_receipts(tmp_path / "other")
    run("import", log, lines(tmp_path, GIVEN))
    assert not layout.assumes_receipts(log)
    layout.create(tmp_path / "of-a-broker")
    run("import", tmp_path / "of-a-broker", lines(tmp_path, FEVER))
    assert not layout.assumes_receipts(tmp_path / "of-a-broker")


def test_what_show_prints_as_json_import_reads(run: Run, tmp_path: Path) -> None:
    """A log can be carried as text."""
    facts = a_history(30)
    with LogWriter(tmp_path / "one", NODE) as log:
        for fact in facts:
            log.append(fact)
    text = run("show", tmp_path / "one", "--json").out
    done = run("import", tmp_path / "two", lines(tmp_path, text.strip()), "--node", NODE, "--json")
    assert json.loads(done.out) == {
        "lines": 30,
        "facts": 30,
        "dead_letters": 0,
        "first_seq": 1,
        "last_seq": 30,
        "cut_bytes": 0,
    }
    assert list(read(tmp_path / "two", NODE)) == facts


def test_bodies_are_cut(run: Run, tmp_path: Path) -> None:
    """A line is for reading."""
    run("import", tmp_path / "log", lines(tmp_path, {**FEVER, "body": "x" * 500}))
    body = run("show", tmp_path / "log").out.split("body=")[1].split("  ")[0]
    assert body == "x" * 79 + "…"


@pytest.mark.parametrize(
    ("bad", "column", "reason"),
    [
        ("{", 2, "Expecting property name"),
        ("[1]", 1, "allowed is an object"),
        ({"table": "matches"}, 2, "table: found 'matches', allowed is publications"),
        ({**FEVER, "colour": 1}, 1, "column: found 'colour'"),
        ({**FEVER, "published_at": "today"}, 27, "published_at: found 'today', allowed is ISO 8601"),
        ({**FEVER, "published_at": "2004-05-17T09:29:59Z"}, 1, "time does not go back"),
        ({**FEVER, "qos": 3}, 190, "qos: found 3"),
        ({**FEVER, "seq": 9}, 200, "seq: found 9, allowed is 2, which the log gives, or none"),
        ({**FEVER, "node": "other"}, 200, "node: found 'other', allowed is import"),
        ({**FEVER, "body_base64": "MzguNQ=="}, 200, "body_base64: found the column a second time"),
        ({"table": "publications", "published_at": 2**62}, 27, "in the years 1 to 9999"),
    ],
)
def test_a_bad_line_ends_the_import(run: Run, tmp_path: Path, bad: object, column: int, reason: str) -> None:
    """File, line, column and reason; what came before stays, what comes after is not imported."""
    path = lines(tmp_path, FEVER, bad, FEVER)
    done = run("import", tmp_path / "log", path)
    assert (done.code, done.out) == (2, "1 facts imported before it stopped, seq 1 to 1\n")
    assert done.err.startswith(f"error: {path}: line 2, column ")
    assert reason in done.err
    found = int(done.err.split("column ")[1].split(":")[0])
    assert found == column if column < 100 else found > 100
    assert len(list(read(tmp_path / "log", "import"))) == 1


def test_dead_letters_let_the_import_go_on(run: Run, tmp_path: Path) -> None:
    """Nothing is dropped silently: line, reason and content are kept."""
    path, log = lines(tmp_path, FEVER, "nonsense", ASKED, {"table": "x"}, GIVEN), tmp_path / "log"
    done = run("import", log, path, "--dead-letters")
    assert (done.code, done.out) == (0, "3 facts imported, seq 1 to 3, 2 dead letters\n")
    (part,) = layout.parts(log, layout.DEAD_LETTERS)
    rows = pq.read_table(part.path, partitioning=None).to_pylist()
    assert [(row["source"], row["position"], row["content"]) for row in rows] == [
        (str(path), 2, b"nonsense"),
        (str(path), 4, b'{"table": "x"}'),
    ]
    assert rows[1]["reason"].startswith("table: found 'x'")
    assert run("verify", log).out == "ok: 3 records in 1 segments, 2 rows in 1 parts\n"
    assert "dead_letters" in run("stats", log).out


def test_dead_letters_of_one_moment_each_have_a_name(tmp_path: Path) -> None:
    """A clock that stands still must not make two parts one."""
    letters = DeadLetters(tmp_path, NODE, ManualClock(5))
    for line in range(4):
        letters.add("here", line, "bad", b"")
        letters.flush()
    assert len(layout.parts(tmp_path, layout.DEAD_LETTERS)) == 4


def test_an_import_counts_what_is_durable(tmp_path: Path) -> None:
    """The library's own door, for those who have lines and no file."""
    done = Imported()
    with LogWriter(tmp_path, "import") as log:
        import_lines(log, [json.dumps(FEVER).encode()] * 2_500, source="memory", done=done)
        assert (log.pending, log.durable_seq) == (0, 2_500)
    assert (done.lines, done.facts["publications"], done.first_seq, done.last_seq) == (2_500, 2_500, 1, 2_500)


def test_export_verify_and_stats(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The life of a log, as an operator sees it."""
    log = tmp_path / "log"
    run("import", log, lines(tmp_path, FEVER, ASKED, GIVEN))
    assert run("export", log).out == "import: 0 rows in 0 parts, exported up to seq 0\n"
    assert run("export", log, "--all").out == "import: 3 rows in 3 parts, exported up to seq 3\n"
    assert json.loads(run("export", log, "--json").out) == {"node": "import", "rows": 0, "parts": [], "seq": 3}
    assert run("verify", log).out == "ok: 3 records in 1 segments, 3 rows in 3 parts\n"
    assert json.loads(run("verify", log, "--json").out)["ok"] is True
    for width, sizes, first in (
        (140, "in Parquet in segments", "2004-05-17T09:30:00.000000Z"),
        (80, "bytes", "2004-05-17"),
    ):
        monkeypatch.setenv("COLUMNS", str(width))
        table = run("stats", log).out.splitlines()
        assert table[0].split() == f"table rows seqs first last {sizes}".split()
        assert table[1].split()[:4] == ["publications", "1", "1–1", first]
        assert max(map(len, table)) <= width
    assert [each["rows"] for each in json.loads(run("stats", log, "--json").out)] == [1, 1, 1]
    done = run("export", log, "--all", "--compact", "--keep-days", 3)
    assert "0 parts merged into 0" in done.out
    assert "3 parts and 0 segments removed" in done.out


def test_verify_exits_1_where_something_is_wrong(run: Run, tmp_path: Path) -> None:
    """And names the file and the place."""
    run("import", tmp_path, lines(tmp_path.parent, FEVER, ASKED))
    (_, path) = layout.segments(tmp_path, "import")[0]
    data = bytearray(path.read_bytes())
    data[150] ^= 1
    path.write_bytes(data)
    done = run("verify", tmp_path)
    assert done.code == 1
    assert done.out.startswith(f"{path}: damaged at byte 98: the checksum does not match\n1 problems")
    assert run("show", tmp_path).code == 2
    assert json.loads(run("verify", tmp_path, "--json").out)["ok"] is False


def test_an_empty_log_says_so(run: Run, tmp_path: Path) -> None:
    """Empty is no error."""
    layout.create(tmp_path)
    assert run("show", tmp_path).out.startswith("nothing to show: the segments hold no such fact;")
    assert run("export", tmp_path).out == "nothing to export: the log is empty\n"
    assert run("stats", tmp_path).out == "the log is empty\n"
    assert run("stats", tmp_path, "--json").out == "[]\n"
    assert run("verify", tmp_path).out == "ok, the log is empty: 0 records in 0 segments, 0 rows in 0 parts\n"


@pytest.mark.parametrize("command", ["show", "export", "stats", "verify"])
def test_what_is_no_log_and_what_is_newer_is_refused(run: Run, tmp_path: Path, command: str) -> None:
    """In one clear sentence."""
    done = run(command, tmp_path)
    assert (done.code, done.err) == (2, f"error: {tmp_path}: no log: whimbrel-log.json is missing\n")
    (tmp_path / "whimbrel-log.json").write_text('{"format": 7}')
    done = run(command, tmp_path)
    expected = f"error: {tmp_path}: written by a newer Whimbrel (format 7); this one reads up to 1\n"
    assert (done.code, done.err) == (2, expected)
