"""The directory of a node in groups, and the assignment of names to groups: for any changes, as in a plain twin."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import cbor2
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.log.columns import to_arrow
from whimbrel.pipeline.fold.events import Seen
from whimbrel.pipeline.stream.groups.assignment import Name, OlderLinksError, assign
from whimbrel.pipeline.stream.groups.directory import GONE, Directory, DirectoryChanges, Kind, no_places
from whimbrel.pipeline.stream.groups.group_rows import GroupStates, Rows, join_rows
from whimbrel.pipeline.subscriptions.versions import CHANGED
from whimbrel.pipeline.unit.old_rows import upgrade

SESSIONS, DEVICES = [f"s{number}" for number in range(5)], [f"d{number}" for number in range(5)]
OF = 3


def _subscriptions(seqs: list[int], random: Random) -> pa.Table:
    same = {"node": "n", "change": "added", "name": "", "keys": [], "accept_insecure": True}
    rows = [{**same, "seq": seq, "changed_at": seq, "session": random.choice(SESSIONS)} for seq in seqs]
    return to_arrow("interests", rows).select(list(CHANGED))


def _places(random: Random, seq: int) -> pa.Table:
    rows = [
        {"node": "n", "seq": seq, "reported_at": seq, "device": device, "place": {"latitude": 1.0, "longitude": 2.0}}
        for device in DEVICES
        if random.random() < 0.3
    ]
    return pa.Table.from_pylist(rows, schema=no_places().schema)


@given(st.integers(0, 1 << 32))
def test_a_directory_that_is_read_again_is_the_same(seed: int) -> None:
    """Whatever came and went: subscriptions, groups, links, members and places, from one object or from many."""
    random = Random(seed)
    folder = Path(tempfile.mkdtemp())
    directory = Directory("n", folder, None)
    in_force: set[int] = set()
    seq = 0
    for _ in range(random.randint(1, 12)):
        directory.begin()
        put = list(range(seq + 1, seq + 1 + random.randint(0, 3)))
        seq += len(put) + 1
        ended = [each for each in sorted(in_force) if random.random() < 0.2]
        in_force = in_force - set(ended) | set(put)
        gone: dict[Name, int] = {
            (Kind.SESSION, name): GONE for name in SESSIONS if name in directory.groups[0] and random.random() < 0.2
        }
        groups: dict[Name, int] = {
            (Kind.SESSION, name): random.randrange(OF) for name in SESSIONS if random.random() < 0.4
        }
        groups |= gone
        known = [name for name in SESSIONS if (Kind.SESSION, name) not in gone]
        pairs = [(session, device) for session in known for device in DEVICES if random.random() < 0.2]
        changes = DirectoryChanges(
            _subscriptions(put, random),
            ended,
            groups,
            [(Kind.DEVICE, device, session) for session, device in pairs],
            {pair: random.random() < 0.7 for pair in pairs},
            _places(random, seq),
            random.choice([directory.seen, Seen.BODIES]),
        )
        directory.change(changes, seq)
        again = Directory("n", folder, directory.name)
        assert again.in_force.seqs().tolist() == directory.in_force.seqs().tolist() == sorted(in_force)
        assert again.links() == directory.links()
        assert {*again.members().column("device").to_pylist()} == {*directory.members().column("device").to_pylist()}
        assert again.places.sort_by("device").to_pylist() == directory.places.sort_by("device").to_pylist()
        assert again.seen is directory.seen
        directory.begin()
        assert again.groups == directory.groups


@given(st.integers(0, 1 << 32))
def test_what_is_linked_is_in_one_group_and_nothing_moves_without_need(seed: int) -> None:
    """Over many batches, the groups are always closed under all links; a name moves only if two groups were joined."""
    random = Random(seed)
    known: dict[int, dict[str, int]] = {kind: {} for kind in Kind}
    older: dict[str, set[tuple[int, str]]] = {}
    for _ in range(random.randint(1, 15)):
        links = [
            (Kind.DEVICE, random.choice(DEVICES), random.choice(SESSIONS)) for _ in range(random.choice([0, 0, 1, 2]))
        ]
        names = {(Kind.SESSION, name) for name in SESSIONS if random.random() < 0.2}
        is_joined = False
        try:
            made = assign(known, names, links, of=OF)
        except OlderLinksError:
            is_joined = True
            made = assign(known, names, links, of=OF, older=older)
        assert bool(made.moved) <= is_joined
        assert all(known[kind][name] == group for (kind, name), group in made.moved.items())
        for (kind, name), group in made.groups.items():
            known[kind][name] = group
        for kind, device, session in links:
            older.setdefault(session, set()).add((kind, device))
        for session, others in older.items():
            assert {known[kind][name] for kind, name in others} == {known[Kind.SESSION][session]}
        assert {name for kind, name in names} <= known[Kind.SESSION].keys()


def test_what_two_groups_know_of_one_notification_is_joined() -> None:
    """A policy's result for a device of one group is not lost when the group's sessions move to another."""
    known = [b"hash", 5, "a/b", None]
    content = [b"attributes", 3, None, None]
    one: Rows = {("notification", 7): cbor2.dumps([*known, content, {"d1": b"x"}])}
    other: Rows = {("notification", 7): cbor2.dumps([*known, content, {"d2": b"y"}, {"d2": "differs"}])}
    both = cbor2.loads(join_rows([one, other])["notification", 7])
    assert both == [*known, content, {"d1": b"x", "d2": b"y"}, {"d2": "differs"}]
    one = {("copy", 7): cbor2.dumps([["d1"], {"d1": 1}, 1, None])}
    other = {("copy", 7): cbor2.dumps([["d2"], {"d2": 0}, 1, None])}
    assert cbor2.loads(join_rows([one, other])["copy", 7]) == [["d1", "d2"], {"d1": 1, "d2": 0}, 1, None]


def test_a_row_has_only_what_concerns_its_group() -> None:
    """What a policy made for a device of another group is left out, because it would become outdated."""
    content = [b"attributes", 3, None, None]
    notification = cbor2.dumps([b"hash", 5, "a/b", None, content, {"d1": b"x", "d2": b"y"}])
    rows: Rows = {
        ("pending", "s1", 7): b"",
        ("notification", 7): notification,
        ("copy", 7): cbor2.dumps([["d1"], {}, 1, None, 5, {"$share/g/a": [["s1", [""]]], "$share/h/a": []}]),
    }
    states = GroupStates(Path(tempfile.mkdtemp()), 2, None)
    own = {(Kind.SESSION, "s1"), (Kind.DEVICE, "d1"), (Kind.SHARE, "$share/g/a")}
    states.divide(rows, lambda kind, name: 0 if (kind, name) in own else 1, 9)
    found = states.rows(0)
    assert cbor2.loads(found["notification", 7])[5] == {"d1": b"x"}
    assert cbor2.loads(found["copy", 7])[5] == {"$share/g/a": [["s1", [""]]]}


def test_rows_of_an_older_format_are_upgraded_once() -> None:
    """The rows of groups are written after the upgrade; they must not look old again."""
    rows, is_old = upgrade("n", [(("log mark",), cbor2.dumps([None, None, 3])), (("time",), cbor2.dumps(5))])
    assert is_old
    assert upgrade("n", rows) == (rows, False)
