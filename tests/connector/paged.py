"""A worker's listener over connectors in all states, for the page's tests and the pictures in the docs."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from connector.test_rest import Api, settings
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

from helenus_connector import metrics
from helenus_connector._reports import ConnectorReports
from helenus_connector.history import POINTS, STEP_S
from helenus_connector.snapshot._ring import new_stretch, remaining_share
from helenus_connector.snapshot.snapshot_store import Snapshot
from helenus_schemas.errors import HelenusError, Kind

BASE = {"connector.class": "helenus.CassandraSource", "keyspace": "shop", "output.format": "json"}
EVIL = '<img src=x onerror="document.title=\'pwned\'"><script>document.title="pwned"</script>'


@contextlib.contextmanager
def shop(tmp_path: Path, evil: bool = True, **more: str) -> Iterator[Api]:
    """Orders run, with a snapshot and a gate that holds changes; others wait, failed, or are paused. With `evil`,
    a message is HTML that would change the page's title.
    """
    api = Api(settings(tmp_path, **more))
    try:
        _fill(api, EVIL if evil else "payload")
        api.failed = api.connectors.first_obstacle()
        yield api
    finally:
        api.close()
        for connector in api.connectors.all().values():
            for task in connector.tasks.values():
                metrics.forget(task.labels)
        metrics.REASON.clear()
        metrics.CONNECTOR_STATE.clear()


@contextlib.contextmanager
def browser(width: int, height: int, scheme: str = "light") -> Iterator[Any]:
    """Chromium in a window of this size. Skips the test if there is none."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    options = Options()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, Service(driver))
    try:
        metrics_of_device = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        started.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics_of_device)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        started.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        yield started
    finally:
        started.quit()


def shown(driver: Any, base: str) -> None:
    """Open the page, and wait until it shows connectors."""
    driver.get(base + "/")
    until(driver, lambda: driver.find_elements("css selector", "article"))


def until(driver: Any, holds: Callable[[], Any]) -> Any:
    """Wait until a condition holds."""
    return WebDriverWait(driver, 20).until(lambda _: holds())


def _fill(api: Api, column: str) -> None:
    for name, tables in {
        "orders": "orders,order_lines",
        "stock": "stock",
        "users": "users",
        "prices": "prices",
    }.items():
        config: dict[str, Any] = {**BASE, "table": tables}
        api.connectors.put(name, {**config, "name": name}, "PAUSED" if name == "prices" else None)
    tasks = {task.table: task for connector in api.connectors.all().values() for task in connector.tasks.values()}
    for task in tasks.values():
        task.ready = True
    away = HelenusError(Kind.REGISTRY_UNREACHABLE, "the registry answered 503", "http://registry:8081")
    tasks["shop.order_lines"].note_failure(away, time.monotonic())
    tasks["shop.order_lines"].last_error = time.time() - 95, str(away)
    tasks["shop.order_lines"].note_success()
    tasks["shop.users"].error = HelenusError(
        Kind.TABLE_UNSUPPORTED, f"column {column} has a type that is not known", "shop.users"
    )
    tasks["shop.stock"].ready = False
    tasks["shop.stock"].waiting = "waits for its events topic events-shop.stock: the agent makes it when it starts"
    ConnectorReports(api.connectors).report_states()
    _measure(api, tasks)
    running_snapshot = Snapshot("orders", "orders", "1", "signal", rows=412_000, started=time.time() - 60, seconds=60.0)
    running_snapshot.left, running_snapshot.whole = [new_stretch(1 << 62)], remaining_share([new_stretch()])
    with api.snapshots.store.changing():
        api.snapshots.store.for_table("orders", "orders").begin(running_snapshot)


def _measure(api: Api, tasks: dict[str, Any]) -> None:
    """An hour of a busy shop, as the worker would have noted it."""
    busy = tasks["shop.orders"].labels, tasks["shop.order_lines"].labels
    begin = time.monotonic() - POINTS * STEP_S
    for step in range(POINTS + 1):
        wave = 1 + 0.6 * math.sin(step / 19) + 0.25 * math.sin(step / 3)
        for factor, labels in zip((1, 4), busy, strict=True):
            metrics.EVENTS_READ.labels(*labels).inc(60 * STEP_S * wave * factor)
            metrics.RECORDS.labels(*labels).inc(20 * STEP_S * wave * factor)
            metrics.LAG.labels(*labels).set(round(12 * wave * factor) + (900 * factor if 100 < step < 108 else 0))
            metrics.LAG_SECONDS.labels(*labels).set(0.2 * wave)
            metrics.REPLICATION_SECONDS.labels(*labels).set(0.21 * wave + (14 if 100 < step < 108 else 0))
        api.history.note(begin + step * STEP_S)
    metrics.EVENTS_UNCONFIRMED.labels(*busy[0]).set(37)
    metrics.GATE_WAITING.labels(*busy[0]).set(12)
    metrics.GATE_OLDEST_SECONDS.labels(*busy[0]).set(1.8)
    metrics.EVENTS.labels(*busy[1], "dead_lettered").inc(2)
    metrics.LAG.labels(*tasks["shop.prices"].labels).set(48_120)
    metrics.LAG_SECONDS.labels(*tasks["shop.prices"].labels).set(1250)
