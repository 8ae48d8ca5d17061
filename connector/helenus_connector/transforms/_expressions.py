"""A small expression language, of what is common in Groovy and JavaScript: `value.op == 'u' && value.after.id > 10`.

    text 'a' "a", numbers, true, false, null, lists ['a', 'b']
    key, value, topic, keySchema, valueSchema, header       fields: value.after.id, value?.after?.id, value['op']
    == != === !== < <= > >= in =~ ==~ ! && || + - ?: ( )
    methods: startsWith endsWith contains matches equals toLowerCase toUpperCase trim length size toString get
             getString getInt8 getInt16 getInt32 getInt64 getFloat32 getFloat64 getBoolean getStruct name

Nothing else can be called: an expression reads a record, and does nothing.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from helenus_connector.transforms._java_regex import compile_regex
from helenus_connector.transforms.contract import TransformError

Values = Mapping[str, Any]
Evaluate = Callable[[Values], Any]
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?)[lLdDfFgG]?
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<name>[A-Za-z_$][\w$]*)
    |(?P<sign>===|!==|==~|=~|==|!=|<=|>=|&&|\|\||\?\.|\?:|[<>!?:.,+()\[\]-]))""",
    re.VERBOSE | re.ASCII,
)
_LONGEST = 10_000  # characters; nobody writes as many
_DEEPEST = 50  # parentheses within each other
_NAMES = frozenset(("key", "value", "topic", "keySchema", "valueSchema", "header", "headers"))
_CONSTANTS = {"true": True, "false": False, "null": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_GETTERS = frozenset(("get", *(f"get{kind}" for kind in "String Int8 Int16 Int32 Int64".split())))
_GETTERS |= frozenset(f"get{kind}" for kind in "Float32 Float64 Boolean Struct Array Map Bytes".split())
_OF_TEXT: Mapping[str, Callable[..., Any]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": str.__contains__,
    "includes": str.__contains__,
    "matches": lambda text, pattern: compile_regex(pattern).fullmatch(text) is not None,
    "equals": operator.eq,
    "equalsIgnoreCase": lambda text, other: text.lower() == other.lower(),
    "toLowerCase": str.lower,
    "toUpperCase": str.upper,
    "trim": str.strip,
    "length": len,
    "size": len,
    "toString": str,
}
_OF_LIST: Mapping[str, Callable[..., Any]] = {"contains": operator.contains, "size": len, "isEmpty": operator.not_}


def compile_expression(text: str) -> Evaluate:
    """Return a function from `key`, `value` and the other names to an expression's value. Raises ValueError for what is
    not understood. The function raises TransformError.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"an expression of more than {_LONGEST} characters")
    parser = _Parser(_tokens(text))
    evaluate = parser.expression()
    if parser.token != ("end", ""):
        raise ValueError(f"the expression is not understood from {parser.token[1]!r} on")
    return evaluate


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    index, end = 0, len(text.rstrip())
    while index < end:
        match = _TOKEN.match(text, index)
        if match is None:
            raise ValueError(f"the expression is not understood from {text[index : index + 20].strip()!r} on")
        kind = match.lastgroup or ""
        tokens.append((kind, match[kind]))
        index = match.end()
    return [*tokens, ("end", "")]


class _Parser:
    """Reads tokens by recursive descent: each method takes the tokens of one level of precedence."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._index = 0
        self._depth = 0

    @property
    def token(self) -> tuple[str, str]:
        return self._tokens[self._index]

    def _takes(self, *signs: str) -> str | None:
        """Take the next token if it is one of these signs or words."""
        kind, text = self.token
        if kind in ("sign", "name") and text in signs:
            self._index += 1
            return text
        return None

    def _need(self, sign: str) -> None:
        if not self._takes(sign):
            raise ValueError(f"the expression has {self.token[1] or 'an end'!r} where {sign!r} has to be")

    def expression(self) -> Evaluate:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError(f"an expression with more than {_DEEPEST} levels of parentheses")
        condition = self._or()
        if self._takes("?:"):
            otherwise = self.expression()
            evaluate: Evaluate = lambda values: result if (result := condition(values)) else otherwise(values)  # noqa: E731
        elif self._takes("?"):
            then = self.expression()
            self._need(":")
            other = self.expression()
            evaluate = lambda values: then(values) if condition(values) else other(values)  # noqa: E731
        else:
            evaluate = condition
        self._depth -= 1
        return evaluate

    def _or(self) -> Evaluate:
        parts = [self._and()]
        while self._takes("||"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else lambda values: any(part(values) for part in parts)

    def _and(self) -> Evaluate:
        parts = [self._not()]
        while self._takes("&&"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else lambda values: all(part(values) for part in parts)

    def _not(self) -> Evaluate:
        count = 0
        while self._takes("!"):
            count += 1
        comparison = self._comparison()
        if not count:
            return comparison
        return lambda values: bool(comparison(values)) is (count % 2 == 0)

    def _comparison(self) -> Evaluate:
        first = self._sum()
        sign = self._takes("==", "===", "!=", "!==", "<", "<=", ">", ">=", "=~", "==~", "in")
        if sign is None:
            return first
        second = self._sum()
        if sign in ("==", "==="):
            return lambda values: _equal(first(values), second(values))
        if sign in ("!=", "!=="):
            return lambda values: not _equal(first(values), second(values))
        if sign == "in":
            return lambda values: any(_equal(first(values), item) for item in _listed(second(values)))
        if sign in _ORDER:
            compare = _ORDER[sign]
            return lambda values: _compared(compare, first(values), second(values))
        return lambda values: _matches(first(values), second(values), is_whole=sign == "==~")

    def _sum(self) -> Evaluate:
        first = self._unary()
        while sign := self._takes("+", "-"):
            first = _sum_of(sign, first, self._unary())
        return first

    def _unary(self) -> Evaluate:
        if self._takes("-"):
            operand = self._postfix()
            return lambda values: _number(operand(values)) * -1
        return self._postfix()

    def _postfix(self) -> Evaluate:
        target = self._primary()
        while True:
            if sign := self._takes(".", "?."):
                kind, name = self.token
                if kind != "name":
                    raise ValueError(f"the expression has {name!r} where a name has to be")
                self._index += 1
                is_safe = sign == "?."
                if self._takes("("):
                    target = _called(target, name, self._arguments(")"), is_safe)
                else:
                    target = _member(target, name, is_safe)
            elif self._takes("["):
                index = self.expression()
                self._need("]")
                target = _indexed(target, index)
            else:
                return target

    def _arguments(self, end: str) -> list[Evaluate]:
        arguments: list[Evaluate] = []
        while not self._takes(end):
            if arguments:
                self._need(",")
            arguments.append(self.expression())
        return arguments

    def _primary(self) -> Evaluate:
        if self._takes("("):
            inner = self.expression()
            self._need(")")
            return inner
        if self._takes("["):
            items = self._arguments("]")
            return lambda values: [item(values) for item in items]
        kind, text = self.token
        self._index += 1
        if kind == "number":
            number = float(text) if "." in text else int(text)
            return lambda _: number
        if kind == "text":
            plain = re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text[1:-1], flags=re.DOTALL)
            return lambda _: plain
        if kind == "name" and text in _CONSTANTS:
            return lambda _: _CONSTANTS[text]
        if kind == "name" and text in _NAMES:
            return lambda values: values["header" if text == "headers" else text]
        if kind == "end":
            raise ValueError("the expression ends too early")
        raise ValueError(f"{text!r} is not understood; there are {', '.join(sorted(_NAMES))}, and their fields")


def _equal(first: Any, second: Any) -> bool:
    """Compare as Groovy: a number is no text, and true is not 1."""
    return isinstance(first, bool) is isinstance(second, bool) and bool(first == second)


def _compared(compare: Callable[[Any, Any], Any], first: Any, second: Any) -> bool:
    if first is None or second is None:
        return False
    try:
        return bool(compare(first, second))
    except TypeError:
        raise TransformError(f"a {type(first).__name__} is not compared with a {type(second).__name__}") from None


def _matches(text: Any, pattern: Any, is_whole: bool) -> bool:
    if not isinstance(pattern, str) or not isinstance(text, (str, type(None))):
        raise TransformError("a regular expression is matched with text")
    if text is None:
        return False
    regex = compile_regex(pattern)
    return (regex.fullmatch(text) if is_whole else regex.search(text)) is not None


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TransformError("in is followed by a list")
    return value


def _sum_of(sign: str, first: Evaluate, second: Evaluate) -> Evaluate:
    def evaluate(values: Values) -> Any:
        augend, addend = first(values), second(values)
        if sign == "+" and (isinstance(augend, str) or isinstance(addend, str)):
            return _text(augend) + _text(addend)
        return _number(augend) + _number(addend) * (1 if sign == "+" else -1)

    return evaluate


def _text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TransformError(f"a {type(value).__name__} is no number")
    return value


def _member(target: Evaluate, name: str, is_safe: bool) -> Evaluate:
    def evaluate(values: Values) -> Any:
        struct = target(values)
        if struct is None:
            if is_safe:
                return None
            raise TransformError(f"{name} of null: write ?.{name}")
        if not isinstance(struct, Mapping):
            raise TransformError(f"there is no field {name}")
        if name not in struct:
            raise TransformError(f"there is no field {name}")
        return struct[name]

    return evaluate


def _indexed(target: Evaluate, index: Evaluate) -> Evaluate:
    def evaluate(values: Values) -> Any:
        container, position = target(values), index(values)
        if isinstance(container, Mapping):
            return container.get(position)
        if isinstance(container, list) and isinstance(position, int) and -len(container) <= position < len(container):
            return container[position]
        raise TransformError(f"there is no {position!r} of it")

    return evaluate


def _called(target: Evaluate, name: str, arguments: list[Evaluate], is_safe: bool) -> Evaluate:
    if name not in _OF_TEXT and name not in _OF_LIST and name not in _GETTERS and name != "name":
        raise ValueError(f"the method {name} is not supported")

    def evaluate(values: Values) -> Any:
        owner, parameters = target(values), [argument(values) for argument in arguments]
        if owner is None:
            if is_safe:
                return None
            raise TransformError(f"{name}() of null: write ?.{name}()")
        if isinstance(owner, Mapping):
            if name == "name" and not parameters:
                return owner["name"]
            if name in _GETTERS and len(parameters) == 1:
                return owner.get(parameters[0])
        methods = _OF_TEXT if isinstance(owner, str) else _OF_LIST if isinstance(owner, list) else {}
        if name == "toString" and not parameters:
            return _text(owner)
        if name not in methods:
            raise TransformError(f"a {type(owner).__name__} has no method {name}")
        try:
            return methods[name](owner, *parameters)
        except TypeError:
            raise TransformError(f"{name}() does not take these arguments") from None

    return evaluate
