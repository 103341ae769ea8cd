"""The console in a real browser, before a real server under load: what people see, press and type."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pytest
import pytest_asyncio

from penstock.buckets import KeyValue, ObjectStore
from penstock.jetstream import assets
from penstock.model import Consumer, Stream
from tests.live.chromium import CHROMIUM, Desk, complaints, going
from tests.live.console.busy_world import ASKED, NAMES, READERS, busy_world, fail_a_flow, pull
from tests.live.visitor import every_page
from tests.support import eventually

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here"),
    pytest.mark.asyncio(loop_scope="module"),
]

PICTURES = os.environ.get("PENSTOCK_PICTURES")  # the folder of the docs, if they are to be made anew
NARROW = {"width": 400, "height": 800}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    """One of everything under load, a console that lets act, and a browser."""
    async with busy_world(tmp_path_factory.mktemp("busy")) as made:
        yield made


# -- the water flows ---------------------------------------------------------------------------------------------------


async def test_a_message_is_followed_from_publish_to_browse(desk: Desk):
    """An open page of a stream shows a message as it comes; one click leads to its headers and payload."""
    async with desk.window("/streams/SENSOR_03") as window:
        page = window.page
        await page.locator("#last", has_text="None.").wait_for()
        await window.refreshed(1)
        await desk.nats.publish("sensor.03.special", b'{"golden": "ticket"}', headers={"Shop": "corner"})
        await page.locator("#last tr", has_text="sensor.03.special").locator("a").click()
        await page.wait_for_url("**/streams/SENSOR_03/messages/1")
        assert "golden" in await page.locator("pre").inner_text()
        assert "corner" in await page.locator(".pairs").first.inner_text()
        await page.locator(".crumbs a", has_text="SENSOR_03").click()
        await page.wait_for_url("**/streams/SENSOR_03")
        await page.locator("#subjects a", has_text="sensor.03.special").click()
        await page.locator("td.preview", has_text="golden").wait_for()


async def test_lag_grows_while_a_consumer_pauses_and_falls_when_it_goes_on(desk: Desk):
    """The page of a consumer shows its lag rise while it is paused, in messages, in time and as a line, and fall."""
    nats = desk.nats
    await assets.add_consumer(nats, "ORDERS", Consumer(durable="worker", ack_policy="explicit", deliver_policy="new"))

    async with desk.window("/streams/ORDERS/consumers/worker") as window, going(lambda: pull(nats, "worker", 500)):
        page = window.page
        lag = page.locator("#figures .card", has_text=re.compile("^Lag")).locator(".figure")

        async def shown() -> int:
            return int((await lag.inner_text()).replace(",", ""))

        await page.locator("h1 .chip.good", has_text="listening").wait_for()
        await assets.pause_consumer(nats, "ORDERS", "worker", datetime.now(UTC) + timedelta(hours=1))
        await page.locator("h1 .chip.warn", has_text="paused").wait_for()
        await eventually(lambda: _at_least(shown, 50), "the lag growing", timeout=60)
        await page.locator("#figures", has_text="the oldest waits for").wait_for()
        await page.locator("#chart-lag .trend.up").wait_for()
        await page.locator("#chart-age .stroke").wait_for()
        await assets.pause_consumer(nats, "ORDERS", "worker", None)
        await page.locator("h1 .chip.good", has_text="listening").wait_for()
        await eventually(lambda: _at_most(shown, 20), "the lag falling", timeout=60)


async def _at_least(read: Any, number: int) -> bool:
    return await read() >= number


async def _at_most(read: Any, number: int) -> bool:
    return await read() <= number


# -- what the reader does stays ----------------------------------------------------------------------------------------


async def test_focus_and_scroll_survive_ten_refreshes(desk: Desk):
    """A page that stays fresh leaves the focus, the scroll of page and table, and half a word in a field."""
    async with desk.window("/consumers", viewport=NARROW) as window:
        page = window.page
        await window.refreshed(1)
        link = page.locator("#consumers tbody a", has_text="reader_07")
        await link.focus()
        await page.evaluate("document.querySelector('#consumers .wide').scrollLeft = 210")
        await page.evaluate("scrollTo(0, 180)")
        await page.evaluate("document.querySelector('#consumers input[type=search]').value = 'half a wo'")
        before = await page.locator("#consumers td.n.strong").first.inner_text()
        await window.refreshed(10)
        assert await page.evaluate("document.activeElement.textContent") == "reader_07"
        assert await page.evaluate("document.querySelector('#consumers .wide').scrollLeft") == 210
        assert await page.evaluate("scrollY") == 180
        assert await page.locator("#consumers input[type=search]").input_value() == "half a wo"
        assert await page.locator("#consumers td.n.strong").first.inner_text() != before, "it is fresh all the same"


async def test_marked_text_is_left_alone_until_it_is_let_go(desk: Desk):
    """Text that somebody is about to copy does not change under the mouse; other parts go on."""
    async with desk.window("/streams/ORDERS") as window:
        page = window.page
        await window.refreshed(1)
        await page.evaluate("getSelection().selectAllChildren(document.querySelector('#last tbody tr'))")
        marked = await page.evaluate("String(getSelection())")
        figure = await page.locator("#figures .figure").first.inner_text()
        await window.refreshed(5)
        assert await page.evaluate("String(getSelection())") == marked
        assert await page.locator("#figures .figure").first.inner_text() != figure
        await page.evaluate("getSelection().removeAllRanges()")
        await page.wait_for_function(
            "text => document.querySelector('#last tbody tr').innerText.trim() !== text.trim()", arg=marked
        )


async def test_a_console_that_is_away_is_told_and_comes_back(desk: Desk):
    """Without an answer the page says that it is old; afterwards it goes on by itself. Live can be turned off."""
    async with desk.window("/streams") as window:
        page = window.page
        await window.refreshed(1)
        await page.context.set_offline(True)
        await page.evaluate("dispatchEvent(new Event('pageshow'))")
        await page.locator("#trouble", has_text="does not answer").wait_for()
        await page.context.set_offline(False)
        await page.locator("#trouble").wait_for(state="hidden")
        window.forgive("ERR_INTERNET_DISCONNECTED")
        await page.keyboard.press("l")
        assert not await page.locator("#live").is_checked()
        seen = await window.looks()
        await page.reload()
        assert not await page.locator("#live").is_checked(), "it stays as it was left"
        assert await window.looks() == 0 < seen


# -- tables ------------------------------------------------------------------------------------------------------------


async def test_tables_are_turned_by_keyboard_and_every_view_has_an_address(desk: Desk):
    """A filter, an order and a page of a table are reached with keys, in place, and stand in the address."""
    async with desk.window("/consumers") as window:
        page = window.page
        await page.evaluate("window.same = true")
        await page.keyboard.press("/")
        await page.keyboard.type("reader_1")
        await page.wait_for_url("**/consumers?filter=reader_1")
        await page.locator("#consumers .find .note", has_text="10 of").wait_for()
        assert await page.locator("#consumers input[type=search]").evaluate("field => field === document.activeElement")
        head = page.locator("#consumers thead a", has_text="Consumer")
        await head.focus()
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/consumers?filter=reader_1&sort=name")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/consumers?filter=reader_1&sort=-name")
        first = page.locator("#consumers tbody tr").first
        await first.locator("a", has_text="reader_19").wait_for()
        assert await page.locator("th[aria-sort=descending]").count() == 1
        await page.keyboard.press("j")
        assert await page.evaluate(
            "document.activeElement.closest('tr') === document.querySelector('#consumers tbody tr')"
        )
        await page.go_back()
        await page.wait_for_url("**/consumers?filter=reader_1&sort=name")
        await first.locator("a", has_text="reader_10").wait_for()
        assert await page.evaluate("window.same"), "the page was never left"
        await page.goto(f"{desk.console.address}/streams/ORDERS?consumers_sort=name")
        await page.keyboard.press("n")
        await page.wait_for_url("**consumers_offset=20*")
        await page.locator("#consumers tbody a", has_text="reader_23").wait_for()
        await page.keyboard.press("p")
        await page.locator("#consumers tbody a", has_text="reader_00").wait_for()


async def test_everything_works_without_script(desk: Desk):
    """Sorting, filtering and paging are links and forms: a browser that runs no script misses only what is live."""
    async with desk.window("/streams/ORDERS", java_script_enabled=False) as window:
        page = window.page
        await page.locator("#consumers thead a", has_text="Consumer").click()
        await page.locator("#consumers tbody tr").first.locator("a", has_text="reader_00").wait_for()
        await page.locator("#consumers nav a", has_text="further").click()
        await page.locator("#consumers tbody a", has_text="reader_23").wait_for()
        await page.locator("#consumers input[type=search]").fill("reader_05")
        await page.locator("#consumers .find button").click()
        await page.locator("#consumers tbody a", has_text="reader_05").wait_for()
        assert await page.locator("#consumers tbody tr").count() == 1
        assert "consumers_sort=name" in page.url, "the order is kept"
        assert await page.locator("#chart-rate svg").count() == 1
        assert not await page.locator(".live").is_visible()


# -- acting ------------------------------------------------------------------------------------------------------------


async def test_a_flow_that_fails_is_told_on_the_overview(desk: Desk):
    """The overview of a pipeline that runs says nothing of it; when one of its flows fails, it says so by itself."""
    async with desk.window("/overview") as window:
        page = window.page
        await page.locator("#picture svg").wait_for()
        assert not await page.locator("#attention li", has_text="sensors").count()
        folded = page.locator("#folded")
        await folded.locator("summary", has_text="stuck").click()
        await folded.locator("li").last.wait_for()
        await window.refreshed(2)
        assert await folded.evaluate("it => it.open"), "what the reader opened stays open"
        fail_a_flow(desk.run)
        note = page.locator("#attention li", has_text="sensors")
        await note.locator(".chip.bad").wait_for()
        await note.locator("a").click()
        await page.locator("main", has_text="failed").wait_for()


async def test_a_consumer_is_reset_and_a_dead_letter_put_back(desk: Desk):
    """Who may act does it in three steps: a form, a look at what it would do, with the name typed, and the outcome."""
    nats = desk.nats
    await assets.add_consumer(nats, "JOBS", Consumer(durable="again", ack_policy="explicit"))
    await nats.jetstream().publish("jobs.print", b"print that")
    async with desk.window("/streams/JOBS/consumers/again", write=True) as window:
        page = window.page
        await page.locator(".acts a", has_text="Reset").click()
        await page.get_by_label("Begin again at this sequence").fill("2")
        await page.locator("button", has_text="See what it would do").click()
        assert re.search("penstock consumer reset .*JOBS again", await page.locator("pre").inner_text())
        await page.locator("#typed").fill("again")
        await page.locator("button", has_text="Reset").click()
        await page.locator(".chip.good", has_text="done").wait_for()
        await page.goto(f"{desk.console.address}/dead-letters/JOBS-DEAD")
        await page.get_by_label("Letter 1").check()
        await window.refreshed(2)
        assert await page.get_by_label("Letter 1").is_checked(), "what was ticked stays ticked"
        held = (await assets.stream_info(nats, "JOBS")).last_sequence
        await page.locator("button", has_text="Put back").click()
        await page.locator("button", has_text="Put back").click()
        await page.locator(".chip.good", has_text="done").wait_for()
        assert (await assets.get_message(nats, "JOBS", held + 1)).data == b"print this"
    async with desk.window("/streams/JOBS/consumers/again") as window:
        assert not await window.page.locator(".acts").count(), "who may only look sees nothing to press"
        answer = await window.page.goto(f"{desk.console.address}/act/consumer-reset?stream=JOBS&consumer=again")
        assert answer is not None
        assert answer.status == 403
        window.forgive("status of 403")


async def test_a_form_that_another_site_sends_does_nothing(desk: Desk):
    """A page of another origin sends a form that is right in every field, from the browser of one who may act."""
    name = "SENSOR_11"
    async with desk.window(f"/act/stream-delete?stream={name}", write=True) as window:
        page = window.page
        fields = [*await page.locator("form.act").evaluate("form => [...new FormData(form)]"), ["typed", name]]
        target = f"{desk.console.address}/act/stream-delete"
        inputs = "".join(f'<input name="{escape(field)}" value="{escape(value)}">' for field, value in fields)
        evil = f'<form method="post" action="{target}">{inputs}<button name="step" value="do">Win</button></form>'
        async with serving(evil) as elsewhere:
            await page.goto(elsewhere)
            async with page.expect_response(lambda answer: answer.url == target) as sent:
                await page.locator("button").click()
            assert (await sent.value).status in (401, 403)
        window.forgive("status of 40")
    assert (await assets.stream_info(desk.nats, name)).name == name


@asynccontextmanager
async def serving(html: str) -> AsyncIterator[str]:
    """Serve a page under another name of this machine, which is another site to a browser."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n"
        writer.write((head + html).encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://localhost:{server.sockets[0].getsockname()[1]}/"


# -- what others wrote -------------------------------------------------------------------------------------------------

HURT = "window.hurt=1"
PAYLOADS = [
    f"<script>{HURT}</script>",
    f'"><img src=x onerror="{HURT}">',
    f"'-{HURT}-'</textarea></title></style></script><svg onload={HURT}>",
    f"{{{{ {HURT} }}}}{{% raw %}}<a href=javascript:{HURT}>",
    "</main><main id=main data-refresh=0><p id=last data-live>",
]
NAME = '<svg\'onload="hurt=1"&{{7'  # as much of it as a name may hold


async def test_no_name_and_no_payload_runs(desk: Desk):
    """Whatever stands in names, subjects, descriptions, headers and payloads is text, also when it is fresh."""
    nats = desk.nats
    subjects = [re.sub(r"[\s.*>]", "", text) for text in PAYLOADS]
    await assets.add_stream(nats, Stream(name=NAME, subjects=["hostile.>"], description="".join(PAYLOADS)))
    await assets.add_consumer(nats, NAME, Consumer(durable=NAME, description=PAYLOADS[1], ack_policy="explicit"))
    objects = await ObjectStore.create_bucket(nats, "hostile", description=PAYLOADS[0])
    await objects.put(PAYLOADS[1], PAYLOADS[0].encode(), description=PAYLOADS[2], headers={"Note": PAYLOADS[1]})
    keys = await KeyValue.create_bucket(nats, "hostile", description=PAYLOADS[0])
    await keys.put("k", PAYLOADS[2].encode())

    async def hostile() -> None:
        for place, text in enumerate(PAYLOADS):
            await nats.publish(f"hostile.{subjects[place]}", text.encode(), headers={"Note": text})
        await asyncio.sleep(0.05)

    async with going(hostile), desk.window("/overview") as window:
        page = window.page
        await eventually(lambda: _holds(desk, NAME), "the messages being stored")
        asked = quote(PAYLOADS[1], safe="")
        hostile_names = NAMES | {"stream": NAME, "consumer": NAME, "bucket": "hostile"}
        wanted = ASKED | {"entry": "key=k", "object_entry": f"name={asked}"}
        for path in (*every_page(hostile_names, wanted), *_tables(NAME)):
            await page.goto(f"{desk.console.address}{path}{'&' if '?' in path else '?'}filter={asked}&x={asked}")
            assert await page.locator("main").count() == 1, path
            if await page.evaluate("Number(document.getElementById('main').dataset.refresh)"):
                await window.refreshed(1)
            assert await page.evaluate("window.hurt === undefined"), path
            assert await page.locator("main script, main img, main [onload], main [onerror]").count() == 0, path
            assert await page.locator("a[href^=javascript]").count() == 0, path
        window.forgive("status of 400", "status of 404")


def _tables(stream: str) -> list[str]:
    name, asked = quote(stream, safe=""), quote(PAYLOADS[2], safe="")
    return [f"/streams/{name}?subjects_filter={asked}", f"/streams?sort={asked}", f"/streams/{asked}"]


async def _holds(desk: Desk, name: str) -> bool:
    return (await assets.stream_info(desk.nats, name)).messages >= len(PAYLOADS)


# -- how it looks ------------------------------------------------------------------------------------------------------


async def test_axe_finds_nothing_in_light_and_dark(desk: Desk):
    """Every page can be used by everybody: axe has no complaint, whatever the reader's colours; nor is any too wide."""
    paths = [*every_page(NAMES, ASKED), "/streams/NOT_THERE", "/streams?filter=nothing", "/dead-letters/JOBS-DEAD"]
    paths += ["/act/stream-add", "/act/publish", "/act/consumer-reset?stream=ORDERS&consumer=reader_00"]
    paths += ["/act/objects-add", "/act/objects-seal?bucket=settings", "/streams/ORDERS?range=24h"]
    async with desk.window(color_scheme="light", write=True) as window:
        page = window.page
        await page.evaluate("localStorage.setItem('penstock-live', 'no')")
        for path in paths:
            await page.goto(f"{desk.console.address}{path}")
            assert not await complaints(page), path
            await page.emulate_media(color_scheme="dark")
            assert not await complaints(page, only=("color-contrast", "link-in-text-block")), f"{path} in the dark"
            await page.emulate_media(color_scheme="light")
            await page.set_viewport_size(NARROW)
            wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{path} is {wide} pixels too wide for a telephone"
            await page.set_viewport_size({"width": 1280, "height": 800})
        window.forgive("status of 404")


async def test_pictures_for_the_docs_are_made(desk: Desk, tmp_path: Path):
    """The pictures of the docs come from here, small; `PENSTOCK_PICTURES=docs/howto/images` puts them there."""
    folder = Path(PICTURES or tmp_path)
    scenes: dict[str, tuple[str, Literal["light", "dark"]]] = {
        "console-overview": ("/overview", "light"),
        "console-streams": ("/streams?sort=-messages", "light"),
        "console-stream": ("/streams/ORDERS", "light"),
        "console-consumers": ("/consumers", "dark"),
        "console-consumer": ("/streams/ORDERS/consumers/billing", "light"),
    }
    billing = Consumer(durable="billing", ack_policy="explicit", sample_freq="100")
    await assets.add_consumer(desk.nats, "ORDERS", billing)

    async def bill() -> None:
        """Work in turns, so that there is something to see."""
        await pull(desk.nats, "billing", 200)
        await asyncio.sleep(random.uniform(0.1, 4))

    if PICTURES:  # one that is stuck is enough to show
        for number in range(1, READERS):
            await assets.delete_consumer(desk.nats, "ORDERS", f"reader_{number:02}")
    async with going(bill), desk.window("/streams", viewport={"width": 1120, "height": 700}) as window:
        page = window.page
        await asyncio.sleep(120 if PICTURES else 0)  # charts of two minutes are worth a look
        for name, (path, colours) in scenes.items():
            await page.emulate_media(color_scheme=colours)
            await page.goto(f"{desk.console.address}{path}")
            await window.refreshed(1)
            await page.screenshot(path=folder / f"{name}.png", animations="disabled")
            assert 5_000 < (folder / f"{name}.png").stat().st_size < 150_000
