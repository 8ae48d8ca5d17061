"""The forms in which records and rows are compared: of one value all are the same."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from schemas.cqldata import cql_bytes, driver_type, types, values
from schemas.test_roundtrip import read, table

from helenus_schemas.avro import build as avro
from helenus_schemas.codec import to_json as jsonform
from helenus_schemas.codec.to_avro import optionals
from helenus_schemas.cql.types import CqlType
from helenus_stack.values import as_clustering, from_avro, from_driver, from_json

# The driver has other numbers for floats, no texts for dates, one of equal decimals in a set, and loses the entries of
# maps whose keys are sets that are not sorted its way.
_UNFIT = ("timestamp", "float", "date", "double", "decimal")


def _is_fit(t: CqlType, unfit: tuple[str, ...] = _UNFIT) -> bool:
    inner = (*unfit, "set", "map") if t.name == "map" else unfit
    return t.name not in unfit and all(_is_fit(a, inner) for a in t.args)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(types(depth=2).flatmap(lambda t: st.tuples(st.just(t), values(t))))
def test_avro_json_and_the_driver_agree(typed: tuple[CqlType, Any]) -> None:
    t, value = typed
    raw = cql_bytes(t, value)
    of_avro = from_avro(t, read(avro.value_schema(table(t)), optionals([t])([raw]))["c0"])
    assert hash(of_avro) == hash(from_json(t, json.loads(jsonform.encoder(t)(raw))))
    assert of_avro == from_json(t, json.loads(jsonform.encoder(t)(raw)))
    assume(_is_fit(t))
    assert of_avro == from_driver(t, driver_type(t).from_binary(raw, 4))


def test_equal_clustering_values_are_one() -> None:
    t = CqlType("decimal")
    assert as_clustering(t, (150, 2)) == as_clustering(t, (15, 1)) == (15, 1)
    assert as_clustering(t, (0, 5)) == as_clustering(t, (0, 0))
    assert as_clustering(CqlType("tuple", (t, t)), ((10, 0), None)) == ((1, -1), None)
