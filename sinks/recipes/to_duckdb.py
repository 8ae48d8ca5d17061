"""A table of DuckDB as a data topic: python to_duckdb.py BROKERS REGISTRY TOPIC FILE TABLE [--once]

Needs duckdb, and what batches.py needs.
"""

from __future__ import annotations

import sys

import duckdb
from batches import Batch, follow


def store(db: duckdb.DuckDBPyConnection, table: str, batch: Batch) -> None:
    """Delete what is deleted or comes again, and insert what is there: in one transaction."""
    keys = batch.rows.select(batch.key)
    for name, arrow in (("new_rows", batch.rows), ("new_keys", keys), ("deleted", batch.deleted)):
        db.register(name, arrow)
    db.execute("BEGIN")
    db.execute(f"CREATE TABLE IF NOT EXISTS {table} AS SELECT * FROM new_rows LIMIT 0")
    there = {name for name, *_ in db.execute(f"DESCRIBE {table}").fetchall()}
    for name, of_type, *_ in db.execute("DESCRIBE new_rows").fetchall():
        if name not in there:  # ALTER TABLE … ADD
            db.execute(f'ALTER TABLE {table} ADD COLUMN "{name}" {of_type}')
    equal = " AND ".join(f'{table}."{name}" = gone."{name}"' for name in batch.key)
    for gone in ("deleted", "new_keys"):
        db.execute(f"DELETE FROM {table} USING {gone} AS gone WHERE {equal}")
    db.execute(f"INSERT INTO {table} BY NAME SELECT * FROM new_rows")
    db.execute("COMMIT")


if __name__ == "__main__":
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    brokers, registry, topic, file, table = sys.argv[1:6]
    with duckdb.connect(file) as db:
        for batch in follow(brokers, registry, topic, f"duckdb-{table}", ends="--once" in sys.argv):
            store(db, table, batch)
            batch.commit()
            print(f"{len(batch.rows)} rows, {len(batch.deleted)} deletes", flush=True)
