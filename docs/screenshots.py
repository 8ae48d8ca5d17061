"""Makes the pictures of the worker's page in docs/screenshots: real pages in Chromium, over example values.

`make screenshots` runs it. It needs chromium and chromedriver (Debian: `apt-get install chromium chromium-driver`).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SIZES = {"light": (1100, 900, "light"), "dark": (1100, 900, "dark"), "phone": (390, 844, "light")}

sys.path.insert(0, str(ROOT / "tests"))


def main() -> None:
    from connector.paged import browser, shop, shown

    target = ROOT / "docs/screenshots"
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, shop(Path(directory), evil=False) as api:
        for name, (width, height, scheme) in SIZES.items():
            with browser(width, height, scheme) as driver:
                shown(driver, api.base)
                driver.save_screenshot(str(target / f"page-{name}.png"))


if __name__ == "__main__":
    main()
