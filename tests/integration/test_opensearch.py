"""The recipe for OpenSearch, on a server: repeated and late batches, items that are refused, restarts, TLS and logins.
In `make test-long` on one of Elasticsearch too.

docs/test_recipe_stores.py has what all stores have in common, test_recipes.py the recipe with Cassandra's table.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import to_opensearch
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from docs.opensearch_node import LOGIN, OpenSearchNode, running_node
from docs.recipe_stores import TOPIC, Message, Publisher, bound
from patience import eventually
from records import Failure
from schemas.cqldata import cql_bytes
from settings import Notes, Settings
from to_opensearch import Index

from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import parse

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,  # docs/test_recipe_stores.py fills one
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the client's library
]
INT, TEXT, BIGINT = parse("int"), parse("text"), parse("bigint")
KEY = [Column("k", INT, "partition_key", 0), Column("c", INT, "clustering", 0)]
TABLE = [*KEY, Column("v", TEXT)]


@pytest.fixture(scope="module", params=["OpenSearchNode", pytest.param("ElasticsearchNode", marks=pytest.mark.long)])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearchNode]:
    with running_node(tmp_path_factory.mktemp("node"), program=request.param) as node:
        yield node


@pytest.fixture(autouse=True)
def _notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier test had said is said again."""
    monkeypatch.setattr(to_opensearch, "notes", Notes())


@pytest.fixture
def index(request: pytest.FixtureRequest) -> str:
    return str(request.node.originalname)


Open = Callable[[], AbstractContextManager[Index]]


@pytest.fixture
def opened(node: OpenSearchNode, index: str) -> Open:
    """Open the test's index, as a process that starts does."""
    return lambda: opened_at(node.url, index)


def opened_at(url: str, index: str, topic: str = TOPIC, once: bool = True, **options: str) -> Index:
    properties = {f"target.{name}": value for name, value in options.items()}
    return Index(Settings("b", "r", topic, [url, index], once, properties))


def fill(target: Index, publisher: Publisher, messages: Sequence[Message]) -> Any:
    """Store a batch, as `batches.run` does. Returns its change."""
    change = publisher.batch(messages).for_table(target)
    target.store(change)
    return change


def row(publisher: Publisher, k: int, c: int, v: str | None) -> Message:
    raw = None if v is None else [cql_bytes(TEXT, v)]
    return publisher.row(k % 2, [cql_bytes(INT, k), cql_bytes(INT, c)], raw)


def test_repeated_and_late_batches_change_nothing(node: OpenSearchNode, index: str, opened: Open) -> None:
    """Batches that come again in any order after newer ones, with deletes and markers, as of a process that hung."""
    seed = random.Random(5)
    publisher, expected = Publisher(), dict[tuple[int, int], str]()
    publisher.become(TABLE)
    changes, offsets = [], [0, 0]
    with opened() as target:
        target.read_offsets([0, 1])
        for number in range(12):
            for _ in range(20):
                k, c = seed.randrange(4), seed.randrange(6)
                match seed.choice(("row", "row", "row", "gone", "range", "partition", "table")):
                    case "row":
                        row(publisher, k, c, str(number))
                        expected[k, c] = str(number)
                    case "gone":
                        row(publisher, k, c, None)
                        expected.pop((k, c), None)
                    case "range":
                        range_ = (bound([cql_bytes(INT, c)], True), None)
                        publisher.marker(k % 2, [cql_bytes(INT, k), None], range_)
                        expected = {key: v for key, v in expected.items() if key[0] != k or key[1] < c}
                    case "partition":
                        publisher.marker(k % 2, [cql_bytes(INT, k), None])
                        expected = {key: v for key, v in expected.items() if key[0] != k}
                    case "table" if seed.random() < 0.1:
                        publisher.truncation(k % 2)
                        expected = {key: v for key, v in expected.items() if key[0] % 2 != k % 2}
            messages = [m for part, offset in zip(publisher.topic, offsets, strict=True) for m in part[offset:]]
            offsets = [len(part) for part in publisher.topic]
            changes.append(fill(target, publisher, messages))
        before = documents(node, index)
        assert {key: document["v"] for key, document in before.items()} == expected
        assert expected, "rows are left"
        for _ in range(3):
            for change in seed.sample(changes, len(changes)):
                target.store(change)
        assert documents(node, index) == before
    with opened() as target:
        assert target.read_offsets([0, 1]) == change.offsets, "those that were stored last"


def documents(node: OpenSearchNode, index: str) -> dict[tuple[int, int], dict[str, Any]]:
    return {(document["k"], document["c"]): document for document in node.documents(index)}


