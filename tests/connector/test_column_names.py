"""Names in `columns` and `column.exclude.list` that no column has: the table is refused, and published by no shape."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.config._alternatives import alternatives
from helenus_connector.config.column_names import check_connector
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.control import tables as control_tables
from helenus_connector.shape.row.row import shown_table
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import Action, HelenusError, Kind

TEXT = parse("text")
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,9}", fullmatch=True)


def table(
    *columns: str,
    name: str = "users",
    key: str = "id",
    dropped: Mapping[str, int] | None = None,
    added: Mapping[str, int] | None = None,
) -> Table:
    gone = {column: Column(column, TEXT) for column in dropped or {}}
    keys = (Column(key, TEXT, "partition_key", 0),)
    return Table(
        "shop",
        name,
        uuid.UUID(int=7),
        keys + tuple(Column(column, TEXT) for column in columns),
        True,
        gone,
        dropped_at=dropped or {},
        added_at=added or {},
    )


def settings(tables: str = "users", **properties_given: str) -> ConnectorSettings:
    properties = {"name": "a", "keyspace": "shop", "table": tables, "output.format": "json"}
    return ConnectorSettings.from_properties(
        {**properties, **{key.replace("_", "."): text for key, text in properties_given.items()}}, "a"
    )


def excluding(*entries: str, tables: str = "users") -> ConnectorSettings:
    return settings(tables, column_exclude_list=",".join(entries))


def errors(
    connector_settings: ConnectorSettings, *tables: Table, others: Sequence[tuple[str, str, str]] = ()
) -> dict[str, str]:
    return {name: str(error) for name, error in check_connector(connector_settings, tables, lambda: others).items()}


USERS = table("email", "name", "phone")


@pytest.mark.parametrize(
    "more",
    [
        {"column.exclude.list": "shop.users.emial"},
        {"column.exclude.list": "shop.users.e_mail,shop.users.phone"},
        {"column.exclude.list": "shop.users.Email"},
        {"column.exclude.list": "shop.users.(emial|phnoe)"},
        {"column.exclude.list": "shop.users.(email|phnoe)"},
        {"column.exclude.list": "shop.users.(e(mail|mial)|phone)"},
        {"column.exclude.list": "shop.(user|people).email"},
        {"column.exclude.list": "(shop|shp).users.(emial|phone)"},
        {"column.exclude.list": "shop.user.email"},
        {"column.exclude.list": "shp.users.email"},
        {"column.exclude.list": "shp.usres.emial"},
        {"column.exclude.list": ".*.users.emial"},
        {"column.exclude.list": "shop.users.id"},
        {"columns": "id|nmae"},
        {"columns": "name|emial"},
        {"columns": "(name|(phone|emial))"},
        {"columns": "nothing"},
        {"columns": "(?!emial$).*"},
        {"columns": "(?!(?:email|phnoe)$).*"},
        {"columns": "(?!mail$).*"},
        {"columns": ".*(?<!_pii)"},
        {"columns": "name|(?i)(?!EMIAL).*"},
        {"columns": "(?i)(?!EMIAL).*"},
    ],
)
def test_a_name_that_no_column_has(more: Mapping[str, str]) -> None:
    properties = {"name": "a", "keyspace": "shop", "table": "users", "output.format": "json", **more}
    try:
        connector_settings = ConnectorSettings.from_properties(properties, "a")
    except HelenusError:
        return  # no regular expression
    assert errors(connector_settings, USERS).keys() == {"users"}


def test_what_the_message_says() -> None:
    message = errors(excluding("shop.users.emial"), USERS)["users"]
    assert message == (
        "column.exclude.list=shop.users.emial: no column matches emial (shop.users): did you mean email? "
        "There are id, email, name, phone [config]"
    )
    assert "did you mean email? " in errors(settings(columns="EMAIL"), USERS)["users"]
    many = table(*(f"column_{n:03}" for n in range(100)))
    assert "column_038 and 61 more" in errors(settings(columns="colum_001"), many)["users"]


@pytest.mark.parametrize(("name", "near"), [("user", "users"), ("USERS", "users"), ("orders", "Orders"), ("x", None)])
def test_a_table_that_is_missing_gets_the_nearest_name(name: str, near: str | None) -> None:
    message = str(control_tables.missing(settings(name).of_table(name), ["users", "Orders"]))
    assert message.startswith(f"there is no such table (shop.{name}): ")
    assert (f"did you mean {near}? create the table" in message) == (near is not None)
    assert ("did you mean" in message) == (near is not None)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"columns": ".*"},
        {"columns": "id"},
        {"columns": "id|name"},
        {"columns": "(?!(email|phone)$).*"},
        {"columns": "[^e].*"},
        {"columns": "name|(?!email).*"},
        {"columns": "(n|ph).*|id"},
        {"columns": "(?i)EMAIL|NAME"},
        {"columns": r"na(?:me)?|(?!\w*mail)\w+"},
        {"column.exclude.list": "shop.users.email"},
        {"column.exclude.list": "sh.*.users.(email|phone)"},
        {"column.exclude.list": r".*\..*\.e.*"},
        {"column.exclude.list": "shop.users.(?!name$)[a-z]+"},
        {"column.exclude.list": "shop.users.email", "columns": "email|name"},
    ],
)
def test_names_that_columns_have(more: Mapping[str, str]) -> None:
    connector_settings = settings(**{key.replace(".", "_"): text for key, text in more.items()})
    assert not errors(connector_settings, USERS)
    shown_table(USERS, connector_settings)


def test_every_way_to_a_record_refuses_it() -> None:
    with pytest.raises(HelenusError) as error:
        shown_table(USERS, excluding("shop.users.emial"))
    assert (error.value.kind, error.value.action) == (Kind.CONFIG, Action.STOP)


def test_other_tables_go_on() -> None:
    """A name is wrong for its table; a pattern over tables needs one of them to have the column."""
    orders = table("total", name="orders")
    assert errors(excluding("shop.users.emial", tables="users,orders"), USERS, orders).keys() == {"users"}
    assert not errors(excluding("shop.\\w+.email", tables="users,orders"), USERS, orders)
    assert errors(excluding("shop.\\w+.emial", tables="users,orders"), USERS, orders).keys() == {"users", "orders"}
    assert not errors(settings("users,orders", columns="email|total"), USERS, orders)
    both = "shop.(users|orders).(email|total)"
    assert not errors(excluding(both, tables="users,orders"), USERS, orders)
    slip = both.replace("users", "usres")
    assert errors(excluding(slip, tables="users,orders"), USERS, orders).keys() == {"users", "orders"}
    assert errors(settings("users,orders", columns="email|totla"), USERS, orders).keys() == {"users", "orders"}


def test_an_entry_of_no_table() -> None:
    """It may be about another connector's table; else those are refused that have such a column, or one like it."""
    orders, everything = table("total", name="orders"), ".*"
    for entry in ("shop.user.email", "shp.users.emial", "other.usres.e.*l"):
        connector_settings = excluding(entry, tables=everything)
        assert errors(connector_settings, USERS, orders).keys() == {"users"}, entry
    connector_settings = excluding("other.people.email", tables=everything)
    assert not errors(connector_settings, USERS, orders, others=[("other", "people", "email")])
    assert errors(connector_settings, USERS, orders, others=[("other", "people", "name")]).keys() == {"users"}
    assert not errors(excluding("shop.gone.birthday", tables=everything), USERS, orders)


