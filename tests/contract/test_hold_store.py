"""One suite for every store of the hold: the same rows, the same order, all or nothing."""

from __future__ import annotations

import pickle
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kept import without_kept

from whimbrel.errors import InvalidValueError
from whimbrel.hold.sessions import Hold
from whimbrel.hold.store.interface import (
    NOTHING_APPLIED,
    CorruptStoreError,
    Key,
    NewerStoreError,
    RowStore,
    StoreError,
    StoreUnavailableError,
    decode_key,
    encode_key,
)
from whimbrel.hold.store.memory import MemoryStore
from whimbrel.hold.store.sqlite import FORMAT, SqliteStore
from whimbrel.model.facts import InterestChanged, Mode, PresenceChange, PresenceChanged
from whimbrel.model.notification import Notification
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.pipeline.stream.state.blob_store import BlobStore, MemoryBlobs

ROWS: dict[Key, bytes] = {
    ("held", None, 1): b"none",
    ("held", "", 1): b"empty",
    ("held", "s", -1): b"minus",
    ("held", "s", 9): b"nine",
    ("held", "s", 10): b"ten",
    ("held", "s\0", 0): b"zero",
    ("held", "t"): b"",
    ("notification", 2**63 - 1): b"\0\xff" * 1_000,
}
"""In the order in which a store yields them."""

_TEXTS = st.text(st.characters(codec="utf-8"), max_size=4) | st.text("a\0\xff", max_size=4)
_PARTS = st.none() | _TEXTS | st.integers(-(2**63), 2**63 - 1)
KEYS = st.builds(lambda kind, parts: (kind, *parts), _TEXTS, st.lists(_PARTS, max_size=4))


@pytest.fixture(params=[MemoryStore, SqliteStore, BlobStore])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RowStore]:
    """Every store there is, empty."""
    made: RowStore
    if request.param is BlobStore:
        made = BlobStore(MemoryBlobs())
    else:
        made = MemoryStore() if request.param is MemoryStore else SqliteStore(tmp_path / "hold.sqlite")
    yield made
    made.close()


def test_a_new_store_is_the_view_of_nothing(store: RowStore) -> None:
    """The first fact of a log is number 0, so nothing is -1."""
    assert store.applied == NOTHING_APPLIED == -1
    assert list(store.rows()) == []
    assert store.get(("held", "s", 1)) is None


def test_rows_come_back_in_the_order_of_their_keys(store: RowStore) -> None:
    """A hold that is restored twice is the same hold."""
    store.commit(7, dict(reversed(ROWS.items())), ())
    assert list(store.rows()) == list(ROWS.items())
    assert all(store.get(key) == value for key, value in ROWS.items())
    assert store.applied == 7


def test_a_commit_replaces_and_drops(store: RowStore) -> None:
    """What is not there may be dropped as well: the hold does not know what was ever written."""
    store.commit(0, {("a", 1): b"old", ("a", 2): b"gone"}, ())
    store.commit(1, {("a", 1): b"new"}, {("a", 2), ("a", 3)})
    assert list(store.rows()) == [(("a", 1), b"new")]


def test_replacing_leaves_nothing_of_what_was_there(store: RowStore) -> None:
    """Whoever lost track of what it dropped must not leave rows behind that it can never name again."""
    store.commit(3, ROWS, ())
    store.replace(4, {("a", 1): b"only"})
    assert list(store.rows()) == [(("a", 1), b"only")]
    assert store.applied == 4
    with pytest.raises(InvalidValueError, match="applied"):
        store.replace(3, {})


def test_what_is_dropped_and_put_is_there(store: RowStore) -> None:
    """Drops come first."""
    store.commit(0, {("a",): b"x"}, {("a",)})
    assert store.get(("a",)) == b"x"


def test_the_last_fact_never_goes_back(store: RowStore) -> None:
    """It may stand still: a tick changes rows, and is no fact."""
    store.commit(5, {("a",): b"1"}, ())
    store.commit(5, {("a",): b"2"}, ())
    with pytest.raises(InvalidValueError, match="applied"):
        store.commit(4, {("a",): b"3"}, ())
    assert store.applied == 5
    assert store.get(("a",)) == b"2"


class _BreaksOff(dict[Key, bytes]):
    """Rows that end in an error after the first few, as a bug or a signal in the middle of a commit would."""

    def items(self) -> Iterator[tuple[Key, bytes]]:  # type: ignore[override]  # an iterator is all a commit needs
        for count, item in enumerate(super().items()):
            if count == 3:
                raise KeyboardInterrupt
            yield item