def test_keys_longer_than_an_id(node: OpenSearchNode, index: str, opened: Open) -> None:
    """Keys that differ after 512 bytes are two documents, and a marker finds them."""
    publisher = Publisher()
    publisher.become([Column("k", TEXT, "partition_key", 0), KEY[1], Column("v", TEXT)])
    long_keys = ["ü" * 600 + end for end in ("a", "b")]

    def write(key: str, v: str | None) -> None:
        publisher.row(0, [cql_bytes(TEXT, key), cql_bytes(INT, 1)], [v and cql_bytes(TEXT, v)])

    for key in (*long_keys, "short", "x" * 40_000):
        write(key, "old")
    write(long_keys[0], "new")
    publisher.marker(0, [cql_bytes(TEXT, long_keys[1]), None])
    publisher.marker(0, [cql_bytes(TEXT, "x" * 40_000), None])
    with opened() as target:
        for part in (publisher.topic[0][:4], publisher.topic[0][4:]):
            fill(target, publisher, part)
    stored = {document["k"]: document["v"] for document in node.documents(index)}
    assert stored == {long_keys[0]: "new", "short": "old"}


def test_a_search_by_each_kind_of_column(node: OpenSearchNode, index: str, opened: Open) -> None:
    """The mapping finds what a user looks for: words, exact text, numbers, times, and within types and maps."""
    types = {
        "a": "text",
        "b": "bigint",
        "d": "double",
        "m": "frozen<map<text, int>>",
        "p": "frozen<tuple<text, int>>",
        "t": "timestamp",
    }
    publisher = Publisher()
    publisher.become([*KEY, *(Column(name, parse(kind)) for name, kind in types.items())])
    rows = [
        ["Blue elm", 2**53 + 1, 0.5, {"one.two": 1, "": 2}, ("Elm", 5), 1_000],
        ["elm", 1, float("nan"), *[None] * 3],
    ]
    for c, values in enumerate(rows):
        raw = [
            None if value is None else cql_bytes(parse(kind), value)
            for kind, value in zip(types.values(), values, strict=True)
        ]
        publisher.row(0, [cql_bytes(INT, 1), cql_bytes(INT, c)], raw)
    with opened() as target:
        fill(target, publisher, publisher.topic[0])
    node.ask("POST", f"{index}/_refresh")
    for query, expected in (
        ({"match": {"a": "ELM"}}, [0, 1]),
        ({"term": {"a.keyword": "elm"}}, [1]),
        ({"term": {"b": 2**53 + 1}}, [0]),
        ({"range": {"d": {"gt": 0}}}, [0]),
        ({"exists": {"field": "_ignored"}}, [1]),  # NaN is in the document, and not in the index
        ({"term": {"m.key.keyword": "one.two"}}, [0]),
        ({"term": {"p.index_1": 5}}, [0]),
        ({"range": {"t": {"lt": "1970-01-02"}}}, [0]),
    ):
        hits = node.ask("POST", f"{index}/_search", {"query": query})["hits"]["hits"]
        assert sorted(hit["_source"]["c"] for hit in hits) == expected, query


def test_types_of_the_user_s_own(node: OpenSearchNode, index: str, opened: Open) -> None:
    """Fields that an index has stay, and get what they lack: an address, a number of a decimal, a map's entries."""
    properties = {"a": {"type": "ip"}, "d": {"type": "double"}, "m": {"type": "nested"}}
    node.ask("PUT", index, {"mappings": {"properties": properties}})
    types = {"a": "inet", "d": "decimal", "m": "frozen<map<text, int>>"}
    publisher = Publisher()
    publisher.become([*KEY, *(Column(name, parse(kind)) for name, kind in types.items())])
    for c, values in enumerate((["10.1.2.3", Decimal("1.50"), {"x": 1, "y": 2}], ["::1", Decimal(20), {"x": 2}])):
        raw = [cql_bytes(parse(kind), value) for kind, value in zip(types.values(), values, strict=True)]
        publisher.row(0, [cql_bytes(INT, 1), cql_bytes(INT, c)], raw)
    with opened() as target:
        fill(target, publisher, publisher.topic[0])
    entry = {"bool": {"must": [{"term": {"m.key.keyword": "x"}}, {"term": {"m.value": 2}}]}}
    node.ask("POST", f"{index}/_refresh")
    for query, expected in (
        ({"term": {"a": "10.0.0.0/8"}}, [0]),
        ({"range": {"d": {"gt": 3}}}, [1]),
        ({"nested": {"path": "m", "query": entry}}, [1]),
    ):
        hits = node.ask("POST", f"{index}/_search", {"query": query})["hits"]["hits"]
        assert [hit["_source"]["c"] for hit in hits] == expected, query
    assert documents(node, index)[1, 0]["d"] == "1.50"


