"""Statements about data sinks and data sources: their grammar, where an error points, and what is never shown."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helenus_agent.control._statement_grammar import CreateSink, CreateSource, Describe, DropSink, DropSource, Help
from helenus_agent.control.statements import StatementError, StatementResult, is_complete, parse_statements
from helenus_agent.own_properties import OwnProperties
from helenus_agent.sql_command import WIDTH, StatementText, format_error, format_result, log_in, read_statements
from helenus_schemas.errors import HelenusError
from helenus_schemas.settings.data_sink import AddressError, hide_values, parse_sink_address

RIGHT = [
    "CREATE DATA_SINK lake WITH 'kafka://k1:9092,k2?linger.ms=5&output.format=json'",
    "CREATE DATA_SINK IF NOT EXISTS \"Lake\" WITH 'kafka://[::1]:9092'",
    "DROP DATA_SINK IF EXISTS lake",
    "CREATE DATA_SOURCE IF NOT EXISTS cdc ON TABLE shop.orders WITH lake",
    'DROP DATA_SOURCE cdc ON TABLE shop."Orders"',
    "DESCRIBE DATA_SINKS",
    "desc data_sources",
    "help",
]


def test_statements_are_parsed() -> None:
    statements = parse_statements("-- all\n" + ";\n".join(RIGHT) + "; // the end\n/* no more; */")
    kinds = [CreateSink, CreateSink, DropSink, CreateSource, DropSource, Describe, Describe, Help]
    assert [type(statement) for statement in statements] == kinds
    first, second, _, source, dropped, *_ = statements
    assert isinstance(first, CreateSink)
    assert not first.if_not_exists
    assert first.address.value == "kafka://k1:9092,k2?linger.ms=5&output.format=json"
    assert isinstance(second, CreateSink)
    assert (second.name.value, second.if_not_exists) == ("Lake", True)
    assert isinstance(source, CreateSource)
    assert (str(source.table), source.if_not_exists) == ("shop.orders", True)
    assert isinstance(dropped, DropSource)
    assert (dropped.table.table, dropped.if_exists) == ("Orders", False)


WRONG = [
    ("SELECT * FROM t", "SELECT", "for all others use cqlsh"),
    ("CREATE TABLE ks.t (a int PRIMARY KEY)", "TABLE", "for all others use cqlsh"),
    ("INSERT INTO ks.t (a) VALUES (1)", "INSERT", "cqlsh"),
    ("CREAT DATA_SINK a WITH 'kafka://h'", "CREAT", "did you mean CREATE?"),
    ("CREATE DATA_SINKS a WITH 'kafka://h'", "DATA_SINKS", "did you mean DATA_SINK?"),
    ("CREATE DATA SINK a WITH 'kafka://h'", "DATA", "cqlsh"),
    ("CREATE DATA_SINK WITH 'kafka://h'", "'kafka://h'", "WITH is expected"),
    ("CREATE DATA_SINK IF EXISTS a WITH 'kafka://h'", "EXISTS", "NOT is expected, and not EXISTS"),
    ("CREATE DATA_SINK a 'kafka://h'", "'kafka://h'", "WITH is expected, and not a text in quotes"),
    ("CREATE DATA_SINK a WITH kafka", "kafka", "an address in single quotes"),
    ('CREATE DATA_SINK a WITH "kafka://h"', '"kafka://h"', "an address in single quotes"),
    ("CREATE DATA_SINK a WITH 'kafka://h", "'", "this quote is not closed"),
    ("CREATE DATA_SINK a-b WITH 'kafka://h'", "-", "WITH is expected, and not this character"),
    ("CREATE DATA_SINK \"a b\" WITH 'kafka://h'", '"a b"', "letters, digits and '_' alone"),
    ("CREATE DATA_SINK a WITH 'kafka://h' AND x = 1", "AND", "; and the next statement is expected"),
    ("CREATE DATA_SINK", None, "the name of a data sink is expected, and not the end of the statement"),
    ("DROP DATA_SINK IF NOT EXISTS a", "NOT", "EXISTS is expected, and not NOT"),
    ("DROP DATA_SINK a b", "b", "; and the next statement"),
    ("CREATE DATA_SOURCE kafka ON TABLE ks.t WITH a", "kafka", "cdc is the only one"),
    ("CREATE DATA_SOURCE cdc TABLE ks.t WITH a", "TABLE", "ON is expected, and not TABLE"),
    ("CREATE DATA_SOURCE cdc ON ks.t WITH a", "ks", "TABLE is expected, and not ks"),
    ("CREATE DATA_SOURCE cdc ON TABLE t WITH a", "t", "name its keyspace too: keyspace.t"),
    ("CREATE DATA_SOURCE cdc ON TABLE ks. WITH 'a'", "'a'", "WITH is expected"),
    ("CREATE DATA_SOURCE cdc ON TABLE ks.t WITH 'a'", "'a'", "the name of a data sink is expected"),
    ("DROP DATA_SOURCE cdc ON TABLE ks.t WITH a", "WITH", "; and the next statement"),
    ("DESCRIBE KEYSPACES", "KEYSPACES", "cqlsh"),
    ("DESCRIBE DATA_SINK a", "DATA_SINK", "did you mean DATA_SINKS?"),
    ("DESCRIBE DATA_SINKS /* all", "/", "this comment is not closed"),
    ("DROP DATA_SINK a; USE ks", "USE", "cqlsh"),
    (f"DROP DATA_SINK {'a' * 49}", "a" * 49, "48 of them at most"),
]


@pytest.mark.parametrize(("text", "word", "reason"), WRONG)
def test_an_error_points_at_the_word(text: str, word: str | None, reason: str) -> None:
    with pytest.raises(StatementError) as raised:
        parse_statements(text)
    error = raised.value
    assert reason in error.reason
    if word is None:
        assert error.start == len(text)
    else:
        assert text[error.start : error.end] == word
    *message, line, carets = format_error(StatementText("s.cql", f"-- first\n{text}"), _moved(error, 9)).splitlines()
    assert "".join(message).startswith("helenus-agent: s.cql:2: ")
    assert max(map(len, [*message, line, carets])) <= WIDTH
    if word is not None and len(text) < WIDTH - 2:
        assert line[carets.index("^") : len(carets)] == word


def _moved(error: StatementError, by: int) -> StatementError:
    return StatementError(error.reason, error.start + by, error.end + by)


WRONG_ADDRESSES = [
    ("http://h", "http://", "begins with kafka://"),
    ("pulsar://h:6650", "pulsar://", "begins with kafka://"),
    ("h:9092", "h:9092", "begins with kafka://"),
    ("", "", "begins with kafka://"),
    ("kafka://", "", "host:port"),
    ("kafka://h:0", "h:0", "host:port"),
    ("kafka://h:99999", "h:99999", "host:port"),
    ("kafka://h:9092,,k", ",", "host:port"),
    ("kafka://h/topic", "h/topic", "host:port"),
    ("kafka://u:p4ss@h", "u:p4ss@h", "a login has no place here"),
    ("kafka://h?", "", "a parameter is name=value"),
    ("kafka://h?linger.ms", "linger.ms", "a parameter is name=value"),
    ("kafka://h?a=1&&b=2", "&", "a parameter is name=value"),
    ("kafka://h?li nger=1", "li nger=1", "a parameter is name=value"),
    ("kafka://h?acks=1&acks=all", "acks", "twice"),
    ("kafka://h?sasl.password=p4ss", "sasl.password", "a secret is not stored in clear"),
    ("kafka://h?sasl.password=%70", "sasl.password", "a secret is not stored in clear"),
    ("kafka://h?ssl.key.pem=x", "ssl.key.pem", "a secret is not stored in clear"),
    ("kafka://h?client.id=a%0Ab", "client.id", "a character that nobody sees"),
    ("kafka://h?output.format=${env:HOME}", "output.format", "give the value itself"),
    (f"kafka://h?client.id={'a' * 5000}", "kafka://", "4000 characters"),
]


@pytest.mark.parametrize(("address", "part", "reason"), WRONG_ADDRESSES)
def test_an_address_is_wrong(address: str, part: str, reason: str) -> None:
    with pytest.raises(AddressError, match=reason) as raised:
        parse_sink_address(address)
    error = raised.value
    assert "p4ss" not in str(error)
    assert address[error.start : error.end] == part


def test_an_address() -> None:
    sink = parse_sink_address(
        "KAFKA://k1,[::1]:1/?linger.ms=5&client.id=a%26b&output.format=json&sasl.password=${env:P}"
    )
    assert sink.brokers == "k1:9092,[::1]:1"
    assert sink.agent_parameters == {"linger.ms": "5", "client.id": "a&b", "sasl.password": "${env:P}"}
    assert sink.connector_parameters == {"output.format": "json"}


@given(st.text(max_size=60))
def test_any_address_is_right_or_refused(text: str) -> None:
    for address in (text, f"kafka://{text}", f"kafka://h?{text}"):
        try:
            sink = parse_sink_address(address)
        except AddressError:
            continue
        assert all(broker.rpartition(":")[2].isdigit() for broker in sink.broker_set)


WORDS = st.sampled_from(
    "CREATE DROP DESCRIBE DATA_SINK DATA_SOURCE DATA_SINKS IF NOT EXISTS ON TABLE WITH cdc ks t . ; 'kafka://h' \" ' "
    "/* */ -- \n x=1 ${".split(" ")
)


@given(st.one_of(st.text(max_size=80), st.lists(WORDS, max_size=12).map(" ".join)))
def test_any_text_is_parsed_or_refused_at_a_place_in_it(text: str) -> None:
    is_complete(text)
    try:
        parse_statements(text)
        return
    except StatementError as raised:
        error = raised
    assert 0 <= error.start < error.end <= len(text) + 1
    lines = format_error(StatementText("", text), error).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert lines[-1].strip("^ ") == ""
    assert "^" in lines[-1]


@given(st.sampled_from(RIGHT), st.data())
def test_a_statement_with_a_slip_is_never_another_one(statement: str, data: st.DataObject) -> None:
    words = statement.split(" ")
    index = data.draw(st.integers(0, len(words) - 1))
    changed = [*words[:index], *data.draw(st.sampled_from([[], [words[index]] * 2, ["#"]])), *words[index + 1 :]]
    try:
        parsed = parse_statements(" ".join(changed))
    except StatementError:
        return
    assert len(parsed) <= 1
    # What is left without a word is a statement by itself only where the grammar says that it may be.
    assert not parsed or " ".join(changed).upper().split(" ")[0] in {w.upper().split(" ")[0] for w in RIGHT}


def slips(statement: str) -> set[str]:
    """Each word left out, doubled, or another character in its place; each keyword short of a letter; and more after
    the end. None of them is a statement.
    """
    words = statement.split(" ")
    wrong = {f"{statement} {more}" for more in ("x", "'x'", "IF", "=", "WITH")}
    for index, word in enumerate(words):
        others = [[], [word, word], ["#"], [f"'{word}"]]
        others += [[word[:n] + word[n + 1 :]] for n in range(len(word)) if word.isupper()]
        wrong |= {" ".join([*words[:index], *other, *words[index + 1 :]]) for other in others}
    return wrong - {""}


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE DATA_SINK IF NOT EXISTS lake WITH 'kafka://k1:9092'",
        "DROP DATA_SINK IF EXISTS lake",
        "CREATE DATA_SOURCE IF NOT EXISTS cdc ON TABLE shop.orders WITH lake",
        "DROP DATA_SOURCE IF EXISTS cdc ON TABLE shop.orders",
        "DESCRIBE DATA_SINKS",
        "DESCRIBE DATA_SOURCES",
    ],
)
def test_every_statement_wrong_in_twenty_ways(statement: str) -> None:
    assert len(parse_statements(statement)) == 1
    wrong = slips(statement)
    assert len(wrong) >= 20
    for text in sorted(wrong):
        with pytest.raises(StatementError) as raised:
            parse_statements(text)
        assert 0 <= raised.value.start < raised.value.end <= len(text) + 1


SECRET = st.text("abcdefgh12345&=?%.", min_size=8, max_size=20).filter(lambda text: "'" not in text)


@given(SECRET, st.sampled_from(["sasl.password", "ssl.key.password", "sasl%2Epassword", "SASL.PASSWORD"]))
def test_no_error_shows_a_secret(secret: str, key: str) -> None:
    hidden = f"z{secret}z"
    for text in (
        f"CREATE DATA_SINK a WITH 'kafka://h?linger.ms=5&{key}={hidden}' AND",
        f"CREATE DATA_SINK a WITH kafka://h?{key}={hidden}",
        f"CREATE DATA_SINK a WITH 'kafka://u:{hidden}@h?linger.ms=5' x",
        f"CREATE DATA_SINK a b WITH 'kafka://h?{key}={hidden}",
    ):
        with pytest.raises(StatementError) as raised:
            parse_statements(text)
        shown = format_error(StatementText("", text), raised.value)
        assert hidden not in shown
        assert len(hide_values(text)) == len(text)
        assert hidden not in hide_values(text)


@given(st.integers(1, 4), st.data())
def test_a_result_has_80_columns(columns: int, data: st.DataObject) -> None:
    cells = st.text("ab ,.:=&→", max_size=200)
    rows = data.draw(st.lists(st.tuples(*[cells] * columns), max_size=4))
    names = tuple(f"column{number}" for number in range(columns))
    lines = format_result(StatementResult(names, tuple(rows))).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert rows or lines == ["(no column0s)"]


def test_a_statement_is_complete_at_its_semicolon() -> None:
    assert is_complete("DESCRIBE DATA_SINKS;")
    assert is_complete("DESCRIBE DATA_SINKS; -- all")
    assert is_complete("  ")
    assert not is_complete("DESCRIBE DATA_SINKS")
    assert is_complete("SELECT 1 + 2;")
    assert not is_complete("CREATE DATA_SINK a WITH 'x;")
    assert not is_complete("DROP DATA_SINK a; /* ;")
    assert not is_complete("DESCRIBE DATA_SINKS; DESC")


def test_texts_come_from_options_files_and_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "a.cql").write_text("HELP")
    piped = io.StringIO("DESC DATA_SINKS")
    texts = read_statements([tmp_path / "a.cql"], ["DESC DATA_SOURCES"], piped)
    assert [(text.source, text.text) for text in texts] == [
        ("-e", "DESC DATA_SOURCES"),
        (str(tmp_path / "a.cql"), "HELP"),
    ]
    assert read_statements([], [], piped) == [StatementText("standard input", "DESC DATA_SINKS")]
    with pytest.raises(HelenusError, match="cannot read statements"):
        read_statements([tmp_path / "none.cql"], [], None)
    with pytest.raises(HelenusError, match="1,000,000 characters"):
        read_statements([], ["-" * 1_000_001], None)


def test_the_agent_has_to_follow_the_configuration() -> None:
    with pytest.raises(HelenusError, match=r"config\.store=cassandra"):
        log_in(OwnProperties("agent.properties", {"state.dir": "x"}), None, None)
    properties = {"cassandra.username": "agent", "cassandra.password": "p", "config.store": "cassandra"}
    own = log_in(OwnProperties("agent.properties", properties), "admin", "q")
    assert own.properties == {"cassandra.username": "admin", "cassandra.password": "q", "config.store": "cassandra"}
    assert log_in(OwnProperties("the environment", {}), None, None).properties == {"config.store": "cassandra"}
