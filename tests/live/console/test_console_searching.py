"""A search in a real browser: it goes on by itself, shows how far it is, stops when told to, and goes on again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from penstock.console.settings import Settings
from penstock.jetstream import assets
from penstock.model import Stream
from penstock.server import Server
from tests.live.chromium import CHROMIUM, Desk, complaints, sitting
from tests.support import eventually

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk(server: Server) -> AsyncIterator[Desk]:
    """A console whose searches take many steps, and a browser."""
    async with sitting(server.url, settings=Settings(search_messages=100, messages=5)) as made:
        yield made


async def test_a_search_shows_its_progress_and_can_be_stopped(desk: Desk, unique: Callable[..., str]):
    """Rows are added as steps find them; Stop ends the step under way, Go on takes it up until all was looked at."""
    name = unique("SEARCHED")
    await assets.add_stream(desk.nats, Stream(name=name, subjects=[f"{name}.>"]))
    for number in range(1, 601):
        await desk.nats.publish(f"{name}.a", b"needle <b>here</b>" if number in (3, 550) else b"hay")
    await desk.nats.flush()

    async def stored() -> bool:
        return (await assets.stream_info(desk.nats, name)).last_sequence == 600

    await eventually(stored, "the messages being stored")
    held, let_go = asyncio.Event(), asyncio.Event()

    async def hold(route: Any) -> None:
        held.set()
        await let_go.wait()
        await route.continue_()

    async with desk.window(f"/streams/{name}/messages") as window:
        page = window.page
        await page.route(re.compile(r"before="), hold)
        await page.get_by_label("Text in payload").fill("needle")
        await page.get_by_role("button", name="Find").click()
        status, button = page.locator("#search"), page.locator("#search button")
        await held.wait()
        await page.locator("#found tr", has_text="550").wait_for()
        assert await button.inner_text() == "Stop"
        assert "% of the stream; found 1." in await status.inner_text()
        assert await page.locator("progress").get_attribute("value") not in ("0", "100")
        await button.click()
        await page.locator("#search button", has_text="Go on").wait_for()
        let_go.set()
        await button.click()
        await page.locator("#search", has_text="all of the stream; found 2.").wait_for()
        assert await page.locator("#found tbody tr").count() == 2
        assert await page.locator("#found b").count() == 0
        assert await button.is_hidden()
        assert "Looked at 600 messages" in await status.inner_text()
        assert await complaints(page) == []


async def test_new_messages_appear_while_somebody_looks(desk: Desk, unique: Callable[..., str]):
    """The page of new messages shows what is stored a moment later, newest first, without being asked for."""
    name = unique("FOLLOWED")
    await assets.add_stream(desk.nats, Stream(name=name, subjects=[f"{name}.>"]))
    async with desk.window(f"/streams/{name}/tail") as window:
        page = window.page
        await page.locator("#newest", has_text="No message").wait_for()
        for number in range(3):
            await desk.nats.jetstream().publish(f"{name}.a", b"order %d" % number)
            await page.locator("#newest td.preview", has_text=f"order {number}").wait_for()
        assert await page.locator("#newest td.preview").all_inner_texts() == ["order 2", "order 1", "order 0"]
