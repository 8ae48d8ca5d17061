"""Tables that few would make, and statements over them: what is legal in CQL, and at the edge of what others hold."""

from __future__ import annotations

import sys
from dataclasses import dataclass

sys.set_int_max_str_digits(0)  # what compares them prints them
NANS = ("NaN", "blob_as_double(0xfff8000000000000)", "blob_as_double(0x7ff8000000000001)")
DIGITS = "7" * 6000


@dataclass(frozen=True)
class Odd:
    """`columns` of CREATE TABLE, `options` after WITH, `types` made before it, `statements` over `{t}`."""

    columns: str
    statements: tuple[str, ...]
    options: str = ""
    types: tuple[str, ...] = ()


ODD = {
    # Cassandra holds NaNs for one value, and 0.0 and -0.0 for two.
    "floats": Odd(
        "p int, c double, d float, v double, w float, l list<double>, m map<double, float>, PRIMARY KEY (p, c, d)",
        (
            *(f"INSERT INTO {{t}} (p, c, d, v, w) VALUES (1, {n}, NaN, {n}, -0.0)" for n in NANS),
            *(
                f"INSERT INTO {{t}} (p, c, d, v, w, l) VALUES (1, {c}, {d}, {c}, {d}, [{c}, NaN])"
                for c in ("0.0", "-0.0", "Infinity", "-Infinity", "4.9e-324")
                for d in ("0.0", "-0.0", "1e-45")
            ),
            f"DELETE FROM {{t}} WHERE p = 1 AND c = {NANS[1]} AND d = NaN",
            "INSERT INTO {t} (p, c, d, m) VALUES (1, 1, 1, {0.5: NaN, -0.0: Infinity})",
            "DELETE FROM {t} WHERE p = 1 AND c > -0.0 AND c < Infinity",
        ),
        "CLUSTERING ORDER BY (c DESC, d ASC)",
    ),
    "numbers": Odd(
        "p varint, c varint, d decimal, v varint, m map<varint, decimal>, PRIMARY KEY (p, c, d)",
        (
            f"INSERT INTO {{t}} (p, c, d, v, m) VALUES ({DIGITS}, -{DIGITS}, 1E-40, -{DIGITS}, {{{DIGITS}: 1E+40}})",
            *(
                f"INSERT INTO {{t}} (p, c, d, v) VALUES (blob_as_varint(0x0001), blob_as_varint({c}), {d}, {n})"
                for n, c in enumerate(("0x01", "0x0001", "0xff", "0xffff"))
                for d in ("0", "0.00", "0E+5", "100", "1E+2")
            ),
            "DELETE FROM {t} WHERE p = blob_as_varint(0x0001) AND c = 1 AND d = 1E+2",
        ),
    ),
    # Keys that are read in groups, by bytes that Cassandra would not make of their values.
    "wide_numbers": Odd(
        "k varint PRIMARY KEY, v int",
        tuple(f"INSERT INTO {{t}} (k, v) VALUES (blob_as_varint(0x{n:08x}), {n})" for n in range(1, 60)),
    ),
    "mapped": Odd(
        "k inet PRIMARY KEY, v inet",
        tuple(
            f"INSERT INTO {{t}} (k, v) VALUES (blob_as_inet(0x{0xFFFF0A000000 + n:032x}), '10.0.0.{n}')"
            for n in range(1, 60)
        ),
    ),
    "no_digits": Odd(
        "k int, c varint, v int, PRIMARY KEY (k, c)",
        (
            "BEGIN UNLOGGED BATCH "
            + "".join(
                f"INSERT INTO {{t}} (k, c, v) VALUES (1, {c}, {n});"
                for n, c in enumerate(("blob_as_varint(0x)", "0", "blob_as_varint(0x00ff)", "-1"))
            )
            + "APPLY BATCH",
        ),
    ),
    "moments": Odd(
        "p date, c timestamp, t time, a date, b timestamp, l list<date>, du duration, PRIMARY KEY (p, c, t)",
        (
            "INSERT INTO {t} (p, c, t, a, b, l, du) VALUES (blob_as_date(0x00000000), '0001-01-01T00:00:00Z',"
            " '00:00:00', blob_as_date(0xffffffff), -1, ['-0001-01-01'], -3mo2d1ns)",
            "INSERT INTO {t} (p, c, t, a, du) VALUES ('1969-12-31', -1, '23:59:59.999999999', '1970-01-01', 0s)",
            "INSERT INTO {t} (p, c, t) VALUES ('1970-01-01', '9999-12-31T23:59:59.999Z', '12:00:00.000000001')",
            "DELETE FROM {t} WHERE p = '1969-12-31' AND c < 0 AND c > -5",
        ),
        "CLUSTERING ORDER BY (c DESC, t DESC)",
    ),
    "nested": Odd(
        "p frozen<map<text, frozen<list<frozen<outer>>>>>, c frozen<outer>, d frozen<set<frozen<inner>>>, v outer,"
        " w map<frozen<inner>, frozen<outer>>, PRIMARY KEY (p, c, d)",
        (
            "INSERT INTO {t} (p, c, d, v, w) VALUES ({'k': [{i: {x: 1, y: 'a'}, n: [1]}]}, {i: {x: 1}},"
            " {{x: 2, y: ''}}, {n: [3, 4]}, {{x: 1}: {i: {y: 'b'}}})",
            "UPDATE {t} SET v.i = {x: 9, y: null} WHERE p = {'k': [{i: {x: 1, y: 'a'}, n: [1]}]}"
            " AND c = {i: {x: 1}} AND d = {{x: 2, y: ''}}",
            "INSERT INTO {t} (p, c, d) VALUES ({'': []}, {n: []}, {{y: 'z'}})",
        ),
        "CLUSTERING ORDER BY (c DESC, d ASC)",
        ("inner (x int, y text)", "outer (i frozen<inner>, n frozen<list<int>>)"),
    ),
    "only_statics": Odd(
        "p int, c int, s text static, z frozen<map<text, int>> static, PRIMARY KEY (p, c)",
        (
            "INSERT INTO {t} (p, s) VALUES (1, '')",
            "INSERT INTO {t} (p, c) VALUES (1, 1)",
            "INSERT INTO {t} (p, z) VALUES (2, {'a': 1})",
            "DELETE s FROM {t} WHERE p = 1",
            "INSERT INTO {t} (p, c, s) VALUES (3, 1, 'x')",
            "DELETE FROM {t} WHERE p = 3 AND c = 1",
            "UPDATE {t} SET s = 'y' WHERE p = 4",
            "DELETE FROM {t} WHERE p = 4",
        ),
    ),
    "counted": Odd(
        "p text, c int, n counter, s counter static, PRIMARY KEY (p, c)",
        (
            "UPDATE {t} SET n = n + 5, s = s + 1 WHERE p = 'a' AND c = 1",
            "UPDATE {t} SET s = s - 3 WHERE p = 'a'",
            "UPDATE {t} SET n = n - 7 WHERE p = 'a' AND c = 2",
            "DELETE n FROM {t} WHERE p = 'a' AND c = 1",
        ),
    ),
    "words": Odd(
        'p text, "C " ascii, "writetime" text, "a""b" text, "Token" set<text>, "select" map<text, text>, "é" text,'
        ' "index_0" tuple<text, blob>, PRIMARY KEY (p, "C ")',
        (
            """INSERT INTO {t} (p, "C ", "writetime", "a""b", "é") VALUES ('\u0000', '', '', '\U0001f600', 'null')""",
            """INSERT INTO {t} (p, "C ", "Token", "select", "index_0") VALUES (' ', '"', {'', ' ', '\\'}, {'': ''},
            ('', 0x))""",
            """DELETE "a""b" FROM {t} WHERE p = '\u0000' AND "C " = ''""",
            """DELETE FROM {t} WHERE p = ' ' AND "C " >= ''""",
        ),
        'CLUSTERING ORDER BY ("C " DESC)',
    ),
    "vectors": Odd(
        "p vector<float, 2>, c vector<text, 2>, v vector<frozen<list<int>>, 2>, w list<frozen<vector<double, 1>>>,"
        " x map<int, frozen<vector<bigint, 2>>>, PRIMARY KEY (p, c)",
        (
            "INSERT INTO {t} (p, c, v, w, x) VALUES ([-0.0, NaN], ['', 'a'], [[], [1]], [[NaN]], {1: [1, 2]})",
            "UPDATE {t} SET w = w + [[2]] WHERE p = [-0.0, NaN] AND c = ['', 'a']",
        ),
    ),
}
