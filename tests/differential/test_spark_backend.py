"""The Spark backend against the reference: one tree, one verdict, absent attributes included."""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows
from strategies import attributes, trees

import whimbrel.language
from whimbrel.language.ast import (
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Equals,
    Literal,
    Name,
    Or,
    Predicate,
    Unary,
    UnaryOp,
    Value,
)
from whimbrel.language.backends.python import compile_filter, compile_value
from whimbrel.language.backends.spark import _pack, _Program, _Translator, attribute_of_map, to_column
from whimbrel.language.filters import parse
from whimbrel.language.vectors import BACKENDS, failures, read_vectors
from whimbrel.model.attributes import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, Attributes, Int64, Scalar
from whimbrel.model.tables import ATTRIBUTES_TYPE, attributes_to_column_value

LANGUAGE = Path(whimbrel.language.__file__).parent
TESTS = Path(__file__).parents[1]
OURS = TESTS / "unit" / "vectors.jsonl"
SHARED = TESTS.parents[1] / "shared" / "data" / "elvin-vectors.jsonl"

COMMAND = str(Path(sys.executable).with_name("whimbrel"))

A, B = Name("a"), Name("b")
EDGES: Sequence[Scalar] = (
    *(0, 1, -1, 5, 31, 33, -33, INT32_MAX, INT32_MIN),
    *map(Int64, (0, -1, 7, 65, 2**53 + 1, 2**32, INT64_MAX, INT64_MAX - 1, INT64_MIN, INT64_MIN + 1)),
    *(0.0, -0.0, 1.5, -2.0, 5e-324, 2.0**53, 1e308, float("inf"), float("-inf"), float("nan")),
    *("", "a", "B", b"", b"a"),
)
PAIRS: Sequence[Attributes] = [{"a": a, "b": b} for a in EDGES for b in EDGES]

