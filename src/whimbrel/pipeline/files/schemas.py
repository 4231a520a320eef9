"""Spark's schemas of the tables, made from the neutral ones in ``model.tables``.

Rule: one truth. Types and nullability are taken over as they are, descriptions become the comments of the columns,
so that ``DESCRIBE`` in any catalogue says what our documents say.
"""

from __future__ import annotations

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from whimbrel.errors import InvalidValueError
from whimbrel.model.columns import LOG_SPECS
from whimbrel.model.tables import TABLES, Table

__all__ = ["SCHEMAS", "TIMES", "log_table", "spark_schema"]

TIMES = {name: spec.columns[2].name for name, spec in LOG_SPECS.items()}
"""The column of each of the log's tables that says when the node accepted the fact."""


def spark_schema(table: str) -> StructType:
    """Return the schema of *table*, with the descriptions as comments."""
    arrow = TABLES[table].schema
    # pyspark keeps of Arrow's metadata only its own; the comments are put in by hand.
    return StructType(
        [
            StructField(
                made.name,
                made.dataType,
                nullable=made.nullable,
                metadata={"comment": arrow.field(made.name).metadata[b"description"].decode()},
            )
            for made in from_arrow_schema(arrow)
        ]
    )


SCHEMAS = {name: spark_schema(name) for name in TABLES}
"""All schemas by the name of their table."""


def log_table(name: str) -> Table:
    """Return the table *name* of the log, or raise ``InvalidValueError`` naming those that there are."""
    table = TABLES.get(name)
    if table is None or not table.is_log:
        raise InvalidValueError("table of the log", name, ", ".join(TIMES))
    return table