def test_a_document_that_is_refused_is_named(node: OpenSearchNode, index: str, opened: Open) -> None:
    """A mapping of the user's own stays, with what it does not fit: the others of the batch are stored."""
    properties = {"v": {"type": "integer"}, "k": {"type": "long", "meta": {"unit": "us"}}}
    node.ask("PUT", index, {"mappings": {"_meta": {"owner": "us"}, "properties": properties}})
    publisher = Publisher()
    publisher.become(TABLE)
    for c, v in enumerate(("7", "seven", "8")):
        row(publisher, 1, c, v)
    with opened() as target, pytest.raises(Failure) as raised:
        fill(target, publisher, publisher.topic[1])
    message = str(raised.value)
    assert "mapper_parsing_exception" in message
    assert "document [1,1], of the record at offset 1" in message
    assert 'For input string: "seven"' in message
    assert sorted(documents(node, index)) == [(1, 0), (1, 2)]
    ((_, answer),) = node.ask("GET", f"{index}/_mapping").items()
    assert answer["mappings"]["_meta"]["owner"] == "us"
    assert {name: answer["mappings"]["properties"][name] for name in properties} == properties
    with opened() as target:
        assert target.read_offsets([0, 1]) == {}, "the batch comes again"
        publisher.topic[1].pop(1)
        fill(target, publisher, publisher.topic[1])
        assert target.read_offsets([0, 1]) == {1: 3}


