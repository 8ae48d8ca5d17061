"""The Java driver's configuration files."""

from __future__ import annotations

import pytest

from helenus_schemas.settings._hocon import get, parse

FILE = """
# a comment
datastax-java-driver {
  basic {
    contact-points = [ "10.0.0.1:9042", "10.0.0.2:9042" ] // another
    load-balancing-policy { local-datacenter = dc 1   # a text with a space
    }
    request.timeout = 5 seconds
  }
  advanced.auth-provider {
    class = PlainTextAuthProvider
    username = ${HELENUS_USER}"-x"
    password = "p#w//{}\\u0041"
    password = ${?HELENUS_NOT_THERE}
  }
  "advanced" : { protocol : { "max.frames" : 8 }, empty = "", spaced = " " }
}
datastax-java-driver.basic.contact-points += "10.0.0.3:9042"
datastax-java-driver.basic { request { page-size = 5000 } }
copy = ${datastax-java-driver.basic.request.timeout}
text = \"\"\"a "quoted" one\"\"\"
"""


def test_what_a_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELENUS_USER", "me")
    parsed = parse(FILE)
    driver = parsed["datastax-java-driver"]
    assert get(driver, "basic.contact-points") == ["10.0.0.1:9042", "10.0.0.2:9042", "10.0.0.3:9042"]
    assert get(driver, "basic.load-balancing-policy.local-datacenter") == "dc 1"
    assert get(driver, "basic.request") == {"timeout": "5 seconds", "page-size": "5000"}
    login = {"class": "PlainTextAuthProvider", "username": "me-x", "password": "p#w//{}A"}
    assert get(driver, "advanced.auth-provider") == login
    assert driver["advanced"]["protocol"] == {"max.frames": "8"}
    assert (get(driver, "advanced.empty"), get(driver, "advanced.spaced")) == ("", " ")
    assert (parsed["copy"], parsed["text"]) == ("5 seconds", 'a "quoted" one')
    assert get(parsed, "copy.timeout") is get(parsed, "none.at.all") is None


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "{}", "{ }\n", '{"a": {"b": ["c", {"d": ""}]}}'])
def test_json_and_nothing(text: str) -> None:
    import json

    assert parse(text) == (json.loads(text) if text.startswith("{") else {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('include "other.conf"\n', "line 1: include is not followed"),
        ("a = 1\nb {", "line 2: the end of the file was not expected"),
        ("a = 1 }", "line 1: } was not expected"),
        ("a\nb", "line 2: a text was not expected"),
        ("a = [1", "line 1: the end of the file was not expected"),
        ("a =\n", "the end of the file was not expected"),
        ('a = "x', "line 1: it is not understood"),
        (r'a = "\q"', "line 1: a text has an escape"),
        ("a = ${HELENUS_NOT_THERE}", "is neither above nor in the environment"),
        ("= 1", "line 1: = was not expected"),
        ("a..b = 1", "was not expected"),
    ],
)
def test_what_is_wrong_with_a_file(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)
