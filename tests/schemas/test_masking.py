"""Logins in addresses: whatever is shown of an address, its password is not."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from helenus_schemas.settings.masking import STARS, check_references, shown

MARK = "Hunter2"
AROUND = st.text(":/@,?#%&.[]{}()=+-_ab1é", max_size=6)
PASSWORDS = st.builds(lambda before, after: f"{before}{MARK}{after}", AROUND, AROUND)
ADDRESSES = st.builds(
    lambda scheme, user, password, host: f"{scheme}{user}:{password}@{host}",
    st.sampled_from(["", "http://", "https://", "pulsar+ssl://"]),
    st.text("abc.-_1", min_size=1, max_size=4),
    PASSWORDS,
    st.sampled_from(["h", "h:80", "h:80/path", "10.0.0.1,10.0.0.2:90", "[::1]:80"]),
)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://user:pass@h:80/x", f"http://{STARS}@h:80/x"),
        ("http://user:p/ss@h", f"http://{STARS}@h"),
        ("http://user:p@ss@h", f"http://{STARS}@h"),
        ("http://user:p,ss@h", f"http://{STARS}@h"),
        ("http://token@h", f"http://{STARS}@h"),
        ("user:pass@h:80", f"{STARS}@h:80"),
        ("http://a:p@h,http://b:q@i", f"http://{STARS}@h,http://{STARS}@i"),
        ("http://a:p@h, https://i, b:q@j", f"http://{STARS}@h, https://i, {STARS}@j"),
        ("http://h:80,http://i:80/x", "http://h:80,http://i:80/x"),
        ("h:9092,i:9092", "h:9092,i:9092"),
        ("http://h: ask me@example.org", "http://h: ask me@example.org"),
        ("me@example.org", "me@example.org"),
    ],
)
def test_a_login_is_stars_and_the_rest_is_shown(address: str, expected: str) -> None:
    assert shown(address, secret=False) == expected


@given(st.lists(ADDRESSES, min_size=1, max_size=3), st.sampled_from([", ", " "]))
def test_no_password_is_shown(addresses: list[str], between: str) -> None:
    assume(not any(re.search(r",[\w+.-]+://", address) for address in addresses))  # which begins the next address
    text = shown(between.join(addresses), secret=False)
    assert MARK not in text
    assert text.count(STARS) == len(addresses)
    assert text.endswith(addresses[-1].rpartition("@")[2])


@given(st.lists(ADDRESSES, min_size=1, max_size=3))
def test_no_password_is_shown_in_a_list_without_spaces(addresses: list[str]) -> None:
    assume(not any(re.search(r",[\w+.-]+://", address) for address in addresses))
    text = shown(",".join(addresses), secret=False)
    assert MARK not in text
    assert text.endswith(addresses[-1].rpartition("@")[2])


@pytest.mark.parametrize("value", ["$5 {a}", "a}", "a$", "{x}", "$(x)", "${env:A}-${file:/p:k}", "${table}"])
def test_what_may_stay_as_it_is(value: str) -> None:
    check_references(value, ("table",))


@pytest.mark.parametrize(
    "value", ["${env:A", "${env:A}${file:/p:k", "${", "${}", "${ env:A}", "x${Hunter2}", "${table}"]
)
def test_what_is_no_reference(value: str) -> None:
    """Of a longer value nothing is shown: it may be a password."""
    with pytest.raises(ValueError, match=r"there is no|a reference ends in }") as error:
        check_references(value)
    assert MARK not in str(error.value)
