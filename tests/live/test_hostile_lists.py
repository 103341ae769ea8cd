"""Lists of streams, consumers and subjects from a server that says something else: an error of ours, and no other."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest

from penstock.connection import Connection, connect
from penstock.errors import RemoteProtocolError
from penstock.jetstream import assets
from penstock.survey import Survey
from tests.scripted import Answer, Asked, js, log_in, message, playing, serve
from tests.scripted_stream import STATE, STREAM

STRANGE: list[Any] = [5, "x", True, [5], [["a"]], [{"a": ["b"]}], {"a": {"b": 1}}, {"a": "x"}, -1, 1.5]


def listing(method: str, **changed: Any) -> Answer:
    """List one stream and no consumer, with other fields in what one method answers."""
    listed = {"total": 1, "streams": [{**STREAM, "state": {**STATE, "consumer_count": 1}}], "consumers": []}

    def answer(asked: Asked) -> bytes:
        said = listed if ".LIST" in asked.subject else {}
        return message(asked, json.dumps(said | (changed if method in asked.subject else {})).encode())

    return answer


@pytest.mark.parametrize("value", STRANGE)
@pytest.mark.parametrize("field", ["total", "streams", "consumers", "missing", "offline"])
async def test_a_list_with_a_strange_field(field: str, value: Any):
    """Whatever stands in a field of a list, it is read, or it is an error of ours that names the field."""
    with playing(log_in(), serve(api=listing(".LIST", **{field: value}))) as peer:
        async with await connect(peer.url, reconnect=False) as client:
            failed = []
            for ask in (assets.streams(client), assets.consumers(client, "S")):
                try:
                    await ask
                except RemoteProtocolError as error:
                    failed.append(str(error))
            assert all("JetStream's answer" in said for said in failed)
            assert failed or (field, value) in (("total", 5), ("offline", {"a": {"b": 1}}), ("offline", {"a": "x"}))


@pytest.mark.parametrize("value", STRANGE)
@pytest.mark.parametrize("where", ["state", "subjects"])
async def test_subjects_that_are_none(where: str, value: Any):
    """What a stream is said to hold is numbers by subject, or an error of ours."""
    said = {**STREAM, "state": value if where == "state" else {**STATE, "subjects": value}}
    with playing(log_in(), serve(stream_info=js(said))) as peer:
        async with await connect(peer.url, reconnect=False) as client:
            if where == "state" and isinstance(value, dict):
                assert await assets.stream_subjects_held(client, "S") == {}
                return
            with pytest.raises(RemoteProtocolError, match="JetStream's answer"):
                await assets.stream_subjects_held(client, "S")


STRANGERS = [("S", {"created": None}, True), (5, {}, False), ("S", {"config": {"subjects": 5}}, False)]


@pytest.mark.parametrize(("name", "changed", "read"), STRANGERS)
async def test_a_survey_goes_on_behind_a_strange_stream(name: Any, changed: dict[str, Any], read: bool):
    """A stream of a list that cannot be read, or limits of another kind, are told, and the round goes on."""
    strange = {**STREAM, **changed, "config": {**STREAM["config"], "name": name, **changed.get("config", {})}}
    strange = {key: value for key, value in strange.items() if value is not None}
    api = listing("STREAM.LIST", streams=[strange], limits=5)
    with playing(log_in(), serve(api=api)) as peer:
        async with await connect(peer.url, reconnect=False) as client:

            async def connected() -> Connection:
                return client

            survey = Survey(connected)
            going = asyncio.create_task(survey.run())
            snapshot = await asyncio.wait_for(survey.fresh(), 10)
            going.cancel()
            with suppress(asyncio.CancelledError):
                await going
            assert survey.error is None
            assert snapshot.problem is None
            assert ("a stream" in {item.what for item in snapshot.covered.unseen}) != read


@pytest.mark.parametrize("value", [5, [["a"]], [5]])
@pytest.mark.parametrize(("method", "field"), [("STREAM.LIST", "streams"), ("CONSUMER.LIST", "consumers")])
@pytest.mark.parametrize("away", [False, True])
async def test_a_survey_says_what_it_cannot_read(method: str, field: str, value: Any, away: bool):
    """A survey goes on with what it can read, and says of a list that it cannot, and why."""
    with playing(log_in(), serve(api=listing(method, **{"offline" if away else field: value}))) as peer:
        async with await connect(peer.url, reconnect=False) as client:

            async def connected() -> Connection:
                return client

            survey = Survey(connected)
            going = asyncio.create_task(survey.run())
            snapshot = await asyncio.wait_for(survey.fresh(), 10)
            going.cancel()
            with suppress(asyncio.CancelledError):
                await going
            assert survey.error is None
            unseen = {item.what: item.why for item in snapshot.covered.unseen}
            what = "the list of streams" if field == "streams" else "the consumers of S"
            assert "JetStream's answer" in unseen[what]
