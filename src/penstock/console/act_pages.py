"""The pages of acts: a form, a look at what it would do, and what became of it. Only what is sent changes anything.

What must hold before an act is tried, in this order: the role, a page of ours that sends it, the seal of the form, what
is typed into its fields, the name that must be typed, a form that was not sent before; and then, with NATS asked, that
what it is about is still the same. Only then the log says that it is tried.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.console.access import ADMISSION
from penstock.console.act_buckets import BUCKET_ACTS
from penstock.console.act_cluster import CLUSTER_ACTS
from penstock.console.act_consumers import CONSUMER_ACTS
from penstock.console.act_messages import MESSAGE_ACTS
from penstock.console.act_pipelines import PIPELINE_ACTS
from penstock.console.act_streams import STREAM_ACTS
from penstock.console.acts import Act, ActRequest, ActSight, Done, Intent
from penstock.console.app import Painter, html_response
from penstock.console.audit import Audit, Record, Who
from penstock.console.backend import Data
from penstock.console.forms import FormError, Seals, read_form
from penstock.console.payload import visible
from penstock.console.shell import quoted
from penstock.errors import InputError, PenstockError
from penstock.options import MASK
from penstock.wire.jetstream.verdicts import Verdict, judge

__all__ = ["ACTS", "ActPages", "act_link", "acts_of"]

log = logging.getLogger("penstock.console")

_ALL = (*STREAM_ACTS, *CONSUMER_ACTS, *MESSAGE_ACTS, *BUCKET_ACTS, *PIPELINE_ACTS, *CLUSTER_ACTS)
ACTS: dict[str, Act] = {item.name: item for item in _ALL}
_FORM = 4 * 2**20  # bytes of a form: a payload is written with up to three letters a byte
_ANSWER = 64 * 1024  # letters of an answer that are shown
_UNKNOWN = "Nobody knows whether it was done: look, before you try again."


def acts_of(kind: str) -> list[Act]:
    """Give the acts on things of a kind, or of several, for templates."""
    kinds = set(kind.split())
    return [item for item in ACTS.values() if kinds & set(item.of.split())]


def act_link(item: Act, names: Mapping[str, str]) -> str:
    """Give where the form of an act is, for templates."""
    named = {name: names[name] for name in item.targets if names.get(name)}
    return f"/act/{item.name}" + (f"?{urlencode(named)}" if named else "")


class _ChangedError(InputError):
    """What an act is about is not what it was."""


class ActPages:
    """Answers for the forms of acts."""

    def __init__(self, painter: Painter, audit: Audit) -> None:
        self.painter = painter
        self.backend = painter.backend
        self.audit = audit
        self.seals = Seals()

    def routes(self) -> list[Route]:
        """Give the routes; the first is for looking, the second for doing."""
        return [Route("/act/{act}", self.form, methods=["GET"]), Route("/act/{act}", self.send, methods=["POST"])]

    # -- looking -----------------------------------------------------------------------------------------------------

    async def form(self, request: Request) -> Response:
        """Give the form of an act; nothing is changed by it."""
        item = ACTS.get(request.path_params["act"])
        if item is None:
            return self.painter.refused(404, request.url.path)
        given: dict[str, list[str]] = {}
        for name, value in request.query_params.multi_items():
            given.setdefault(name, []).append(value)
        try:
            async with self.painter.turn, asyncio.timeout(self.backend.settings.page_timeout):
                asked, seen = await self._seen(item, given, begin=True)
                if item.fields:
                    return self._filling(item, asked, seen)
                return self._looking(item, asked, seen, await item.plan(asked, seen))
        except (PenstockError, TimeoutError) as error:
            return self._failed(error, request)

    async def _seen(
        self, item: Act, given: Mapping[str, Sequence[str]], *, begin: bool = False
    ) -> tuple[ActRequest, ActSight]:
        targets = item.named({name: values[-1] for name, values in given.items() if values})
        many = tuple(given.get(item.many, ())) if item.many else ()
        values = {} if begin else item.typed_fields(given)
        client = await self.backend.upstream.client()
        asked = ActRequest(self.backend, client, targets, values, many)
        seen = await item.look(asked)
        # What a form begins with is shown: a field whose secret nobody touched has not changed, and keeps it.
        shown = {name: self.backend.mask.plain(text) for name, text in seen.values.items()}
        _check_unmasked(item, seen.values, shown, values)
        seen = replace(seen, values=shown)
        if begin:
            asked = ActRequest(self.backend, client, targets, item.typed_fields(given, seen.values), many)
        return asked, seen

    # -- doing -------------------------------------------------------------------------------------------------------

    async def send(self, request: Request) -> Response:
        """Take a form: show what it would do, or do it."""
        item = ACTS.get(request.path_params["act"])
        if item is None:
            return self.painter.refused(404, request.url.path)
        try:
            async with asyncio.timeout(self.backend.settings.page_timeout):
                given = read_form(await _body(request), request.headers.get("content-type", ""))
            session, made = ADMISSION.get().session, (given.get("made") or [""])[-1]
            targets = item.named({name: values[-1] for name, values in given.items() if values})
            number = self.seals.check((given.get("seal") or [""])[-1], session, item.name, targets, made)
        except (PenstockError, TimeoutError) as error:
            return self._failed(error, request)
        try:
            doing = (given.get("step") or [""])[-1] == "do"
            if doing:
                item.typed_fields(given)
                _check_typed(item, targets, (given.get("typed") or [""])[-1])
                self.seals.use(number)  # before anything is waited for: a second click comes at once
            async with self.painter.turn, asyncio.timeout(self.backend.settings.page_timeout):
                asked, seen = await self._seen(item, given)
                if seen.made != made:
                    raise _ChangedError(
                        f"{_about(targets)} is not what it was when the page was shown: it was changed, "
                        "or deleted and made anew. Nothing was done.",
                        remedy="Look at what is there now.",
                    )
                intent = await item.plan(asked, seen)
            if not doing:
                return self._looking(item, asked, seen, intent)
            who = Who(ADMISSION.get().role, request.client.host if request.client else "unknown", session[:8])
            told = {**item.told(asked.values), **({item.many: list(asked.many)} if item.many else {})}
            record = Record(number, who, item.name, targets, told)
            self.audit.asked(record)
        except (FormError, _ChangedError) as error:
            return self._failed(error, request)
        except InputError as error:
            return self._again(item, targets, given, made, error)
        except (PenstockError, TimeoutError) as error:
            return self._failed(error, request)
        return await self._do(item, intent, record, request)

    async def _do(self, item: Act, intent: Intent, record: Record, request: Request) -> Response:
        try:
            async with self.painter.turn, asyncio.timeout(self.backend.settings.page_timeout):
                done = await intent.do()
        except PenstockError as error:
            verdict = judge(error)
            outcome = "unknown" if verdict is Verdict.UNKNOWN else "refused"
            self._ended(record, outcome, self.backend.mask.text(str(error)))
            return self._failed(error, request, _UNKNOWN if outcome == "unknown" else "")
        except TimeoutError as error:
            self._ended(record, "unknown", "no answer in time")
            return self._failed(error, request, _UNKNOWN)
        except BaseException as error:
            self._ended(record, "unknown", type(error).__name__)
            if not isinstance(error, Exception):
                raise
            log.exception("The act %s failed.", item.name)
            return self._failed(PenstockError("The console made a mistake."), request, _UNKNOWN)
        self._ended(record, "done" if done.whole else "done in part", done.says)
        return self._done(item, done)

    def _ended(self, record: Record, outcome: str, says: str) -> None:
        try:
            self.audit.ended(record, outcome, says)
        except PenstockError as error:  # it is done, whatever the file says
            log.error("%s", error)

    # -- painting ----------------------------------------------------------------------------------------------------

    def _filling(self, item: Act, asked: ActRequest, seen: ActSight) -> Response:
        fields = [
            {**vars(field), "value": asked.values[field.name], "hint": seen.hints.get(field.name, field.hint)}
            for field in item.fields
        ]
        return self._painted(item, {**self._data(item, "fill", asked.targets, asked.many, seen.made), "fields": fields})

    def _again(
        self, item: Act, targets: Mapping[str, str], given: Mapping[str, Sequence[str]], made: str, error: InputError
    ) -> Response:
        """Give a form back as it was filled in, with what is wrong; nobody is asked for it."""
        fields = [{**vars(field), "value": (given.get(field.name) or [""])[-1]} for field in item.fields]
        said = self.painter.trouble(error)[0]["error"]
        data = self._data(item, "fill", targets, given.get(item.many or "", ()), made)
        return self._painted(item, {**data, "fields": fields, "wrong": f"{said['what']} {said['remedy']}"}, 400)

    def _looking(self, item: Act, asked: ActRequest, seen: ActSight, intent: Intent) -> Response:
        mask = self.backend.mask
        about = {
            "says": mask.plain(intent.says),
            "changes": [visible(mask.plain(change)) for change in intent.changes],
            "commands": [quoted(words) for words in intent.commands],
            "typed": item.word(asked.targets),
            "hidden": [(name, value) for name, value in asked.values.items()],
        }
        return self._painted(item, {**self._data(item, "look", asked.targets, asked.many, seen.made), **about})

    def _data(self, item: Act, step: str, targets: Mapping[str, str], many: Sequence[str], made: str) -> Data:
        seal = self.seals.seal(ADMISSION.get().session, item.name, targets, made)
        ticked = [(item.many, number) for number in many] if item.many else []
        return {
            "step": step,
            "targets": list(targets.items()),
            "sealed": [*targets.items(), ("seal", seal), ("made", made), *ticked],
        }

    def _done(self, item: Act, done: Done) -> Response:
        mask = self.backend.mask
        answer = "" if done.answer is None else json.dumps(mask.plain(done.answer), indent=2, ensure_ascii=False)
        about = {
            "step": "done",
            "targets": [],
            "says": mask.plain(done.says),
            "whole": done.whole,
            "answer": visible(answer[:_ANSWER], "\n") + ("…" if len(answer) > _ANSWER else ""),
            "link": done.link,
        }
        return self._painted(item, about)

    def _painted(self, item: Act, data: Data, status: int = 200) -> Response:
        about: dict[str, Any] = {"page": None, "twin": None, "query": [], "refresh": 0.0, "title": item.label}
        text = self.painter.paint("act.html", data, act=item, path=f"/act/{item.name}", **about)
        return html_response(text, status)

    def _failed(self, error: PenstockError | TimeoutError, request: Request, note: str = "") -> Response:
        data, status = self.painter.trouble(error)
        if isinstance(error, _ChangedError | FormError):
            status = 409 if isinstance(error, _ChangedError) else 403
        if note:
            data["error"]["remedy"] = f"{note} {data['error']['remedy']}".strip()
        return self.painter.failed(data, status, request.url.path, again=False)


def _check_typed(item: Act, targets: Mapping[str, str], typed: str) -> None:
    if item.typed is not None and typed != item.word(targets):
        what = f"What was typed is not the name of the {item.typed}: nothing was done."
        raise InputError(what, remedy="Go back, and type it as it is written.")


def _check_unmasked(item: Act, held: Mapping[str, str], shown: Mapping[str, str], typed: Mapping[str, str]) -> None:
    """Refuse to write a mask in the place of the secret that it hides."""
    for field in item.fields:
        name, text = field.name, typed.get(field.name, "")
        if shown.get(name) != held.get(name) and text != shown[name] and MASK in text:
            raise InputError(
                f"{field.label} holds a hidden secret: what was typed would put {MASK} in its place.",
                remedy=f"Edit it with the command, or write it without {MASK}.",
            )


def _about(targets: Mapping[str, str]) -> str:
    names = " of ".join(f"{kind} {name}" for kind, name in reversed(list(targets.items())))
    return (names[:1].upper() + names[1:]) or "This"


async def _body(request: Request) -> bytes:
    """Read a form, up to the size that one may have."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _FORM:
            raise InputError("The form is too large.", remedy="Use the penstock command for payloads of that size.")
    return bytes(body)
