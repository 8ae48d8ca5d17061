"""The schemas that a connector's records have now, for a registry that is filled by somebody else."""

from __future__ import annotations

import json
from collections.abc import Iterator

from helenus_connector.config import ConnectorSettings
from helenus_connector.shape import schemas, shown
from helenus_schemas import avro
from helenus_schemas.cassandra import connect
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.table import read_tables


def subjects(settings: ConnectorSettings) -> Iterator[str]:
    """JSON objects of `subject` and `schema` by table: of its keys, of its values, of the markers of TRUNCATE.

    Raises HelenusError: as `connect`, TABLE_MISSING, TABLE_UNSUPPORTED.
    """
    session = connect(settings)
    try:
        tables = {t.name: t for t in read_tables(session, settings.keyspace).values()}
    finally:
        session.cluster.shutdown()
    matching = sorted(name for name, table in tables.items() if table.cdc and settings.matches(name))
    for name in dict.fromkeys([*settings.tables, *matching]):
        if name not in tables:
            raise HelenusError(Kind.TABLE_MISSING, "there is no such table", f"{settings.keyspace}.{name}")
        one = settings.of_table(name)
        key, value = schemas(shown(tables[name], one), one)
        for part, schema in (("key", key), ("value", value), ("truncation", avro.TRUNCATION)):
            yield json.dumps({"subject": f"{one.data}-{part}", "schema": schema})
