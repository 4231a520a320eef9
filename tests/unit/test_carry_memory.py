"""A node's memory survives its restart: the same address, copies and marks, whatever happened to the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from whimbrel.carry.hello import Entry, Hello, Sample, SampleId
from whimbrel.carry.memory import DamagedMemoryError, Memory, memory_of, read_memory, write_memory
from whimbrel.carry.node import Carrier, Drop, Loss, StoreSample
from whimbrel.carry.sight import Sight

ADDRESS = 0xFEDC_BA98_7654_3210


def a_sample(topic: int, at: int) -> Sample:
    """Return a sample with all that a sample may have."""
    return Sample(
        topic=topic, published_at=at, publisher=9, body=b"b" * 100, expires_at=at + 1_000, signature=bytes(64)
    )


def a_node() -> Carrier:
    """Return a node with three copies, of which a newer sample makes one removable, and with one retrieved."""
    node = Carrier(ADDRESS, subscriptions=[3], sight=Sight.PROVISIONAL)
    for topic, at in ((1, 100), (1, 150), (2, 200), (3, 300)):
        node.publish(a_sample(topic, at), copies=topic + 4)
    return node


def restarted(node: Carrier, folder: Path, *, places: int = 10) -> Carrier:
    """Return a new node with the memory that *node* wrote."""
    write_memory(folder / "memory", memory_of(node))
    memory = read_memory(folder / "memory")
    assert memory is not None
    fresh = Carrier(memory.address, subscriptions=node.subscriptions, sight=node.sight, places=places)
    fresh.restore(memory.stored, memory.retrieved)
    return fresh


def test_a_restarted_node_says_the_same_hello(tmp_path: Path) -> None:
    """Its neighbours notice nothing; its application knows what it has."""
    node = a_node()
    fresh = restarted(node, tmp_path)
    assert (fresh.address, fresh.stored, fresh.hello()) == (ADDRESS, node.stored, node.hello())
    assert [copy.is_removable for copy in fresh.stored] == [True, False, False, False]
    assert fresh.retrieved(3) == a_sample(3, 300)


def test_a_restarted_node_publishes_with_a_newer_id_than_before(tmp_path: Path) -> None:
    """Its clock may begin in 1970; id = max(clock, newest known + 1) (C5)."""
    [step] = restarted(a_node(), tmp_path).publish(a_sample(3, 0), copies=1)
    assert isinstance(step, StoreSample)
    assert step.sample.published_at == 301


def test_a_mark_without_a_proof_is_undone_by_a_restart(tmp_path: Path) -> None:
    """Nobody is asked for the proof any more."""
    node = a_node()
    node.receive(5, Hello((Entry(2, SampleId(900, 5), has_copies=False),)))
    assert [copy.is_removable for copy in node.stored] == [True, False, True, False]
    assert [copy.is_removable for copy in restarted(node, tmp_path).stored] == [True, False, False, False]


def test_a_node_with_fewer_places_than_before_drops_what_is_removable_first(tmp_path: Path) -> None:
    """What is lost is told, as always."""
    node = a_node()
    memory = memory_of(node)
    fresh = Carrier(ADDRESS, places=2)
    assert fresh.restore(memory.stored, memory.retrieved) == [
        Drop(a_sample(1, 100), 5, Loss.REPLACED),
        Drop(a_sample(1, 150), 5, Loss.DISPLACED),
    ]
    assert [copy.sample.topic for copy in restarted(node, tmp_path, places=2).stored] == [2, 3]


def test_a_node_without_a_file_is_new(tmp_path: Path) -> None:
    """The first start."""
    assert read_memory(tmp_path / "memory") is None


def test_any_damage_is_one_sentence(tmp_path: Path) -> None:
    """A file that was cut or changed anywhere is refused; half a memory would make copies that do not exist."""
    path = tmp_path / "memory"
    write_memory(path, replace(memory_of(a_node()), retrieved=()))
    whole = path.read_bytes()
    damaged = [whole[:end] for end in range(0, len(whole), 7)]
    damaged += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 7)]
    for data in [*damaged, b"", b"{}"]:
        path.write_bytes(data)
        with pytest.raises(DamagedMemoryError, match="is not the memory of a node"):
            read_memory(path)
    path.write_bytes(whole)
    memory = read_memory(path)
    assert memory is not None
    assert memory.address == ADDRESS


def test_a_memory_of_nothing_keeps_the_address(tmp_path: Path) -> None:
    """A node that carried nothing is the same node after a restart."""
    write_memory(tmp_path / "memory", Memory(address=7))
    assert read_memory(tmp_path / "memory") == Memory(address=7)
