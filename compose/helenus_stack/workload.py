"""What the demo writes: a shop's orders, from their first day to their last."""

from __future__ import annotations

KEYSPACE = "shop"
TABLE = "orders"

SCHEMA = [
    "CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    "CREATE TYPE shop.address (street text, city text)",
    """CREATE TABLE shop.orders (
  customer text, order_id int, status text, total decimal, placed date,
  tags set<text>, notes list<text>, lines map<text, int>, ship_to address,
  PRIMARY KEY (customer, order_id)
) WITH cdc = true""",
]

_ADA_1 = "customer = 'ada' AND order_id = 1"
_ADA_2 = "customer = 'ada' AND order_id = 2"
_GRACE_1 = "customer = 'grace' AND order_id = 1"
_LINUS_1 = "customer = 'linus' AND order_id = 1"


def _order(customer: str, order_id: int, total: str, lines: str, street: str, city: str) -> str:
    return (
        "INSERT INTO shop.orders (customer, order_id, status, total, placed, lines, ship_to) "
        f"VALUES ('{customer}', {order_id}, 'new', {total}, '2026-03-0{order_id}', {lines}, "
        f"{{street: '{street}', city: '{city}'}})"
    )


CHAPTERS: list[tuple[str, list[str]]] = [
    (
        "Orders come in: every insert becomes a record of the whole row",
        [
            _order("ada", 1, "12.50", "{'tea': 2}", "Elm 5", "Rome"),
            _order("ada", 2, "99.00", "{'lamp': 1}", "Elm 5", "Rome"),
            _order("grace", 1, "7.25", "{'pencil': 5}", "Oak 7", "Oslo"),
            _order("grace", 2, "30.00", "{'clock': 1}", "Oak 7", "Oslo"),
            _order("grace", 3, "18.40", "{'wire': 3}", "Oak 7", "Oslo"),
            _order("linus", 1, "42.00", "{'keyboard': 1}", "Fir 3", "Bern"),
            "INSERT INTO shop.orders (customer, order_id) VALUES ('linus', 2)",
        ],
    ),
    (
        "They change: an update names some columns, the record shows all",
        [
            f"UPDATE shop.orders SET status = 'paid' WHERE {_ADA_1}",
            f"UPDATE shop.orders SET status = 'paid', total = 94.05 WHERE {_ADA_2}",
            f"UPDATE shop.orders SET status = 'paid' WHERE {_GRACE_1}",
            f"UPDATE shop.orders SET total = null WHERE {_LINUS_1}",
            "UPDATE shop.orders SET status = 'draft' WHERE customer = 'linus' AND order_id = 2",
            f"UPDATE shop.orders SET status = 'sent' WHERE {_ADA_1}",
        ],
    ),
    (
        "Collections: element by element in the log, whole in the record",
        [
            f"UPDATE shop.orders SET tags = {{'gift', 'fragile'}} WHERE {_ADA_2}",
            f"UPDATE shop.orders SET tags = tags + {{'express'}} WHERE {_ADA_2}",
            f"UPDATE shop.orders SET tags = tags - {{'fragile'}} WHERE {_ADA_2}",
            f"UPDATE shop.orders SET notes = ['ring twice'] WHERE {_GRACE_1}",
            f"UPDATE shop.orders SET notes = notes + ['leave at the door'] WHERE {_GRACE_1}",
            f"UPDATE shop.orders SET notes[0] = 'do not ring' WHERE {_GRACE_1}",
            f"UPDATE shop.orders SET lines['mouse'] = 1 WHERE {_LINUS_1}",
            f"UPDATE shop.orders SET lines = lines + {{'cable': 2}} WHERE {_LINUS_1}",
            f"DELETE lines['keyboard'] FROM shop.orders WHERE {_LINUS_1}",
            f"UPDATE shop.orders SET ship_to.street = 'Fir 33' WHERE {_LINUS_1}",
        ],
    ),
    (
        "The table gets a column: the next record has it, under a new schema",
        [
            "ALTER TABLE shop.orders ADD courier text",
            f"UPDATE shop.orders SET courier = 'pigeon' WHERE {_ADA_1}",
            f"UPDATE shop.orders SET courier = 'bicycle', status = 'sent' WHERE {_GRACE_1}",
        ],
    ),
    (
        "Orders go: the record of a row that is gone is null",
        [
            f"DELETE notes FROM shop.orders WHERE {_GRACE_1}",
            f"DELETE FROM shop.orders WHERE {_ADA_2}",
            "DELETE FROM shop.orders WHERE customer = 'linus' AND order_id = 2",
            "INSERT INTO shop.orders (customer, order_id, status) VALUES ('ada', 2, 'again') USING TTL 86400",
            "DELETE FROM shop.orders WHERE customer = 'grace'",
            f"UPDATE shop.orders SET status = 'delivered' WHERE {_ADA_1}",
        ],
    ),
]
"""Headings and their statements. Each statement touches one key; one that changes the schema starts with ALTER."""