def test_a_column_that_was_dropped() -> None:
    """It can't be published; but a column that was added since may be the same by another name."""
    for connector_settings in (
        excluding("shop.users.email"),
        excluding("shop.\\w+.email"),
        settings(columns="(?!email$).*"),
    ):
        gone = table("name", dropped={"email": 20}, added={"id": 10, "name": 10})
        assert not errors(connector_settings, gone)
        shown_table(gone, connector_settings)
        renamed = table("name", "e_mail", dropped={"email": 20}, added={"id": 10, "name": 10, "e_mail": 30})
        assert "email was dropped, and e_mail added later" in errors(connector_settings, renamed)["users"]
        with pytest.raises(HelenusError, match="e_mail added later"):
            shown_table(renamed, connector_settings)
        added_again = table("name", "email", dropped={"email": 20}, added={"id": 10, "name": 10, "email": 30})
        assert not errors(connector_settings, added_again)
    listed = settings(columns="id|name|email")
    renamed = table("name", "e_mail", dropped={"email": 20}, added={"e_mail": 30})
    assert not errors(listed, renamed)  # what is not listed is not published
    both = settings(column_exclude_list="shop.users.email,shop.users.e_mail")
    assert not errors(both, renamed)


def test_a_table_that_was_recreated_with_another_name_for_the_column() -> None:
    with pytest.raises(HelenusError, match="no column matches email"):
        shown_table(table("e_mail", "name"), excluding("shop.users.email"))


@given(st.lists(NAMES, min_size=2, max_size=8, unique=True), st.data())
def test_any_entry_is_a_column_or_refused(names: list[str], data: st.DataObject) -> None:
    """Whatever is excluded by its name: either a column stays out for it, or the table is refused."""
    key, *columns = names
    entries = data.draw(st.lists(st.one_of(NAMES, st.sampled_from(names)), min_size=1, max_size=4))
    of_table = table(*columns, key=key)
    shared = re.compile("|".join(entries))
    patterns = {
        "columns": f"(?!({'|'.join(entries)})$).*",
        "column.exclude.list": ",".join(f"shop.users.{entry}" for entry in entries),
    }
    for name, pattern in patterns.items():
        connector_settings = settings(**{name.replace(".", "_"): pattern})
        refused = bool(errors(connector_settings, of_table))
        assert refused == bool(set(entries) - set(columns)), name
        if not refused:
            assert not [c.name for c in shown_table(of_table, connector_settings).values if shared.fullmatch(c.name)]


@given(st.lists(NAMES, min_size=1, max_size=6, unique=True), st.data())
def test_any_list_of_columns(names: list[str], data: st.DataObject) -> None:
    listed = data.draw(st.lists(st.one_of(NAMES, st.sampled_from(names)), min_size=1, max_size=4, unique=True))
    wraps = data.draw(st.sampled_from(["{}", "({})", "(?:{})", "(?P<x>{})", "{}|(?!.)"]))
    connector_settings = settings(columns=wraps.format("|".join(listed)))
    if wraps == "{}|(?!.)":
        return
    assert bool(errors(connector_settings, table(*names[1:], key=names[0]))) == bool(set(listed) - set(names))


@pytest.mark.filterwarnings("ignore:Possible (nested set|set difference|set):FutureWarning")
@given(st.text("ab|()[]\\?!<^$.*+-:P=,{}1", max_size=14))
def test_whatever_compiles_has_alternatives(expression: str) -> None:
    """Each alternative compiles, and stands where it was."""
    try:
        re.compile(expression)
    except (re.error, RecursionError, OverflowError):
        return
    for alternative in alternatives(expression):
        re.compile(alternative.pattern)
        assert alternative.text in expression


def test_what_alternatives_there_are() -> None:
    parts = alternatives(r"id|na[|)]me|\||(?!(email|phone)$).*")
    assert [(part.text, part.is_excluding) for part in parts] == [
        ("id", False),
        ("na[|)]me", False),
        (r"\|", False),
        ("(?!(email|phone)$).*", False),
        ("(email|phone)$", True),
        ("email", True),
        ("phone", True),
    ]
