"""A real browser for the tests of the console: Debian's Chromium, driven by Playwright. Nothing is downloaded.

`CHROMIUM` is None where there is none; then the tests that need it are left out, as those with other foreign programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page, async_playwright

import penstock.console.app
from penstock.connection import Connection, connect
from penstock.console import Console
from penstock.console.pages import PAGES
from penstock.options import ConnectionOptions

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
]
AXE = files("axe_playwright_python").joinpath("axe.min.js")
WAIT = 60_000.0  # milliseconds: CI may be a slow machine
REFRESH = 0.25  # seconds after which open pages are made again here


@dataclass
class Window:
    """One open page, and everything that went wrong on it."""

    page: Page
    wrong: list[str] = field(default_factory=list)

    def listen(self) -> None:
        """Take down what a browser complains about: errors of scripts, and what the content policy stopped."""
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        self.page.on(
            "console",
            lambda message: (
                self.wrong.append(f"console: {message.text}") if message.type in ("error", "warning") else None
            ),
        )

    def forgive(self, *texts: str) -> None:
        """Forget complaints that a test has made itself."""
        self.wrong = [line for line in self.wrong if not any(text in line for text in texts)]

    async def looks(self) -> int:
        """Give how often this page was told what has changed."""
        return int(await self.page.evaluate("document.body.dataset.looks || 0"))

    async def refreshed(self, times: int) -> None:
        """Wait for so many more looks."""
        wanted = await self.looks() + times
        await self.page.wait_for_function("number => Number(document.body.dataset.looks) >= number", arg=wanted)


@dataclass
class Desk:
    """A browser before a console, and a client of the same server."""

    browser: Browser
    console: Console
    nats: Connection
    run: Any = None
    """The file in which the run of a pipeline tells how far it is, if there is one."""

    @asynccontextmanager
    async def window(self, path: str = "/overview", *, write: bool = False, **options: Any) -> AsyncIterator[Window]:
        """Open a page of the console in a browser that nobody has used; at the end nothing may have gone wrong."""
        context: BrowserContext = await self.browser.new_context(**options)
        try:
            context.set_default_timeout(WAIT)
            window = Window(await context.new_page())
            window.listen()
            # The token becomes a cookie, and leaves the address.
            access = self.console.access
            token = f"token={access.write_token if write else access.token}"
            await window.page.goto(f"{self.console.address}{path}{'&' if '?' in path else '?'}{token}")
            yield window
            assert not window.wrong, window.wrong
        finally:
            await context.close()


@asynccontextmanager
async def sitting(url: str, **options: Any) -> AsyncIterator[Desk]:
    """Start a console whose pages are quick to refresh, and a browser."""
    before = penstock.console.app.PAGES
    penstock.console.app.PAGES = tuple(replace(page, refresh=page.refresh and REFRESH) for page in PAGES)
    try:
        async with contextlib.AsyncExitStack() as stack:
            nats = await connect(url)
            stack.push_async_callback(nats.close)
            console = await stack.enter_async_context(Console(ConnectionOptions(url), **options))
            driver = await stack.enter_async_context(async_playwright())
            browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            stack.push_async_callback(browser.close)
            yield Desk(browser, console, nats)
    finally:
        penstock.console.app.PAGES = before


async def complaints(page: Page, *, only: tuple[str, ...] = ()) -> list[str]:
    """Give what axe finds wrong with a page; rows of a table are alike, and the first ones stand for all."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE.read_text(encoding="utf-8"))
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if only:
        options["runOnly"] = {"type": "rule", "values": list(only)}
    looked = {"exclude": [["tbody tr:nth-child(n+4)"], ["li:nth-child(n+4)"], [".box:nth-child(n+8)"]]}
    found = await page.evaluate("([looked, options]) => axe.run(looked, options)", [looked, options])
    return [
        f"{item['id']}: {node['target']} {node['html'][:150]} {node.get('failureSummary', '')[:300]}"
        for item in found["violations"]
        for node in item["nodes"]
    ]


@asynccontextmanager
async def going(work: Callable[[], Any]) -> AsyncIterator[None]:
    """Do something again and again in the background, until the end of the block."""

    async def again() -> None:
        while True:
            await work()

    task = asyncio.create_task(again())
    try:
        yield
    finally:
        task.cancel()
        done = (await asyncio.gather(task, return_exceptions=True))[0]
        assert isinstance(done, asyncio.CancelledError), done
