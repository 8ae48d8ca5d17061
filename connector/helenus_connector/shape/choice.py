"""Choose the shape of a connector's records: by `output.format`, and by whether JSON carries its schema."""

from __future__ import annotations

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.shape import Shape
from helenus_connector.shape._json_schemas import with_schemas
from helenus_connector.shape._transformed import LocalSchemas, TransformedShape, settings_without_transforms
from helenus_connector.shape.cep44.shape import Cep44
from helenus_connector.shape.debezium.cassandra import DebeziumCassandra
from helenus_connector.shape.debezium.envelope import Envelope
from helenus_connector.shape.encoding.registry import SchemaIds
from helenus_connector.shape.row.row import RowShape
from helenus_connector.shape.selection.selected_shape import with_selection
from helenus_schemas.cql.table import Table


def make_shape(
    table: Table, settings: ConnectorSettings, registry: SchemaIds | None, topic: str = "", cluster: str | None = None
) -> Shape:
    """Make the shape of a table's records, which are of what may leave alone. Registers their schemas, if there is a
    registry; those of transformed records later. Raises as `Registry.register`, and HelenusError TABLE_UNSUPPORTED, and
    CONFIG as `with_selection`. `topic` is the data topic, `cluster` the name of Cassandra's.
    """
    topic = topic or settings.data
    if settings.has_transforms:
        plain, schemas = settings_without_transforms(settings), LocalSchemas()
        untransformed = make_shape(table, plain, schemas, topic, cluster)
        return TransformedShape(untransformed, schemas, settings, registry, topic)
    subjects = settings.subject_prefix(topic)
    shape: Shape
    match settings.output_format:
        case "cep44":
            shape = Cep44(table, settings, registry, subjects)
        case "debezium-cassandra":
            shape = DebeziumCassandra(table, settings, registry, subjects, cluster)
        case "debezium":
            shape = Envelope(table, settings, registry, subjects, cluster)
        case _:
            shape = RowShape(table, settings, registry, subjects)
    return with_selection(with_schemas(shape, table, settings), table, settings)
