"""Java's regular expressions and replacements by Python's `re`."""

from __future__ import annotations

import re

from helenus_connector.transforms.contract import TransformError

_SET_IN_SET = re.compile(r"\[\^?\]?[^\]]*?(?:\[|&&)")
"""Java's [a-z&&[^q]], of a pattern without what is escaped: `re` takes these signs as characters."""


def compile_regex(pattern: str) -> re.Pattern[str]:
    r"""Compile a pattern of Java's. Raises ValueError for one that Python's `re` has no equal for, such as \p{Alpha}.

    `\d`, `\w` and `\s` match ASCII alone, as in Java.
    """
    if _SET_IN_SET.search(re.sub(r"\\.", "", pattern, flags=re.DOTALL)):
        raise ValueError("a set in a set of characters, or &&, is not supported: write one set, such as [a-pr-z]")
    try:
        return re.compile(re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", pattern), re.ASCII)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None


def replace_first(regex: re.Pattern[str], replacement: str, text: str) -> str:
    """Return the text with its first match replaced, as Java's `Matcher.replaceFirst`. Raises TransformError for a
    group that the expression has not.
    """
    match = regex.search(text)
    if match is None:
        return text
    return text[: match.start()] + expand(match, replacement) + text[match.end() :]


def replace_all(regex: re.Pattern[str], replacement: str, text: str) -> str:
    """Return the text with all matches replaced, as Java's `Matcher.replaceAll`. Raises as `replace_first`."""
    return regex.sub(lambda match: expand(match, replacement), text)


def expand(match: re.Match[str], replacement: str) -> str:
    r"""Return a replacement with `$1`, `${name}` and `\` resolved."""
    parts: list[str] = []
    index = 0
    groups = match.re.groups
    while index < len(replacement):
        char = replacement[index]
        index += 1
        if char == "\\":
            if index == len(replacement):
                raise TransformError("the replacement ends in a backslash")
            parts.append(replacement[index])
            index += 1
        elif char != "$":
            parts.append(char)
        elif (named := re.compile(r"\{([A-Za-z][A-Za-z0-9]*)\}").match(replacement, index)) is not None:
            if named[1] not in match.re.groupindex:
                raise TransformError(f"the regular expression has no group {named[1]}")
            parts.append(match[named[1]] or "")
            index = named.end()
        else:
            digits = re.compile(r"[0-9]+").match(replacement, index)
            if digits is None:
                raise TransformError("in a replacement, $ is followed by a group; write \\$ for the sign itself")
            # As Java: as many digits as make a group that there is, and one at least.
            length = next((n for n in range(len(digits[0]), 1, -1) if int(digits[0][:n]) <= groups), 1)
            group = int(digits[0][:length])
            if group > groups:
                raise TransformError(f"the regular expression has no group {group}")
            parts.append(match[group] or "")
            index += length
    return "".join(parts)