Form: TypeAlias = Callable[[Value, Column], Column]
Run: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=[(), ("ansi",), ("ansi", "interpreted")], ids=lambda words: "-".join(words) or "legacy")
def engine(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Yield Spark as it may be set up: where one mode raises another answers NULL, and none of it may show."""
    is_interpreted = "interpreted" in request.param  # as Spark falls back to where its generated code is too large
    conf = {
        "spark.sql.ansi.enabled": str("ansi" in request.param).lower(),
        "spark.sql.codegen.wholeStage": str(not is_interpreted).lower(),
        "spark.sql.codegen.factoryMode": "NO_CODEGEN" if is_interpreted else "CODEGEN_ONLY",
    }
    for key, value in conf.items():
        spark.conf.set(key, value)
    yield spark
    for key in conf:
        spark.conf.unset(key)


def table(spark: SparkSession, events: Sequence[Attributes]) -> DataFrame:
    """Return the events as a column of attributes."""
    column = pa.array([attributes_to_column_value(event) for event in events], ATTRIBUTES_TYPE)
    return spark.createDataFrame(pa.table({"attributes": column}))


def disagreements(spark: SparkSession, batch: Sequence[Predicate], events: Sequence[Attributes]) -> list[str]:
    """Decide every tree on every event in one job; return where Spark differs from the reference."""
    rows = table(spark, events).select(*(to_column(tree, F.col("attributes")) for tree in batch)).collect()
    return [
        f"{tree} on {event}: spark says {got}, the reference {want}"
        for event, row in zip(events, rows, strict=True)
        for tree, got in zip(batch, row, strict=True)
        if got is not (want := compile_filter(tree)(event))
    ]


def written_out(node: Value, column: Column) -> Column:
    """Return the value of *node* from an expression that mentions its operands as often as it needs them."""
    value = _Translator(partial(attribute_of_map, column))._value(node)
    assert value is not None
    return _pack(value)


def as_a_program(node: Value, column: Column) -> Column:
    """Return the value of *node* from a program."""
    program = _Program(_Translator(partial(attribute_of_map, column))._value)
    program.append(node)
    return program.run(lambda stack: F.get(stack, F.lit(0)))


def is_same(number: Row | None, value: Scalar | None) -> bool:
    """Tell whether Spark's *number* is *value*: the type, the sign of zero and NaN included."""
    if number is None or number["int"] is None:
        found = number and number["real"]
    else:
        found = Int64(number["int"]) if number["is_wide"] else number["int"]
    return type(found) is type(value) and repr(found) == repr(value)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command far away from the repository, and from our own environment where it says so."""

    def done(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | environment
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)

    return done


@pytest.mark.parametrize("path", [OURS, SHARED], ids=["ours", "elvin"])
def test_the_vectors_pass(engine: SparkSession, path: Path) -> None:
    """The corners that somebody thought of."""
    del engine  # the backend takes the active session
    if not path.exists():
        pytest.skip("the vectors checked against an Elvin router are not on this machine")
    with path.open("rb") as lines:
        assert failures(list(read_vectors(lines, source=path.name)), BACKENDS["spark"]) == []


@settings(
    max_examples=2,
    phases=[Phase.generate],  # a failure names the tree and the event; shrinking would be one job a step
    suppress_health_check=list(HealthCheck),  # an example is 1,600 verdicts: large and slow on purpose
)
@given(
    batch=st.lists(trees(), min_size=40, max_size=40),
    events=st.lists(attributes(), min_size=40, max_size=40),
)
def test_spark_agrees_with_the_reference(
    engine: SparkSession, batch: list[Predicate], events: list[Attributes]
) -> None:
    """The corners that nobody thought of."""
    assert disagreements(engine, batch, events) == []


def test_comparisons_agree_on_every_pair_of_edges(engine: SparkSession) -> None:
    """NaN, the two zeros and the loss of promotion live where edges meet, and random values rarely get there."""
    assert disagreements(engine, [Compare(op, A, B) for op in CompareOp], PAIRS) == []


def test_comparisons_with_literals_agree_on_the_edges(engine: SparkSession) -> None:
    """What is known of a literal prunes the expression; it must not prune the meaning."""
    edges = [edge for edge in EDGES if not isinstance(edge, bytes) and edge not in {math.inf, -math.inf}]
    literals = [Literal(edge) for edge in edges if edge == edge]  # noqa: PLR0124 # NaN is no literal
    batch = [Compare(op, A, literal) for op in (CompareOp.EQ, CompareOp.LE) for literal in literals]
    assert disagreements(engine, batch, [{}, *({"a": edge} for edge in EDGES)]) == []


@pytest.mark.parametrize("form", [written_out, as_a_program])
def test_arithmetic_agrees_on_every_pair_of_edges(engine: SparkSession, form: Form) -> None:
    """The value itself, not only what comparisons show of it; in both forms that arithmetic can take."""
    terms: list[Value] = [*(Binary(op, A, B) for op in BinaryOp), *(Unary(op, A) for op in UnaryOp)]
    rows = table(engine, PAIRS).select(*(form(term, F.col("attributes")) for term in terms)).collect()
    wrong = [
        (term, pair, number, want)
        for pair, row in zip(PAIRS, rows, strict=True)
        for term, number in zip(terms, row, strict=True)
        if not is_same(number, want := compile_value(term)(pair))
    ]
    assert wrong == []


def test_a_row_without_attributes_has_none_of_any_name(engine: SparkSession) -> None:
    """A log written by others may hold NULL for the whole column."""
    texts = ["a == 1", "!require(a)", "fold-case(a) == 'x'", "a * a * a * a * a * a > 1", "nan(a)", "size(a) > 1"]
    frame = table(engine, [{}])
    nothing = F.lit(None).cast(frame.schema["attributes"].dataType)
    assert list(frame.select(*(to_column(parse(text), nothing) for text in texts)).collect()[0]) == [None] * 6


def test_deep_arithmetic_compiles_and_runs(spark: SparkSession) -> None:
    """The language allows 64 levels; written out they would be more terms than there are atoms."""
    ops = [op for op in BinaryOp if op is not BinaryOp.SHIFT_RIGHT_LOGICAL]  # which would leave a zero after a while
    leaves: list[Value] = [A, B, Literal(3), Literal(Int64(-7)), Literal(1)]
    left_deep: Value = Unary(UnaryOp.NEGATE, A)
    right_deep: Value = Unary(UnaryOp.INVERT, A)
    real: Value = A
    for level in range(63):
        left_deep = Binary(ops[level % 10], left_deep, leaves[level % 5])
        right_deep = Binary(ops[level % 3], leaves[level % 4], right_deep)
        real = Binary(ops[level % 5], real, Literal(level + 1.5))
    batch: list[Predicate] = [Compare(CompareOp.LE, left_deep, right_deep), Compare(CompareOp.GT, B, real)]
    batch.append(Equals(left_deep, (A, right_deep, Literal("x"), real)))
    assert disagreements(spark, batch, PAIRS[::7]) == []


def test_a_long_disjunction_compiles_and_runs(spark: SparkSession) -> None:
    """People paste lists into filters."""
    terms = [Compare(CompareOp.EQ, A, Literal(f"user{n}" if n % 2 else n)) for n in range(500)]
    events: list[Attributes] = [{"a": "user499"}, {"a": "user500"}, {"a": 498}, {"a": 0.5}, {}]
    assert disagreements(spark, [Or(tuple(terms))], events) == []


def test_only_the_spark_backend_imports_pyspark() -> None:
    """A filter must not cost a Java."""
    importers = set()
    for path in LANGUAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            importers |= {path.relative_to(LANGUAGE).as_posix() for name in names if name.split(".")[0] == "pyspark"}
    assert importers == {"backends/spark.py"}


def test_importing_the_language_does_not_import_pyspark() -> None:
    """Not even by way of the vectors, which know the backend by name."""
    code = "import sys, whimbrel.language, whimbrel.language.vectors; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_pyspark_the_error_says_what_to_install(run: Run) -> None:
    """Spark is an extra; most installations lack it."""
    code = "import sys; sys.modules['pyspark'] = None; from whimbrel.cli import main; main()"
    done = run(sys.executable, "-c", code, "filter", "check", str(OURS), "--backend", "spark")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the spark backend needs pyspark")
    assert "pip install 'whimbrel[spark]'" in done.stderr


def test_without_java_the_error_says_what_to_install(run: Run, tmp_path: Path) -> None:
    """A pip install of pyspark does not bring a Java."""
    done = run(COMMAND, "filter", "check", str(OURS), "--backend", "spark", JAVA_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "Java 17 or newer" in done.stderr


def test_the_command_prints_the_result_and_nothing_else(run: Run, spark: SparkSession, tmp_path: Path) -> None:
    """Spark likes to talk; whoever reads our output by machine does not like it to."""
    del spark  # whose fixture found Java
    vectors = tmp_path / "vectors.jsonl"
    case = {"expr": "regex(a, '^b') || a + 1 == 1L", "attrs": {"a": {"t": "string", "v": "bc"}}, "expect": "true"}
    vectors.write_text(json.dumps(case), encoding="utf-8")
    done = run(COMMAND, "filter", "check", str(vectors), "--backend", "spark")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 passed, 0 failed\n", "")
