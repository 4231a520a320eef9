"""Random policies as text, with state and arrivals that speak of the same few names."""

from __future__ import annotations

from hypothesis import strategies as st
from strategies import scalars

from whimbrel.language.policies.values import Arrival, Run

NAMES = ("a", "b", "pulse")
VARIABLES = ("x", "Battery", "seen.p1")
_LITERALS = st.sampled_from(["0", "1", "-3", "2L", "0.5", "'p1'", "''", "true", "NULL", "2147483647"])
_OPERATORS = st.sampled_from("+ - * / % << >> >>> | ^ & == != < <= > >= && || ^^ and or".split())


def _atoms() -> st.SearchStrategy[str]:
    attribute = st.sampled_from(NAMES)
    return st.one_of(
        _LITERALS,
        st.sampled_from(["v", "w"]),
        st.builds("m.{}".format, attribute),
        st.builds("w.{}".format, attribute),
        st.sampled_from(["device.x", "device.Battery", "state.x", "getProperty('Battery')", "getProperty('x')"]),
        st.just("getTime()"),
    )


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    functions = st.sampled_from(["require", "int32", "real64", "string", "nan", "size", "fold-case", "isSeen", "g"])
    patterns = st.sampled_from(["begins-with", "contains", "regex", "wildcard"])
    return st.one_of(
        st.builds("({} {} {})".format, inner, _OPERATORS, inner),
        st.builds("(not {})".format, inner),
        st.builds("(-{})".format, inner),
        st.builds("({} == NULL)".format, inner),
        st.builds("{}({})".format, functions, inner),
        st.builds("{}({}, 'p', 'a')".format, patterns, inner),
        st.builds("equals({}, {}, 1)".format, inner, inner),
        st.builds("({} in device.seen)".format, inner),
    )


EXPRESSIONS = st.recursive(_atoms(), _larger, max_leaves=6)
MESSAGES = st.one_of(
    st.sampled_from(["m", "v", "w", "NULL", "createMessage()", "project(m, 'a')", "f(1)"]),
    st.builds("compress(m, {}, {}, {})".format, EXPRESSIONS, EXPRESSIONS, EXPRESSIONS),
    st.builds("summarise(m, {}, 'a', 'pulse')".format, EXPRESSIONS),
    st.builds("project(compress(w, {}, 1, 1, 'a'), 'b')".format, EXPRESSIONS),
)


def _simple() -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("v = {};".format, EXPRESSIONS),
        st.builds("w = {};".format, MESSAGES),
        st.builds("w.{} = {};".format, st.sampled_from(NAMES), EXPRESSIONS),
        st.builds("m.setPulse({});".format, EXPRESSIONS),
        st.builds("setData(w, {});".format, st.sampled_from(["getData(m)", "'text'", "getData(w)", "m.a"])),
        st.builds("state.x = {};".format, EXPRESSIONS),
        st.builds("setProperty('y', {});".format, EXPRESSIONS),
        st.sampled_from(["removeProperty('x');", "g(v);", ";", "summarise(w, 5, 'b');"]),
        st.builds("return {};".format, MESSAGES),
    )


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    block = st.lists(inner, max_size=3).map(" ".join)
    return st.one_of(
        st.builds("if ({}) {{ {} }} else {{ {} }}".format, EXPRESSIONS, block, block),
        st.builds("if ({}) {} endif".format, EXPRESSIONS, block),
        st.builds("if {} {{ {} }} else if {} {{ {} }}".format, EXPRESSIONS, block, EXPRESSIONS, block),
    )


BLOCKS = st.lists(st.recursive(_simple(), _nested, max_leaves=5), max_size=5).map(" ".join)


@st.composite
def policy_texts(draw: st.DrawFn) -> str:
    """Return texts most of which are policies: two functions, of which f calls g twice, and a few statements."""
    g = draw(EXPRESSIONS.filter(lambda text: "g(" not in text))
    f = draw(BLOCKS.filter(lambda text: "f(" not in text))
    functions = f"function g(v) {{ w = v; m = w; return {g}; }} function f(m) {{ v = g(m); w = g(v); {f} }}"
    return f"v = 1; w = m; {draw(BLOCKS)} {functions}"


@st.composite
def arrivals(draw: st.DrawFn) -> Run:
    """Return what a run begins with."""
    attributes = draw(st.dictionaries(st.sampled_from(NAMES), scalars()))
    automatic = draw(st.dictionaries(st.sampled_from(VARIABLES), scalars()))
    manual = draw(st.dictionaries(st.sampled_from(["x", "y", "summary:1:s", "summary:2:s"]), scalars()))
    arrival = Arrival(attributes=attributes, subject="s", body_bytes=draw(st.integers(0, 99)))
    return Run(arrival, automatic, manual, draw(st.integers(0, 10**12)))


def again(run: Run) -> Run:
    """Return what *run* began with."""
    return Run(run.arrival, run.automatic, run.manual, run.now)
