"""Spark's schemas of the tables, made from the neutral schemas in ``model.tables``.

Rule: ``model.tables`` is the only definition. Types and nullability stay the same, and descriptions become comments of
the columns. So ``DESCRIBE`` in any catalogue shows the text of our documents.
"""

from __future__ import annotations

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from whimbrel.errors import InvalidValueError
from whimbrel.model.columns import LOG_SPECS
from whimbrel.model.tables import TABLES, Table

__all__ = ["SCHEMAS", "TIMES", "log_table", "spark_schema"]

TIMES = {name: spec.columns[2].name for name, spec in LOG_SPECS.items()}
"""Name of the column with the time when the node accepted the fact, per table of the log."""


def spark_schema(table: str) -> StructType:
    """Return Spark's schema of *table*, with the descriptions as comments."""
    arrow = TABLES[table].schema
    # pyspark drops Arrow's metadata except its own, so the comments are added here.
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
"""Spark's schemas of all tables, by name."""


def log_table(name: str) -> Table:
    """Return the table *name* of the log, or raise ``InvalidValueError`` with the names of all tables."""
    table = TABLES.get(name)
    if table is None or not table.is_log:
        raise InvalidValueError("table of the log", name, ", ".join(TIMES))
    return table
