"""Headless Chromium for tests of the page, by Playwright; a test is skipped where either is missing."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# It asks nobody outside for anything, and leaves /dev/shm to the vaults.
_ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
_PATIENCE_MS = 90_000


@contextmanager
def browser() -> "Iterator[Browser]":
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("chromium is not installed (Debian's package chromium)")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=chromium, args=_ARGUMENTS, timeout=_PATIENCE_MS)
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def opened_page(window: "Browser", address: str, *, width: int = 1180, theme: str = "light") -> "Iterator[Page]":
    """Yields the page; what it has complained of, policy and errors, fails the test in the end."""
    context = window.new_context(viewport={"width": width, "height": 900}, color_scheme="dark" if theme == "dark" else "light")
    context.set_default_timeout(_PATIENCE_MS)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    try:
        page.goto(address)
        yield page
    finally:
        context.close()
    assert [each for each in complaints if "401" not in each] == []  # the browser's own word for a key that is refused
