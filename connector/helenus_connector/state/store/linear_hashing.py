"""Spreads keys over pages that are added one by one (linear hashing: Litwin 1980).

    3 pages, one more   keys of page 1 whose hash now gives 3 move there; no other page changes

A key's hash gives its page. With a power of two of pages that is the hash modulo their number. In between, the pages
that were added took their keys from the first ones, so a key whose page is not there yet is still on the older one.

The page of a key is part of what is stored: with another function, keys would not be found.

It runs as it is, and compiled by Cython with the types of `linear_hashing.pxd`: the results are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar
from zlib import crc32

COMPILED = not __file__.endswith(".py")
Value = TypeVar("Value")


def page_of_key(key: bytes, page_count: int) -> int:
    """Return the page of a key, with so many pages. With one page or none that is 0."""
    if page_count < 2:
        return 0
    half = _power_of_two(page_count)
    code = crc32(key)
    number = code % (half * 2)
    return number if number < page_count else code % half


def pages_of_keys(keys: Iterable[bytes], page_count: int) -> list[int]:
    """Return the page of each key, as `page_of_key`."""
    pages: list[int] = []
    if page_count < 2:
        return [0 for _ in keys]
    half = _power_of_two(page_count)
    for key in keys:
        code = crc32(key)
        number = code % (half * 2)
        pages.append(number if number < page_count else code % half)
    return pages


def parent_page(number: int) -> int:
    """Return the page that had a page's keys before that was added."""
    return number - _power_of_two(number)


def split_page(parent_keys: dict[bytes, Value], number: int) -> dict[bytes, Value]:
    """Move the keys of the page `number`, which is added, from its parent page, and return them."""
    moved = [key for key in parent_keys if page_of_key(key, number + 1) == number]
    return {key: parent_keys.pop(key) for key in moved}


def _power_of_two(number: int) -> int:
    """Return the largest power of two that is not above a number from 1 on."""
    power = 1
    while power * 2 <= number:
        power *= 2
    return power
