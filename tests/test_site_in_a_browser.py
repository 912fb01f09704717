"""The built site in Chromium, at the widths of a phone, a tablet and a screen; formulas are set where MathJax can be fetched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from .test_site import SITE

playwright = pytest.importorskip("playwright.sync_api", reason="playwright, which drives a browser, is not installed")

BROWSER = os.environ.get("CHROMIUM") or shutil.which("chromium")
# The theme lets what is too wide for a page scroll within its content, and cuts off the rest.
TOO_WIDE = "[document.documentElement, ...document.querySelectorAll('.content')].some(box => box.scrollWidth > box.clientWidth)"
SET = "async () => { if (window.MathJax?.startup) await MathJax.startup.promise }"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if not SITE.is_dir():
        pytest.skip("the site is not built; make docs")
    server = ThreadingHTTPServer(("localhost", 0), partial(Quiet, directory=str(SITE)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        if BROWSER is None and not Path(driver.chromium.executable_path).exists():
            pytest.skip("there is no Chromium: python -m playwright install chromium")
        found = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_no_page_scrolls_sideways_or_raises_an_error(browser: Any, address: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(f"{page.url}: {error}"))
    wide = []
    for file in sorted(SITE.rglob("*.html")):
        page.goto(f"{address}/{file.relative_to(SITE).as_posix()}")
        page.evaluate(SET)
        if page.evaluate(TOO_WIDE):
            wide.append(str(file.relative_to(SITE)))
    assert not wide and not errors
