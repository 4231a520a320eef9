"""What ``test_cluster`` submits: random logs through a cluster, compared with one process; prints one line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "differential"))
sys.path.insert(0, str(Path(__file__).parents[1] / "reference"))

from log_rows import deliveries_in, matches_in, write_facts
from random_logs import random_log
from single_process import SingleProcess

from whimbrel.hold.retention import Retention
from whimbrel.pipeline.batch.jobs import Plan, run
from whimbrel.pipeline.files.delta import read
from whimbrel.pipeline.spark.spark_session import local_session

RETENTION = Retention(ttl_us=30, max_held=3)


def main(master: str, folder: Path) -> None:
    """Run both ways."""
    random = Random(1)
    facts = [fact for log in range(2) for fact in random_log(random, f"node{log}", facts=300, has_receipts=False)]
    wanted = SingleProcess(retention=RETENTION).run(facts)
    spark = local_session(master=master, memory="1g", partitions=2)
    write_facts(folder / "log", facts)
    plan = Plan(retention=RETENTION, assume_receipts=True)
    run(spark, log=folder / "log", out=folder / "mapped", tables=["matches"], plan=plan)
    run(spark, log=folder / "log", out=folder / "folded", tables=["deliveries"], plan=plan)
    found_matches = matches_in(read(folder / "mapped", "matches"))
    found = deliveries_in(read(folder / "folded", "deliveries"))
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
    main(sys.argv[1], Path(sys.argv[2]))
