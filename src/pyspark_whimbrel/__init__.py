"""The place where Spark finds the format ``whimbrel``: a module whose name begins with "pyspark_".

Rule: this module imports only pyspark. Spark imports it for the first Python data source of any program, also where
Whimbrel's other requirements are missing; an error here would end that program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from whimbrel.pipeline.spark.source import WhimbrelSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The format ``whimbrel``, which is loaded when it is used."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "whimbrel"

    def _source(self) -> WhimbrelSource:
        from whimbrel.pipeline.spark.source import WhimbrelSource

        return WhimbrelSource(self.options)

    def schema(self) -> StructType:
        """Return the schema of the table that the options name."""
        return self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return self._source().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 # Spark's name
        """Return the reader of a streaming query."""
        return self._source().streamReader(schema)