def test_a_commit_that_fails_in_the_middle_changes_nothing(store: RowStore) -> None:
    """Half a commit would be a view of no moment that ever was."""
    before: dict[Key, bytes] = {("held", "s", 9): b"before", ("x",): b"stays"}
    store.commit(1, before, ())
    with pytest.raises(KeyboardInterrupt):
        store.commit(2, _BreaksOff(ROWS), {("x",)})
    assert store.applied == 1
    assert dict(store.rows()) == before
    store.commit(2, ROWS, {("x",)})
    assert dict(store.rows()) == ROWS


@pytest.mark.parametrize("key", [(), (1,), (None, "a"), ("a", 2**63), ("a", "\ud800"), ("\ud800",), ("b", True)])
def test_a_key_that_cannot_be_kept_is_refused(store: RowStore, key: Key) -> None:
    """Before anything is changed."""
    with pytest.raises(InvalidValueError, match="key"):
        store.commit(1, {("a", 1): b"", key: b""}, ())
    assert (store.applied, list(store.rows())) == (NOTHING_APPLIED, [])


def test_closing_twice_does_no_harm(store: RowStore) -> None:
    """Shutting down after an error often does."""
    store.close()
    store.close()


@given(keys=st.lists(KEYS, max_size=8))
def test_encoded_keys_sort_as_keys_do_and_come_back(keys: list[Key]) -> None:
    """Part by part: None before texts before integers."""
    assert [decode_key(*encode_key(key)) for key in keys] == keys
    assert sorted(map(encode_key, keys)) == [encode_key(key) for key in sorted(keys, key=_comparable)]


def _comparable(key: Key) -> list[tuple[int, int, str]]:
    return [(0, 0, "") if part is None else (1, 0, part) if isinstance(part, str) else (2, part, "") for part in key]


@given(encoded=st.binary(max_size=24) | st.lists(st.sampled_from([0, 1, 2, 3, 255, 97]), max_size=12).map(bytes))
def test_any_bytes_are_a_key_or_our_error(encoded: bytes) -> None:
    """And a key of one spelling only, integers and texts cut short included."""
    try:
        key = decode_key("kind", encoded)
    except InvalidValueError:
        return
    assert encode_key(key) == ("kind", encoded)


# What only a file can suffer


def _file(path: Path) -> Path:
    with closing(SqliteStore(path)) as store:
        store.commit(41, ROWS, ())
    return path


def test_a_file_that_is_opened_again_is_as_it_was(tmp_path: Path) -> None:
    """That is what it is for."""
    with closing(SqliteStore(_file(tmp_path / "hold"))) as store:
        assert store.applied == 41
        assert list(store.rows()) == list(ROWS.items())


@pytest.mark.parametrize(("is_synced", "level"), [(False, 1), (True, 2)])
def test_commits_are_synced_for_whoever_asks_for_it(tmp_path: Path, *, is_synced: bool, level: int) -> None:
    """A stream has several stores, of which none may be ahead of another after a power failure."""
    with closing(SqliteStore(tmp_path / "hold", is_synced=is_synced)) as store:
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (level,)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """An older Whimbrel must not guess."""
    with closing(sqlite3.connect(_file(tmp_path / "hold"))) as connection, connection:
        connection.execute("UPDATE meta SET value = ? WHERE name = 'format'", (FORMAT + 1,))
    with pytest.raises(NewerStoreError, match=r"found format 4, known are .* up to 3; use a newer") as caught:
        SqliteStore(tmp_path / "hold")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301  our own bytes


def test_a_database_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """A wrong path in a configuration must not cost an address book."""
    with closing(sqlite3.connect(tmp_path / "friends")) as connection, connection:
        connection.execute("CREATE TABLE friends (name)")
    before = (tmp_path / "friends").read_bytes()
    with pytest.raises(CorruptStoreError, match="not those of a hold"):
        SqliteStore(tmp_path / "friends")
    assert (tmp_path / "friends").read_bytes() == before


def test_a_place_where_no_file_can_be_is_no_damage(tmp_path: Path) -> None:
    """Removing the store and replaying the log would not help there."""
    with pytest.raises(StoreUnavailableError, match="as it was before"):
        SqliteStore(tmp_path / "nowhere" / "hold")


def test_a_store_that_another_writes_is_unavailable_not_damaged(tmp_path: Path) -> None:
    """The commit is refused as a whole, and succeeds later."""
    with closing(SqliteStore(_file(tmp_path / "hold"))) as store, closing(sqlite3.connect(tmp_path / "hold")) as other:
        store._connection.execute("PRAGMA busy_timeout=0")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="locked"):
            store.commit(42, {("a",): b""}, ())
        other.rollback()
        store.commit(42, {("a",): b""}, ())
        assert store.applied == 42


