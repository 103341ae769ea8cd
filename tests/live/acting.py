"""One who acts on a console: fills in its forms as a browser does, and reads what they say."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.live.browser import Answer
from tests.live.visitor import PORT, Visitor

HIDDEN = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')
FIELD = re.compile(r'<input id="[^"]*" name="([^"]*)" value="([^"]*)"')
TEXT = re.compile(r'<textarea[^>]* name="([^"]*)"[^>]*>\n?(.*?)</textarea>', re.DOTALL)
CHOICE = re.compile(r'<select[^>]* name="([^"]*)".*?<option value="([^"]*)" selected', re.DOTALL)
COMMAND = re.compile(r"<h2>The command.*?<pre[^>]*>(.*?)</pre>", re.DOTALL)


def filled(page: str) -> list[tuple[str, str]]:
    """Give what a browser would send of a form that nobody touched."""
    found = [pair for pattern in (HIDDEN, FIELD, TEXT, CHOICE) for pair in pattern.findall(page)]
    return [(unescape(name), unescape(value)) for name, value in found]


def commands(page: str) -> list[str]:
    """Give the commands that a page shows."""
    found = COMMAND.search(page)
    assert found is not None, page
    return unescape(found[1]).split("\n")


class Actor:
    """Somebody with the address for acting, in a browser of their own."""

    def __init__(self, visitor: Visitor, audit: Path) -> None:
        self.visitor, self.audit = visitor, audit
        cookie = visitor.access.cookie("write")
        self.headers = {"cookie": f"penstock_console_{PORT}={cookie}"}
        self.said = {"origin": "http://127.0.0.1", "sec_fetch_site": "same-origin"}

    async def form(self, act: str, **targets: Any) -> Answer:
        """Open the form of an act."""
        return await self.visitor.get(f"/act/{act}?{urlencode(targets, doseq=True)}", known=False, **self.headers)

    async def post(self, act: str, fields: list[tuple[str, str]], **headers: str) -> Answer:
        """Send a form."""
        sent = {**self.headers, **self.said, "content_type": "application/x-www-form-urlencoded", **headers}
        body = urlencode(fields).encode()
        return await self.visitor.get(f"/act/{act}", method="POST", known=False, body=body, **sent)

    async def look(self, act: str, targets: dict[str, Any], **values: str) -> Answer:
        """Fill in a form, and see what it would do."""
        page = await self.form(act, **targets)
        if page.status != 200 or 'value="do"' in page.text:
            return page
        fields = [(name, value) for name, value in filled(page.text) if name not in values]
        return await self.post(act, [*fields, *values.items(), ("step", "look")])

    async def do(self, act: str, targets: dict[str, Any], typed: str = "", **values: str) -> Answer:
        """Fill in a form, look, confirm, and give what became of it."""
        page = await self.look(act, targets, **values)
        assert page.status == 200, page.text
        return await self.post(act, [*filled(page.text), ("typed", typed), ("step", "do")])

    def lines(self) -> list[dict[str, Any]]:
        """Read the log of acts."""
        return [json.loads(line) for line in self.audit.read_text().splitlines()]
