"""The worker's page: what it is served as, who may change what, and that a real browser shows and does it."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from connector.paged import EVIL, browser, shop, shown, until

from helenus_agent import metrics as agent_metrics
from helenus_connector._reports import TopicEnds
from helenus_connector.history import POINTS, STEP_S, History
from helenus_connector.rest import server
from helenus_schemas.service import monitoring, page

BROWSERS = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "is_html"),
    [(BROWSERS, True), ("*/*", False), ("", False), ("application/json", False), ("application/json,text/html", False)],
)
def test_browsers_get_html_and_clients_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accept: str, is_html: bool
) -> None:
    monkeypatch.setattr(server, "events_log", lambda _: SimpleNamespace(cluster=lambda: "abc"))
    with shop(tmp_path) as api:
        answer = requests.get(api.base + "/", headers={"Accept": accept}, timeout=10)
        assert answer.headers["Vary"] == "Accept"
        assert answer.headers["Content-Type"].startswith("text/html") is is_html
        assert is_html or answer.json().keys() == {"version", "commit", "kafka_cluster_id"}


@pytest.mark.parametrize(("package", "name"), [("helenus_connector.rest", "page.html"), ("helenus_agent", "page.html")])
def test_a_page_runs_its_own_script_alone_and_asks_nothing_outside(package: str, name: str) -> None:
    served = page.load(package, name)
    text, policy = served.body.decode(), served.headers["Content-Security-Policy"]
    for tag in ("script", "style"):
        (inner,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert {"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"} <= set(policy.split("; "))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|\sstyle=", text)
    assert not re.findall(r"(?:src|href)=\"(?!data:)", text)
    assert set(re.findall(r"https?://[^\"' ]+", text)) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize(("package", "name"), [("helenus_connector.rest", "page.html"), ("helenus_agent", "page.html")])
def test_a_page_asks_its_origin_without_the_login_of_its_address(package: str, name: str) -> None:
    """Browsers refuse to fetch what is relative to https://user:password@host."""
    text = page.load(package, name).body.decode()
    assert re.findall(r"\bfetch\((.*?)[,)]", text) == ["location.origin + path"]
    assert "XMLHttpRequest" not in text


def test_the_overview_says_what_the_status_and_the_metrics_say(tmp_path: Path) -> None:
    with shop(tmp_path) as api:
        overview = api.ask("GET", "/overview?history=true")[1]
        connectors_by_name = {connector["name"]: connector for connector in overview["connectors"]}
        for name, shown_connector in connectors_by_name.items():
            tasks = api.ask("GET", f"/connectors/{name}/status")[1]["tasks"]
            assert [(t["state"], t.get("trace")) for t in tasks] == [
                (t["state"], t["reason"]) for t in shown_connector["tables"]
            ]
        (stock,) = connectors_by_name["stock"]["tables"]
        assert (stock["state"], stock["reason"][:27]) == ("UNASSIGNED", "waits for its events topic ")
        assert overview["trouble"].startswith("stock: waits for its events topic") or "users" in overview["trouble"]
        metrics = api.call("GET", "/metrics").text
        for connector, table, kind in (("stock", "stock", "waiting"), ("users", "users", "table-unsupported")):
            labels = f'connector="{connector}",keyspace="shop",kind="{kind}",table="{table}"'
            assert f"helenus_connector_reason{{{labels}}} 1.0" in metrics
        orders = next(table for table in connectors_by_name["orders"]["tables"] if table["table"] == "orders")
        assert (orders["gate_changes"], orders["unconfirmed_events"]) == (12, 37)
        assert connectors_by_name["orders"]["snapshots"][0]["rows"] == 412_000
        lines = next(table for table in connectors_by_name["orders"]["tables"] if table["table"] == "order_lines")
        assert lines["state"] == "RUNNING"
        assert "the registry answered 503" in lines["last_error"]["text"]
        assert {len(points["lag"]) for *_, points in overview["history"]["tables"]} == {POINTS}


def test_a_browser_only_reads_where_everybody_gets_in(tmp_path: Path) -> None:
    with shop(tmp_path, listeners="http://0.0.0.0:0") as api:
        assert api.ask("GET", "/overview")[1]["writable"] is False
        for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Origin": api.base}):
            answer = api.call("PUT", "/connectors/orders/pause", headers=headers)
            assert (answer.status_code, answer.json()["message"]) == (
                403,
                "browsers may only read here: set rest.basic.auth.user.info, or listeners to localhost",
            )
        assert api.connectors.status("orders").state == "RUNNING"
        assert api.call("PUT", "/connectors/orders/pause").status_code == 202, "other clients may, as in Kafka Connect"
    with shop(tmp_path / "login", listeners="http://0.0.0.0:0", rest_basic_auth_user_info="a:b") as api:
        api.session.auth = ("a", "b")
        assert api.ask("GET", "/overview")[1]["writable"] is True


def test_the_history_is_bounded(tmp_path: Path) -> None:
    with shop(tmp_path) as api:
        history = History()
        for step in range(3 * POINTS):
            history.note(step * STEP_S)
            history.note(step * STEP_S + 1)
        assert {len(points["lag"]) for points in history.points().values()} == {POINTS}
        assert len(history.points()) == len([t for c in api.connectors.all().values() for t in c.tasks])


def test_how_long_a_reader_is_behind() -> None:
    ends = TopicEnds()
    assert ends.lag("t", {"0": 5}, {"0": 5}, 10) == 0
    assert ends.lag("t", {"0": 5}, {"0": 9}, 20) == 0  # seen right now
    assert ends.lag("t", {"0": 5}, {"0": 20}, 30) == 10
    assert ends.lag("t", {"0": 9}, {"0": 20}, 40) == 10, "those up to 9 are done; the next were seen at 30"
    assert ends.lag("t", {"0": 20}, {"0": 20}, 50) == 0
    for second in range(1500):
        seconds = ends.lag("t", {"0": 20}, {"0": 21 + second}, 100 + second)
    assert seconds == 1499, "the oldest one stays however many looks there are"


