"""Subjects whose words are made alike are admitted by the same filters."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.hold.private import asked_for
from whimbrel.match.topics import matches
from whimbrel.pipeline.subscriptions.subject_words import SubjectWords

WORDS = st.sampled_from(["a", "b", "car", "7", "other", "other-", "$SYS", "é", ""])
SUBJECTS = st.lists(WORDS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.one_of(
    st.none(),
    st.sampled_from(["#", "+", "car/+", "car/#", "+/7", "$share/g/car/+", "$SYS/#", "other/+", "a//b", "+/+/b"]),
)


@given(filters=st.lists(FILTERS, max_size=4), subjects=st.lists(st.one_of(st.none(), SUBJECTS), max_size=6))
def test_the_same_filters_admit_a_subject_whose_words_are_alike(
    filters: list[str | None], subjects: list[str | None]
) -> None:
    """Only words that no filter names may differ."""
    found = SubjectWords(filters).plain(pa.array(subjects, pa.string())).to_pylist()
    for subject, plain in zip(subjects, found, strict=True):
        assert (subject is None) == (plain is None)
        for wanted in (asked_for(each) for each in filters if each is not None):
            if subject is not None and wanted is not None:
                assert matches(wanted, subject) == matches(wanted, plain)


def test_a_fleet_has_few_subjects() -> None:
    """However many cars there are."""
    subjects = pa.array([f"car/{number}" for number in range(1_000)] + ["light/7"], pa.string())
    assert set(SubjectWords(["car/+", "light/7"]).plain(subjects).to_pylist()) == {"car/other", "car/7", "light/7"}
