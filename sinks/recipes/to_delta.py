"""A Delta table as a data topic: python to_delta.py BROKERS REGISTRY TOPIC URI [--once]

Needs deltalake, and what batches.py needs. URI is a directory, or s3://, abfss://, gs:// with deltalake's own settings.
"""

from __future__ import annotations

import sys

from batches import Batch, follow
from deltalake import DeltaTable


def store(uri: str, batch: Batch) -> None:
    """Merge a batch: one commit for its deletes, one for its rows."""
    table = DeltaTable.create(uri, batch.rows.schema, mode="ignore")
    equal = " AND ".join(f't."{name}" = s."{name}"' for name in batch.key)

    def merge(source: object) -> object:
        return table.merge(source, equal, source_alias="s", target_alias="t", merge_schema=True)

    if len(batch.deleted):
        merge(batch.deleted).when_matched_delete().execute()  # type: ignore[attr-defined]
    if len(batch.rows):
        merge(batch.rows).when_matched_update_all().when_not_matched_insert_all().execute()  # type: ignore[attr-defined]


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    brokers, registry, topic, uri = sys.argv[1:5]
    for batch in follow(brokers, registry, topic, f"delta-{topic}", ends="--once" in sys.argv):
        store(uri, batch)
        batch.commit()
        print(f"{len(batch.rows)} rows, {len(batch.deleted)} deletes", flush=True)
