"""A data topic as Parquet files, one for each batch: python to_parquet.py BROKERS REGISTRY TOPIC DIRECTORY [--once]

Each file has the batch's rows, and its deletes with `_deleted`, all with the number of the batch. The table as it is
now, in DuckDB's SQL:

    SELECT * FROM (FROM read_parquet('orders/*.parquet', union_by_name = true)
                   QUALIFY row_number() OVER (PARTITION BY customer, order_id ORDER BY _batch DESC) = 1)
    WHERE NOT _deleted

Needs what batches.py needs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from batches import Batch, follow


def store(directory: Path, batch: Batch) -> None:
    """Write a batch to a file that is there as a whole, or not."""
    number = time.time_ns()
    parts = []
    for table, is_deleted in ((batch.rows, False), (batch.deleted, True)):
        marked = table.append_column("_deleted", pa.array([is_deleted] * len(table), pa.bool_()))
        parts.append(marked.append_column("_batch", pa.array([number] * len(table), pa.int64())))
    file = directory / f"{number}.parquet"
    pq.write_table(pa.concat_tables(parts, promote_options="default"), file.with_suffix(".new"))
    file.with_suffix(".new").replace(file)


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    brokers, registry, topic, directory = sys.argv[1:5]
    Path(directory).mkdir(parents=True, exist_ok=True)
    for batch in follow(brokers, registry, topic, f"parquet-{topic}", ends="--once" in sys.argv):
        store(Path(directory), batch)
        batch.commit()
        print(f"{len(batch.rows)} rows, {len(batch.deleted)} deletes", flush=True)
