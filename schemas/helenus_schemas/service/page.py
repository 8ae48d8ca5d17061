"""The page that a program serves to browsers: one HTML file with its style and script, without a request to outside."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class HtmlPage:
    """A page's bytes, and the headers that go with them."""

    body: bytes
    headers: Mapping[str, str]


def load(package: str, name: str) -> HtmlPage:
    """Return the page of a file in a package. Only its own script and style may run, by their hashes (CSP level 2)."""
    text = files(package).joinpath(name).read_text(encoding="utf-8")
    policy = [
        "default-src 'none'",
        f"script-src {_hash('script', text)}",
        f"style-src {_hash('style', text)}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    headers = {
        "Content-Security-Policy": "; ".join(policy),
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
        "Vary": "Accept",
    }
    return HtmlPage(text.encode(), headers)


def is_wanted(accept: str) -> bool:
    """Return whether a client asks for HTML, as browsers do. One that takes anything, such as curl, gets JSON."""
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return "text/html" in kinds and "application/json" not in kinds[: kinds.index("text/html")]


def _hash(tag: str, text: str) -> str:
    """Return the hash of the one element of this name, as a source of a policy."""
    (inner,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()}'"