def test_a_full_disk_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    """SQLite's page limit stands for the end of the disk."""
    with closing(SqliteStore(_file(tmp_path / "hold"))) as store:
        store._connection.execute("PRAGMA max_page_count=8")
        with pytest.raises(StoreUnavailableError, match="full"):
            store.commit(42, {("large", number): bytes(4_000) for number in range(20)}, ())
        assert (store.applied, list(store.rows())) == (41, list(ROWS.items()))


@given(content=st.binary(max_size=200) | st.binary(max_size=100).map(lambda rest: b"SQLite format 3\0" + rest))
@example(content=b"")
@example(content=b"SQLite format 3\0" + bytes(4_080))
def test_any_bytes_as_a_file_are_refused_with_our_error(content: bytes) -> None:
    """An empty file is an empty store; anything else says that it can be rebuilt."""
    _expect_ours(lambda path: path.write_bytes(content), rows=[], applied=NOTHING_APPLIED)


@given(place=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_file_is_noticed_or_does_not_matter(place: float, mask: int, *, cut: bool) -> None:
    """Wherever a byte was changed or the file cut off: the same rows or our error, never other rows."""

    def damage(path: Path) -> None:
        content = bytearray(_file(path).read_bytes())
        at = int(place * len(content))
        content[at] ^= mask
        path.write_bytes(content[: max(at, 1)] if cut else content)

    _expect_ours(damage, rows=list(ROWS.items()), applied=41)


def _expect_ours(prepare: Callable[[Path], object], *, rows: list[tuple[Key, bytes]], applied: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "hold"
        prepare(path)
        try:
            with closing(SqliteStore(path)) as store:
                assert (store.applied, list(store.rows())) == (applied, rows)
                assert [store.get(key) for key, _ in rows] == [value for _, value in rows]
        except StoreError as error:
            assert str(path) in str(error)  # noqa: PT017  either outcome is right


_COMMITS_FOR_EVER = """
import sys
from itertools import count
from pathlib import Path
from whimbrel.hold.store.sqlite import SqliteStore

store = SqliteStore(Path(sys.argv[1]))
for number in count():
    put = {("row", number, part): bytes(500) for part in range(10)} | {("last",): b"%d" % number}
    store.commit(number, put, [("row", number - 3, part) for part in range(10)])
    print(number, flush=True)
"""


@pytest.mark.parametrize("commits", [1, 7, 40])
def test_a_killed_process_leaves_a_whole_view(tmp_path: Path, commits: int) -> None:
    """Kill -9 comes between any two instructions; what was said to be committed is there, and nothing by halves."""
    path = tmp_path / "hold"
    command = [sys.executable, "-c", _COMMITS_FOR_EVER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(commits)]
        process.send_signal(signal.SIGKILL)
    with closing(SqliteStore(path)) as store:
        last = store.applied
        assert last >= said[-1]
        alive = [("row", number, part) for number in range(max(0, last - 2), last + 1) for part in range(10)]
        assert [key for key, _ in store.rows()] == [("last",), *alive]
        assert store.get(("last",)) == b"%d" % last


def test_a_file_whose_making_was_interrupted_is_made_anew(tmp_path: Path) -> None:
    """A broker that was killed in its first second must start in its second."""
    with closing(sqlite3.connect(tmp_path / "hold")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    assert (tmp_path / "hold").stat().st_size > 0
    with closing(SqliteStore(tmp_path / "hold")) as store:
        assert store.applied == NOTHING_APPLIED


def test_a_hold_survives_in_a_store(store: RowStore) -> None:
    """The whole of it: changes go in after a fact, rows come out, and what is owed is handed over."""
    subscription = Subscription(session="mail", name="all")
    added = InterestChanged(node="n", seq=0, changed_at=0, change=InterestChange.ADDED, subscription=subscription)
    hold = Hold[Notification]("n")
    hold.apply(added)
    store.commit(0, *hold.changes())
    assert hold.apply(Notification(node="n", seq=1, published_at=1), [("mail", ((None, "all"),))]) == []
    assert hold.is_stored(1)
    store.commit(1, *hold.changes())
    restored = Hold[Notification].restore("n", store.rows())
    joined = PresenceChanged(
        node="n",
        seq=store.applied + 1,
        changed_at=2,
        device="pda",
        change=PresenceChange.JOINED,
        session="mail",
        receipt=Mode.TAKE,
    )
    assert restored.apply(joined) == without_kept(hold.apply(joined))
