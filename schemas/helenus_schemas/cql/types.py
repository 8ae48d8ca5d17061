"""CQL types as `system_schema` spells them: `frozen<map<text, int>>`, `vector<float, 3>`, a UDT's name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

SCALARS = frozenset(
    "ascii bigint blob boolean counter date decimal double duration float inet int smallint text time timestamp "
    "timeuuid tinyint uuid varint".split()
)
_WIDTHS = {
    "boolean": 1,
    "int": 4,
    "float": 4,
    "bigint": 8,
    "timestamp": 8,
    "double": 8,
    "uuid": 16,
    "timeuuid": 16,
}
# Words that must be quoted: reserved_keywords.txt of cassandra-all 5.0, those that only 3.11 has, and two more that its
# lexer takes for values.
_RESERVED = frozenset(
    "add allow alter and apply asc authorize batch begin by columnfamily create default delete desc describe drop "
    "entries execute false from full grant if in index infinity insert into is keyspace limit materialized mbean "
    "mbeans modify nan norecursive not null of on or order primary rename replace revoke schema select set table to "
    "token true truncate unlogged unset update use using view where with".split()
)
_ARGS = {"frozen": 1, "list": 1, "set": 1, "vector": 1, "map": 2}
_INT_DIGITS, _MAX_BYTES = 10, (1 << 31) - 1
_MAX_EXCERPT = 200
_TOKEN = re.compile(r"\s*(?:\"((?:[^\"]|\"\")*)\"|'([^']*)'|([A-Za-z0-9_.]+)|([<>,]))")


@dataclass(frozen=True, slots=True)
class CqlType:
    """A CQL type. `name` is a scalar's name or `list`, `set`, `map`, `tuple`, `vector`, `udt`, `custom`.

    `args` are element types (a UDT's field types), `fields` a UDT's field names, `label` a UDT's or custom type's name.
    `shown_as`: how records show a decimal, varint or time, `string`, `double`, `long`, `microseconds`; empty: exactly.
    """

    name: str
    args: tuple[CqlType, ...] = ()
    frozen: bool = False
    label: str = ""
    fields: tuple[str, ...] = ()
    dimension: int = 0
    shown_as: str = ""

    @property
    def multicell(self) -> bool:
        """True if Cassandra stores the column as many cells: an unfrozen collection or UDT."""
        return not self.frozen and self.name in ("list", "set", "map", "udt")

    @property
    def width(self) -> int:
        """Return bytes of a value in a commit-log cell if fixed, else 0: then a vint length goes before it.

        Source: `AbstractType.valueLengthIfFixed`. tinyint, smallint, date, time and counter are not fixed there.
        """
        if self.name == "vector":
            return self.dimension * self.args[0].width
        if self.name == "custom":
            # The only one of Cassandra's own types that has no name in CQL and a fixed width.
            return 16 if self.label == "org.apache.cassandra.db.marshal.LexicalUUIDType" else 0
        return _WIDTHS.get(self.name, 0)

    def with_forms(self, forms: Mapping[str, str]) -> CqlType:
        """Return this type with its decimals, varints and times as `forms` says, by type. Keys of maps are text
        anyway.
        """
        if not self.args:
            return replace(self, shown_as=forms[self.name]) if self.name in forms else self
        keep = 1 if self.name == "map" else 0
        return replace(self, args=(*self.args[:keep], *(a.with_forms(forms) for a in self.args[keep:])))

    def __str__(self) -> str:
        if self.name == "udt":
            text = quote(self.label)
        elif self.name == "custom":
            return f"'{self.label}'"
        elif self.name == "vector":
            return f"vector<{self.args[0]}, {self.dimension}>"
        elif self.args:
            text = f"{self.name}<{', '.join(map(str, self.args))}>"
        else:
            return self.name
        return f"frozen<{text}>" if self.frozen and self.name != "tuple" else text


def walk(types: Iterable[CqlType]) -> Iterator[CqlType]:
    """Yield types and all types within them, each before its own."""
    for t in types:
        yield t
        yield from walk(t.args)


def has_more_fields(t: CqlType, compared: CqlType) -> bool:
    """Return whether a type has a user-defined type, at any depth, with more fields than the `compared` one has
    there.
    """
    if t.name == compared.name == "udt" and len(t.args) > len(compared.args):
        return True
    return any(map(has_more_fields, t.args, compared.args))


def quote(name: str) -> str:
    """Return a CQL identifier, quoted where it must be."""
    plain = re.fullmatch(r"[a-z][a-z0-9_]*", name) and name not in _RESERVED
    return name if plain else '"' + name.replace('"', '""') + '"'


def parse(text: str, udts: Mapping[str, CqlType] | None = None) -> CqlType:
    """Parse a type as `system_schema` prints it; `udts` maps a UDT's name to its (unfrozen) type.

    Raises ValueError for other text, and for a UDT that is not in `udts`.
    """
    try:
        tokens = _tokens(text)
        cql_type, end = _parse(tokens, 0, {} if udts is None else udts, text)
    except (IndexError, RecursionError):
        raise ValueError(f"not a CQL type: {_excerpt(text)}") from None
    if end != len(tokens):
        raise ValueError(f"not a CQL type: {_excerpt(text)}")
    return cql_type


_Token = tuple[str, "str | None", "str | None"]
"""A token's text; the name if it was in double quotes; the class if it was in single quotes."""


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    offset, end = 0, len(text.rstrip())
    while offset < end:  # not by `finditer`, which begins anew at each blank before what is no token
        match = _TOKEN.match(text, offset, end)
        if match is None:
            raise ValueError(f"not a CQL type: {_excerpt(text)}")
        name, custom, word, sign = match.groups()
        tokens.append((word or sign if name is None else name.replace('""', '"'), name, custom))
        offset = match.end()
    return tokens


def _parse(tokens: list[_Token], index: int, udts: Mapping[str, CqlType], text: str) -> tuple[CqlType, int]:
    """Parse the type at `index`; return it and the index after it."""
    name, quoted, custom = tokens[index]
    index += 1
    if custom is not None:
        return CqlType("custom", label=custom), index
    if index < len(tokens) and tokens[index][0] == "<" and quoted is None:
        return _parse_parameterized(name, tokens, index, udts, text)
    if quoted is None and name in SCALARS:
        return CqlType(name), index
    if quoted is None and name == "varchar":
        return CqlType("text"), index
    if quoted is None and name == "empty" and name not in udts:
        # Old compact tables without a value column have one of this type.
        return CqlType("custom", label="org.apache.cassandra.db.marshal.EmptyType"), index
    if name not in udts:
        raise ValueError(f"unknown CQL type {_excerpt(name)} in {_excerpt(text)}")
    return udts[name], index


def _parse_parameterized(
    name: str, tokens: list[_Token], index: int, udts: Mapping[str, CqlType], text: str
) -> tuple[CqlType, int]:
    """Parse the arguments of a collection, tuple, vector or `frozen`, from the `<` at `index` on."""
    args: list[CqlType] = []
    dimension = 0
    while tokens[index][0] != ">":
        index += 1
        if name == "vector" and args:
            dimension = _dimension(tokens[index][0], args[0], text)
            index += 1
        else:
            arg, index = _parse(tokens, index, udts, text)
            args.append(arg)
        if tokens[index][0] not in (",", ">"):
            raise ValueError(f"not a CQL type: {_excerpt(text)}")
    index += 1
    if len(args) != _ARGS.get(name, len(args) if name == "tuple" else -1) or (name == "vector" and not dimension):
        raise ValueError(f"not a CQL type: {_excerpt(text)}")
    if name == "frozen":
        return replace(args[0], frozen=True), index
    # An element of a collection is stored whole, whether or not its type is written as frozen.
    return CqlType(name, tuple(args), frozen=name in ("tuple", "vector"), dimension=dimension), index


def _dimension(text: str, element: CqlType, type_text: str) -> int:
    """Return a vector's number of elements, as an int of Java's, in which its value's size has room too."""
    dimension = int(text) if text.isascii() and text.isdigit() and len(text) <= _INT_DIGITS else 0
    if not 0 < dimension * max(1, element.width) <= _MAX_BYTES:
        raise ValueError(f"not a CQL type: {_excerpt(type_text)}")
    return dimension


def _excerpt(text: str) -> str:
    """Return a text within a message; a long one, which a table's definition has not, in part."""
    return repr(text if len(text) <= _MAX_EXCERPT else f"{text[:_MAX_EXCERPT]}…")
