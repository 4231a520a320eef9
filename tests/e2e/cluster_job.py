"""What ``test_cluster`` submits: random logs through a cluster, compared with one process; prints one line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "differential"))

from pyspark.sql import DataFrame
from random_logs import random_log
from test_pipeline_tables import RETENTION, _deliveries, _matches, _tables

from whimbrel.pipeline.single import SingleProcess
from whimbrel.pipeline.spark.spark_session import local_session
from whimbrel.pipeline.tables.deliveries import deliveries
from whimbrel.pipeline.tables.matches import matches


def main(master: str) -> None:
    """Run both ways."""
    random = Random(1)
    facts = [fact for log in range(2) for fact in random_log(random, f"node{log}", facts=300, has_receipts=False)]
    wanted = SingleProcess(retention=RETENTION).run(facts)
    spark = local_session(master=master, memory="1g", partitions=2)
    log = _tables(spark, facts)
    assert isinstance(log.publications, DataFrame)
    publications = log.publications.repartition(2)
    found_matches = _matches(matches(publications, log.interests, log.sessions))
    found = _deliveries(deliveries(log, retention=RETENTION, assume_receipts=True, groups=2))
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    result = {
        "executors": executors,
        "matches": len(found_matches),
        "wanted_matches": len(wanted.matches),
        "deliveries": len(found),
        "wanted_deliveries": len(wanted.deliveries),
        "differences": len(set(found) ^ set(wanted.deliveries)) + len(set(found_matches) ^ set(wanted.matches)),
    }
    spark.stop()
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