def test_the_agents_page() -> None:
    server = monitoring.serve("127.0.0.1", 0, lambda: None, page.load("helenus_agent", "page.html"))
    try:
        answer = requests.get(f"http://127.0.0.1:{server.port}/", timeout=10)
        assert "Helenus agent" in answer.text
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    finally:
        server.shutdown()


# long: a browser starts for each; it is skipped where there is none.
@pytest.mark.long
@pytest.mark.parametrize(("width", "scheme"), [(1100, "light"), (1100, "dark"), (390, "light")])
def test_in_a_browser(tmp_path: Path, width: int, scheme: str) -> None:
    with shop(tmp_path) as api, browser(width, 800, scheme) as driver:
        shown(driver, api.base)
        text = driver.find_element("tag name", "main").text
        for expected in ("waits for its events topic events-shop.stock", EVIL, "snapshot of orders", "12 changes"):
            assert expected in text
        assert driver.find_element("tag name", "h2").text == "users", "what failed comes first"
        assert driver.title == "Helenus connector", "a message is never read as HTML"
        assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        dark = driver.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
        assert dark is (scheme == "dark")

        def button(label: str) -> None:
            # In one step: the page is drawn again every few seconds.
            driver.execute_script(
                "const all = [...document.querySelectorAll('article')];"
                "const of = all.find(a => a.querySelector('h2').textContent === 'stock');"
                "[...of.querySelectorAll('button')].find(b => b.textContent === arguments[0]).click()",
                label,
            )

        button("Pause")
        driver.find_element("id", "no").click()
        assert api.connectors.status("stock").state == "RUNNING"
        button("Pause")
        driver.find_element("id", "yes").click()
        until(driver, lambda: api.connectors.status("stock").state == "PAUSED")
        resumes = "return [...document.querySelectorAll('button')].filter(b => b.textContent === 'Resume').length"
        until(driver, lambda: driver.execute_script(resumes) == 2)
        button("Resume")
        driver.find_element("id", "yes").click()
        until(driver, lambda: api.connectors.status("stock").state == "RUNNING")
        wrong = [line for line in driver.get_log("browser") if line["level"] == "SEVERE"]
        assert not wrong, "nothing failed, and the policy refused nothing"


@pytest.mark.long
def test_a_login_in_the_address(tmp_path: Path) -> None:
    """As https://user:password@host, which browsers take; a table that failed is not beside a green state."""
    with shop(tmp_path, rest_basic_auth_user_info="ops:password") as api, browser(1100, 800) as driver:
        shown(driver, api.base.replace("//", "//ops:password@"))
        assert "does not answer" not in driver.find_element("id", "notes").text
        states = {
            article.find_element("tag name", "h2").text: article.find_element("class name", "state")
            for article in driver.find_elements("tag name", "article")
        }
        assert states["users"].text == "RUNNING, 1 of 1 table FAILED"
        assert "bad" in states["users"].get_attribute("class")
        assert states["stock"].text == "RUNNING"
        assert driver.find_element("id", "about").text.endswith("4 connectors, 5 tables")


@pytest.mark.long
def test_no_buttons_in_a_browser_that_may_only_read(tmp_path: Path) -> None:
    with shop(tmp_path, listeners="http://0.0.0.0:0") as api, browser(1100, 800) as driver:
        shown(driver, api.base)
        assert "Read-only" in driver.find_element("id", "notes").text
        assert not driver.find_elements("css selector", "article button")


@pytest.mark.long
def test_the_agents_page_in_a_browser() -> None:
    reasons: list[str] = ["the broker is away"]
    agents = page.load("helenus_agent", "page.html")
    agent_metrics.NODE.info({"version": "1.2.3", "address": "10.0.0.1", "host_id": "a-b", "data_center": "dc1"})
    agent_metrics.EVENTS.labels('shop."Orders"').inc()
    report = {"address": "10.0.0.1", "data_center": "dc1", "status": "publishing", "alive": True, "age_ms": 1500}
    report |= {"oldest_unsent_ms": 20, "cdc_raw_headroom_bytes": 5 << 20, "tables": ["a.b", "a.c"], "trouble": ""}
    dead = {**report, "address": "10.0.0.2", "alive": False, "cdc_raw_headroom_bytes": None, "trouble": EVIL}
    api = {"agents": [report, dead]}
    server = monitoring.serve(
        "127.0.0.1",
        0,
        lambda: reasons[0] if reasons else None,
        agents,
        api=lambda _: monitoring.json_answer(200, api),
    )
    try:
        with browser(390, 800) as driver:
            driver.get(f"http://127.0.0.1:{server.port}/")
            until(driver, lambda: "the broker is away" in driver.find_element("id", "health").text)
            reasons.clear()
            until(driver, lambda: driver.find_element("id", "health").text.startswith("Ready"))
            assert driver.find_element("id", "about").text == "1.2.3 · node 10.0.0.1 · host id a-b"
            assert "1 event" in driver.find_element("id", "tables").text
            rows = driver.find_elements("css selector", "#rows tr")
            assert rows[0].text == "10.0.0.1 dc1 publishing 1.5 s ago 20 ms 5.0 MiB 2"
            assert rows[1].text == f"10.0.0.2 dc1 dead 1.5 s ago 20 ms ? 2 {EVIL}"
            assert [row.get_attribute("class") for row in rows] == ["", "bad"]
            assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        server.shutdown()
