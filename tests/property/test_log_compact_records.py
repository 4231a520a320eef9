"""A compact record says what the full one says, to every reader of the log."""

from __future__ import annotations

import json
import os
import random
from contextlib import suppress

import cbor2
import pytest
from compacted import as_it_came
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ordered import NODE, histories
from strategies import attributes, facts

from whimbrel.errors import InvalidValueError
from whimbrel.log.export import export
from whimbrel.log.reader import read, read_rows
from whimbrel.log.records import BODY, body_of, row_from, time_from
from whimbrel.log.stats import stats
from whimbrel.log.verification import verify
from whimbrel.log.writer import LogWriter
from whimbrel.model.attributes import FrozenAttributes
from whimbrel.model.codecs import attributes_of
from whimbrel.model.facts import Fact
from whimbrel.model.rows import fact_of, row_of


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses power, so nobody waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@given(fact=facts())
def test_a_compact_record_gives_the_row_of_the_full_one(fact: Fact) -> None:
    """Whoever reads must not see which it was."""
    made = as_it_came(fact)
    if made is not None:
        plain, body = made
        full, at = body_of(plain)
        seq, number = BODY.unpack_from(body)
        found = row_from(fact.node, seq, number, body[BODY.size :])
        assert found == row_from(fact.node, seq, BODY.unpack_from(full)[1], full[BODY.size :])
        assert found == row_of(plain)
        assert fact_of(*found) == plain
        assert time_from(number, body[BODY.size :]) == at


@given(number=st.sampled_from([7, 8, 12]), fact=facts(), data=st.data())
def test_any_compact_payload_is_a_row_or_our_error(number: int, fact: Fact, data: st.DataObject) -> None:
    """Cut anywhere, or with anything in its place."""
    _, body = as_it_came(fact) or (fact, bytes(30))
    payload = bytearray(body[BODY.size :])
    for at in data.draw(st.lists(st.integers(0, len(payload) - 1), max_size=3)):
        payload[at] = data.draw(st.integers(0, 255))
    with suppress(InvalidValueError):
        fact_of(*row_from("n", 1, number, bytes(payload[: data.draw(st.integers(0, len(payload)))])))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories(), which=st.randoms(use_true_random=False))
def test_all_readers_treat_them_as_their_tables(
    tmp_path_factory: pytest.TempPathFactory, history: list[Fact], which: random.Random
) -> None:
    """Reading, counting, exporting and verifying: a log of both kinds is one log."""
    directory, wanted = tmp_path_factory.mktemp("log"), []
    with LogWriter(directory, NODE, segment_bytes=300) as log:
        for fact in history:
            made = as_it_came(fact)
            if made is None or which.random() < 0.3:
                log.append(fact)
                wanted.append(fact)
            else:
                _, at = body_of(fact)
                assert log.append_body(made[1], at) == fact.seq
                wanted.append(made[0])
            if which.random() < 0.3:
                log.sync(wait=which.random() < 0.5)
    assert list(read(directory, NODE)) == wanted
    assert list(read_rows(directory, NODE)) == [row_of(fact) for fact in wanted]
    counted = {each.table: each.rows for each in stats(directory)}
    assert export(directory, NODE, closed_only=False).rows == len(wanted)
    assert {each.table: each.rows for each in stats(directory)} == counted
    assert verify(directory).problems == []


# -- attributes of bodies ----------------------------------------------------------------------------------------------


@given(body=st.binary(max_size=60), content_type=st.none() | st.sampled_from(["application/json", "application/cbor"]))
def test_any_body_has_attributes_or_none(body: bytes, content_type: str | None) -> None:
    """A publisher may send what it likes: a log that could not be read for it would be lost."""
    for start in (b"", b"{", b" {", b"\xa1", b"\xbf"):
        assert type(attributes_of(start + body, content_type=content_type)) is FrozenAttributes


@given(found=attributes(), pairs=st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=5))
def test_the_body_wins_over_properties(found: dict[str, object], pairs: list[tuple[str, str]]) -> None:
    """The form is found out from the body alone, and properties only add to it."""
    texts = {name: value for name, value in found.items() if isinstance(value, str)}
    added = {name: value for name, value in reversed(pairs) if name and name[0] != "\0"}
    for body in (b"\n " + json.dumps(texts).encode(), cbor2.dumps(texts)):
        assert attributes_of(body) == texts
        assert attributes_of(body, pairs) == {**added, **texts}