def test_requests_that_are_too_large(
    node: OpenSearchNode, index: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose limit is lower than a request's size gets halves; a document above it is named."""
    monkeypatch.setattr(to_opensearch, "_REQUEST_BYTES", 30_000_000)
    publisher = Publisher()
    publisher.become(TABLE)
    for c in range(6):
        row(publisher, 1, c, "x" * 2_000_000)
    with opened() as target:
        fill(target, publisher, publisher.topic[1])
    assert sorted(documents(node, index)) == [(1, c) for c in range(6)]
    row(publisher, 1, 9, "x" * 11_000_000)
    with opened() as target:
        target.read_offsets([1])
        with pytest.raises(Failure, match=r"no request of that size: document \[1,9\]"):
            fill(target, publisher, publisher.topic[1][6:])


def test_a_server_that_refuses_for_a_while(
    node: OpenSearchNode, index: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """429, as of a full disk or a full queue: the recipe says so, tries again, and goes on."""
    publisher = Publisher()
    publisher.become(TABLE)
    for c in range(3):
        row(publisher, 1, c, "1")
    with opened_at(node.url, index, once=False) as target:
        fill(target, publisher, publisher.topic[1][:1])
        change = publisher.batch(publisher.topic[1][1:]).for_table(target)
        block_deletes(node, index, True)
        storing = threading.Thread(target=target.store, args=(change,))
        storing.start()
        lines = ""
        try:

            def is_said() -> bool:
                nonlocal lines
                lines += capsys.readouterr().err
                return "trying again" in lines

            eventually(is_said, "the recipe says that it waits", every=0.1)
            assert sorted(documents(node, index)) == [(1, 0)]
        finally:
            block_deletes(node, index, False)
            storing.join()
    assert "TOO_MANY_REQUESTS" in lines
    assert sorted(documents(node, index)) == [(1, c) for c in range(3)]
    monkeypatch.setattr(to_opensearch, "_PATIENCE_S", 0)
    block_deletes(node, index, True)
    try:
        with opened_at(node.url, index) as target:
            target.read_offsets([1])
            with pytest.raises(Failure, match="TOO_MANY_REQUESTS"):
                target.store(change)
    finally:
        block_deletes(node, index, False)


def block_deletes(node: OpenSearchNode, index: str, is_blocked: bool) -> None:
    """Do what the server does when its disk is full, or undo it."""
    node.ask("PUT", f"{index}/_settings", {"index.blocks.read_only_allow_delete": is_blocked or None})


def test_an_index_of_others_is_not_filled(node: OpenSearchNode, index: str, opened: Open) -> None:
    """One that another topic fills, one that another process fills, and one that is gone, are refused."""
    publisher = Publisher()
    publisher.become(TABLE)
    for c in range(3):
        row(publisher, 1, c, "1")
    with opened() as first, opened() as second:
        fill(first, publisher, publisher.topic[1][:1])
        with (
            opened_at(node.url, index, topic="data-ks.other") as other,
            pytest.raises(Failure, match=f"has the rows of {TOPIC}"),
        ):
            other.read_offsets([0])
        assert second.read_offsets([1]) == {1: 1}
        fill(second, publisher, publisher.topic[1][1:2])
        with pytest.raises(Failure, match="another process fills it"):
            fill(first, publisher, publisher.topic[1][1:2])
        node.ask("DELETE", index)
        with pytest.raises(Failure, match="was deleted"):
            fill(second, publisher, publisher.topic[1][2:])
        node.ask("PUT", f"{index}-a", {"aliases": {"both": {}}})
        node.ask("PUT", f"{index}-b", {"aliases": {"both": {}}})
        with opened_at(node.url, "both") as target, pytest.raises(Failure, match="names 2 indices"):
            target.read_offsets([0])
        publisher.become([*KEY, Column("_id", TEXT)])
        row(publisher, 1, 0, "1")
        with opened() as target, pytest.raises(Failure, match="a column _id"):
            fill(target, publisher, publisher.topic[1])


def test_a_server_that_is_away(
    node: OpenSearchNode, index: str, opened: Open, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed in the middle: the recipe waits for it, and what it answered before is there. With --once it gives up."""
    publisher = Publisher()
    publisher.become(TABLE)
    for c in range(200):
        row(publisher, 1, c, "1")
    with opened_at(node.url, index, once=False) as target:
        fill(target, publisher, publisher.topic[1][:100])
        node.kill()
        starting = threading.Timer(3, node.start)
        starting.start()
        fill(target, publisher, publisher.topic[1][100:])
        starting.join()
    assert f"{node.url} can't be reached" in capsys.readouterr().err
    assert sorted(documents(node, index)) == [(1, c) for c in range(200)]
    node.stop()
    try:
        monkeypatch.setattr(to_opensearch, "_PATIENCE_S", 0)
        with opened() as target, pytest.raises(Failure, match=r"can't be reached: .*Connection refused"):
            target.read_offsets([0])
    finally:
        node.start()


def test_tls_and_logins(tmp_path: Path, index: str) -> None:
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    other.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    server = authority.issue_cert("localhost")
    keystore = pkcs12.serialize_key_and_certificates(
        b"server",
        load_pem_private_key(server.private_key_pem.bytes(), None),  # type: ignore[arg-type]
        x509.load_pem_x509_certificate(server.cert_chain_pems[0].bytes()),
        None,
        BestAvailableEncryption(b"helenus"),
    )
    (tmp_path / "keystore.p12").write_bytes(keystore)
    publisher = Publisher()
    publisher.become(TABLE)
    row(publisher, 1, 1, "1")
    with running_node(tmp_path, tmp_path / "keystore.p12") as node:
        right = {"http_auth": LOGIN, "ca_certs": str(tmp_path / "ca.pem")}
        with opened_at(node.url, index, **right) as target:
            fill(target, publisher, publisher.topic[1])
            assert target.read_offsets([1]) == {1: 1}
        in_url = node.url.replace("//", f"//{LOGIN}@")
        with opened_at(in_url, index, ca_certs=right["ca_certs"]) as target:
            assert target.read_offsets([1]) == {1: 1}
        for wrong, words in (
            ({"http_auth": "helenus:wr0ng"}, ["answers 401", "target.http_auth"]),
            ({"ca_certs": str(tmp_path / "other.pem")}, ["certificate verify failed", "target.ca_certs"]),
        ):
            with opened_at(node.url, index, **{**right, **wrong}) as target, pytest.raises(Failure) as raised:
                target.read_offsets([1])
            assert [word for word in words if word not in str(raised.value)] == [], str(raised.value)
            assert "s3cret" not in str(raised.value)
            assert "wr0ng" not in str(raised.value)


def test_a_change_of_the_noted_offsets_fills_the_index_anew(node: OpenSearchNode, index: str, opened: Open) -> None:
    """Offsets that are taken out of the mapping: all is written again, over documents that were damaged."""
    publisher = Publisher()
    publisher.become(TABLE)
    for c in range(3):
        row(publisher, 1, c, "1")
    with opened() as target:
        fill(target, publisher, publisher.topic[1])
    before = documents(node, index)
    node.ask("PUT", f"{index}/_doc/[1,2]?version=2&version_type=external_gte", {"k": 1, "c": 2, "v": "damaged"})
    assert documents(node, index) != before
    node.ask("PUT", f"{index}/_mapping", {"_meta": {}})
    with opened() as target:
        assert target.read_offsets([1]) == {}
        fill(target, publisher, publisher.topic[1])
    assert documents(node, index) == before
