"""Expressions of Debezium's Filter and ContentBasedRouter: what is understood, and that nothing else is."""

from __future__ import annotations

import random
from typing import Any

import pytest
from connector.connect_values import random_envelope

from helenus_connector.transforms._expressions import compile_expression
from helenus_connector.transforms.catalog import CLASSES
from helenus_connector.transforms.contract import TransformError

VALUES: dict[str, Any] = {
    "key": {"k": 7},
    "value": {
        "op": "u",
        "before": None,
        "after": {"id": 7, "name": "It's", "price": 1.5, "tags": ["a", "b"], "is_on": True, "none": None},
        "source": {"table": "orders"},
    },
    "topic": "data-shop.orders",
    "keySchema": None,
    "valueSchema": {"name": "shop.orders.Envelope", "type": "struct", "version": 2},
    "header": {"op": {"value": "d"}},
}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("value.op == 'u'", True),
        ('value.op == "u"', True),
        ("value.op === 'u' && value.after.id > 6", True),
        ("value.op != 'u' || !(value.after.id >= 8)", True),
        ("!value.after.is_on", False),
        ("value.after.id == '7'", False),
        ("value.after.is_on == 1", False),
        ("value.after.price < 2 && value.after.price > -1", True),
        ("value.before == null", True),
        ("value.before?.id == 7", False),
        ("value?.after?.id", 7),
        ("value.after.none < 5", False),
        ("value.op in ['c', 'u']", True),
        ("value.after.name == 'It\\'s'", True),
        ("value['op'] + '-' + value.after['id']", "u-7"),
        ("value.after.tags[1]", "b"),
        ("value.after.tags.contains('a')", True),
        ("topic.startsWith('data-') ? 'x' : null", "x"),
        ("value.after.none ?: 'default'", "default"),
        ("topic ==~ 'data-.*'", True),
        ("topic =~ 'shop'", True),
        ("topic ==~ 'shop'", False),
        ("value.getStruct('after').getString('name').toUpperCase()", "IT'S"),
        ("value.get('nope') == null", True),
        ("valueSchema.name == 'shop.orders.Envelope' && valueSchema.name().endsWith('Envelope')", True),
        ("header.op.value == 'd'", True),
        ("header['nope'] == null", True),
        ("key.k - 2 + 1", 6),
    ],
)
def test_what_is_understood(text: str, result: object) -> None:
    assert compile_expression(text)(VALUES) == result


@pytest.mark.parametrize(
    "text",
    [
        *("", "value.", "value.op ==", "(value.op", "value.op = 'u'", "import os", "__import__('os')", "value.op; 1"),
        *("value.op.getClass()", "System.exit(0)", "value.after.name.format(value)", "'a' 'b'", "f'x'", "value.op = 1"),
        *("new File('x')", "value.each { it }", "x == 1", "(" * 60 + "1" + ")" * 60, "1 " * 6000),
    ],
)
def test_what_is_not(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        compile_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "value.before.id == 1",
        "value.nope == 1",
        "value.op > 1",
        "value.after + 1",
        "value.op in 'u'",
        "value.op.size(1)",
    ],
)
def test_what_fails(text: str) -> None:
    with pytest.raises(TransformError):
        compile_expression(text)(VALUES)


def test_names_of_python_are_no_fields() -> None:
    for text in ("value.__class__", "value.op.__class__", "topic.__len__", "value['__class__'].x"):
        with pytest.raises(TransformError):
            compile_expression(text)(VALUES)


def test_filter_and_router() -> None:
    rng = random.Random(1)
    records = [random_envelope(rng, has_defaults=True) for _ in range(60)]
    common = {"topic.regex": "data-ks\\.t", "language": "jsr223.groovy", "null.handling.mode": "keep"}
    conditional = CLASSES["io.debezium.transforms.Filter"].make(
        {**common, "condition": "value.op == 'c' || value.op == 'r'"}
    )
    routed = CLASSES["io.debezium.transforms.ContentBasedRouter"].make(
        {**common, "topic.expression": "value.op == 'd' ? 'gone-' + value.source.table : null"}
    )
    for record in records:
        applies = record.topic == "data-ks.t" and record.value is not None
        is_dropped = applies and record.value["op"] in "ud"
        assert conditional.apply(record) == (None if is_dropped else record)
        topic = f"gone-{record.value['source']['table']}" if applies and record.value["op"] == "d" else record.topic
        assert routed.apply(record).topic == topic


def test_records_without_a_value() -> None:
    rng = random.Random(2)
    records = (random_envelope(rng, has_defaults=True) for _ in range(60))
    tombstone = next(record for record in records if record.value is None)
    for mode, result in (("keep", tombstone), ("drop", None), ("evaluate", None)):
        settings = {"topic.regex": "", "language": "jsr223.groovy", "null.handling.mode": mode}
        made = CLASSES["io.debezium.transforms.Filter"].make({**settings, "condition": "value != null"})
        assert made.apply(tombstone) == result
