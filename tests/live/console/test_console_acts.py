"""Acting from the console on a real server: what is done, what is refused, and that nobody else can make it happen."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock.buckets import KeyValue, ObjectStore
from penstock.console.act_pages import ACTS
from penstock.errors import NotFoundError
from penstock.jetstream import assets
from penstock.jetstream.deadletter import DeadLetters
from penstock.jetstream.delivery import Delivery
from penstock.jetstream.worker import Reject, Worker
from penstock.model import Consumer, Stream
from penstock.server import Server
from tests.live.acting import Actor, commands, filled
from tests.live.command import environment
from tests.live.visitor import Visitor, pull, visiting

Name = Callable[..., str]


@pytest.fixture
async def actor(server: Server, tmp_path: Path) -> AsyncIterator[Actor]:
    """One who may act on the shared server."""
    audit = tmp_path / "acts.log"
    async with visiting(server.url, audit=audit) as visitor:
        yield Actor(visitor, audit)


@pytest.fixture
async def stream(actor: Actor, unique: Name) -> str:
    """A stream with ten messages and a consumer."""
    name, client = unique("ACT"), await actor.visitor.nats()
    await assets.add_stream(client, Stream(name=name, subjects=[f"{name}.>"]))
    for number in range(10):
        await client.jetstream().publish(f"{name}.{number % 2}", str(number).encode())
    await assets.add_consumer(client, name, Consumer(durable="c"))
    return name


# -- who may, and from where -------------------------------------------------------------------------------------------


async def test_nobody_acts_without_write(visitor: Visitor):
    """A console that was not told that somebody may act has no forms, and takes none, whatever is shown."""
    assert visitor.access.write_token is None
    for act in ACTS:
        assert (await visitor.get(f"/act/{act}?stream=S")).status == 404
        assert (await visitor.get(f"/act/{act}", method="POST", body=b"step=do")).status == 405
    assert "/act/" not in (await visitor.get("/streams")).text


async def test_the_token_for_reading_cannot_act(actor: Actor, stream: str):
    """Forms, and forms that are sent, are refused to the reader, as bearer and as cookie; pages show it no acts."""
    visitor = actor.visitor
    page = await actor.look("stream-delete", {"stream": stream})
    body = [*filled(page.text), ("typed", stream), ("step", "do")]
    for headers in (
        {"authorization": f"Bearer {visitor.access.token}"},
        {"cookie": f"penstock_console_8080={visitor.access.token}"},
    ):
        assert (await visitor.get(f"/act/stream-delete?stream={stream}", known=False, **headers)).status == 403
        actor.headers = headers
        assert (await actor.post("stream-delete", body)).status == 403
        assert "/act/" not in (await visitor.get(f"/streams/{stream}", known=False, **headers)).text
    actor.headers = {}
    assert (await actor.post("stream-delete", body)).status == 401
    assert (await assets.stream_info(await visitor.nats(), stream)).messages == 10
    assert not actor.lines()


async def test_a_form_that_another_site_sends_is_refused(actor: Actor, stream: str):
    """With the right cookie and seal, a request from elsewhere, or from nobody knows where, still changes nothing."""
    page = await actor.look("stream-delete", {"stream": stream})
    body = [*filled(page.text), ("typed", stream), ("step", "do")]
    for said in (
        {"origin": "https://evil.example", "sec_fetch_site": "cross-site"},
        {"origin": "http://127.0.0.1", "sec_fetch_site": "cross-site"},
        {"origin": "http://127.0.0.1", "sec_fetch_site": "same-site"},
        {"origin": "http://127.0.0.1:99", "sec_fetch_site": "same-origin"},
        {"origin": "null", "sec_fetch_site": "same-origin"},
        {"origin": "http://127.0.0.1.evil.example"},
        {"origin": "null"},
        {},
    ):
        actor.said = said
        assert (await actor.post("stream-delete", body)).status == 403, said
    actor.said = {"origin": "http://127.0.0.1", "sec_fetch_site": "same-origin"}
    simple = await actor.post("stream-delete", body, content_type="text/plain")
    assert simple.status == 400
    assert not actor.lines()
    assert (await actor.post("stream-delete", body)).status == 200


async def test_a_form_of_another_session_or_act_is_refused(actor: Actor, stream: str):
    """A seal is for one session, one act and one target; a made-up one is none; and it is good once."""
    page = await actor.look("stream-purge", {"stream": stream})
    fields = [*filled(page.text), ("typed", stream), ("step", "do")]
    assert (await actor.post("stream-delete", fields)).status == 403
    other = [(name, "c" if name == "stream" else value) for name, value in fields]
    assert (await actor.post("stream-purge", other)).status == 403
    forged = [(name, "1.x.y" if name == "seal" else value) for name, value in fields]
    assert (await actor.post("stream-purge", forged)).status == 403
    mine, actor.headers = actor.headers, {"cookie": f"penstock_console_8080={actor.visitor.access.cookie('write')}"}
    assert (await actor.post("stream-purge", fields)).status == 403
    actor.headers = mine
    assert (await actor.post("stream-purge", fields)).status == 200
    again = await actor.post("stream-purge", fields)
    assert again.status == 403
    assert "sent before" in again.text
    assert [line["outcome"] for line in actor.lines()] == ["asked", "done"]


async def test_no_get_changes_anything(actor: Actor, stream: str):
    """Every form can be opened, with everything in its address that would be sent, and nothing happens."""
    client = await actor.visitor.nats()
    before = (await assets.stream_info(client, stream)).raw["config"]
    targets = {"stream": stream, "consumer": "c", "sequence": "1", "bucket": "b", "key": "k", "number": "1"}
    for act in ACTS:
        page = await actor.form(act, **targets, typed=stream, step="do", subject=f"{stream}.x", payload="p", time="1h")
        assert page.status in (200, 400, 404), (act, page.text)
        put = await actor.visitor.get(f"/act/{act}", method="PUT", known=False, **actor.headers)
        assert put.status == 405
    info = await assets.stream_info(client, stream)
    assert (info.messages, info.last_sequence, info.raw["config"]) == (10, 10, before)
    assert not (await assets.consumer_info(client, stream, "c")).paused
    assert not actor.lines()


# -- confirmation, and what changed meanwhile --------------------------------------------------------------------------


async def test_a_wrong_name_is_refused_before_anything_is_asked(actor: Actor, stream: str):
    """What is typed must be the name, letter by letter; otherwise not even NATS is asked, and the form comes back."""
    page = await actor.look("stream-delete", {"stream": stream})
    for typed in ("", stream.lower(), stream + " ", stream[:-1]):
        fresh = filled((await actor.look("stream-delete", {"stream": stream})).text)
        client = await actor.visitor.nats()
        sent = client.stats["out_msgs"]
        wrong = await actor.post("stream-delete", [*fresh, ("typed", typed), ("step", "do")])
        assert (wrong.status, client.stats["out_msgs"]) == (400, sent)
        assert "nothing was done" in wrong.text
    assert not actor.lines()
    assert (await actor.post("stream-delete", [*filled(page.text), ("typed", stream), ("step", "do")])).status == 200
    with pytest.raises(NotFoundError):
        await assets.stream_info(await actor.visitor.nats(), stream)


async def test_what_was_made_anew_is_not_acted_on(actor: Actor, stream: str):
    """A stream or a consumer that was deleted and made again under its name since the form was shown is left alone."""
    client = await actor.visitor.nats()
    of_stream = filled((await actor.look("stream-delete", {"stream": stream})).text)
    consumer = {"stream": stream, "consumer": "c"}
    of_consumer = filled((await actor.look("consumer-delete", consumer)).text)
    await assets.delete_consumer(client, stream, "c")
    await assets.add_consumer(client, stream, Consumer(durable="c"))
    refused = await actor.post("consumer-delete", [*of_consumer, ("typed", "c"), ("step", "do")])
    assert refused.status == 409
    assert "made anew" in refused.text
    await assets.delete_stream(client, stream)
    await assets.add_stream(client, Stream(name=stream, subjects=[f"{stream}.>"]))
    refused = await actor.post("stream-delete", [*of_stream, ("typed", stream), ("step", "do")])
    assert refused.status == 409
    assert (await assets.stream_info(client, stream)).name == stream
    assert not actor.lines()


async def test_an_edit_does_not_set_back_what_somebody_else_changed(actor: Actor, stream: str):
    """A form that was filled in over an older configuration is refused."""
    client = await actor.visitor.nats()
    page = await actor.look("stream-edit", {"stream": stream}, max_msgs="100")
    assert "max_msgs: " in page.text
    info = await assets.stream_info(client, stream)
    await assets.edit_stream(client, info.config.changed(description="mine"))
    refused = await actor.post("stream-edit", [*filled(page.text), ("typed", stream), ("step", "do")])
    assert refused.status == 409
    assert (await assets.stream_info(client, stream)).config.max_msgs == -1


# -- what is done ------------------------------------------------------------------------------------------------------


async def test_streams_are_added_changed_purged_and_deleted(actor: Actor, unique: Name):
    """Each act says what it does, does it, and shows the server's answer; the log has who and what."""
    client, name = await actor.visitor.nats(), unique("NEW")
    made = await actor.do("stream-add", {}, name=name, subjects=f"{name}.a, {name}.b", max_age="1h", max_bytes="1MiB")
    assert made.status == 200, made.text
    config = (await assets.stream_info(client, name)).config
    assert (config.subjects, config.max_age, config.max_bytes) == ([f"{name}.a", f"{name}.b"], 3600.0, 2**20)
    done = await actor.do("stream-edit", {"stream": name}, name, max_msgs="5", max_age="")
    assert done.status == 200, done.text
    config = (await assets.stream_info(client, name)).config
    assert (config.max_msgs, config.max_age, config.max_bytes) == (5, 0.0, 2**20)
    for number in range(4):
        await client.jetstream().publish(f"{name}.{'ab'[number % 2]}", b"x")
    done = await actor.do("stream-purge", {"stream": name}, name, subject=f"{name}.a")
    assert "2 messages of stream" in done.text
    done = await actor.do("message-delete", {"stream": name, "sequence": "2"}, "2")
    assert done.status == 200, done.text
    assert (await assets.stream_info(client, name)).messages == 1
    done = await actor.do("stream-delete", {"stream": name}, name)
    assert "was deleted" in done.text
    lines = actor.lines()
    assert [line["outcome"] for line in lines] == ["asked", "done"] * 5
    assert {line["role"] for line in lines} == {"write"}
    assert {line["address"] for line in lines} == {"127.0.0.1"}
    assert (lines[4]["act"], lines[4]["on"], lines[4]["with"]) == (
        "stream-purge",
        {"stream": name},
        {"subject": f"{name}.a"},
    )


async def test_consumers_are_added_paused_reset_read_and_deleted(actor: Actor, stream: str):
    """A consumer is made, edited, paused, resumed, read and set back, each confirmed by the server."""
    client, c = await actor.visitor.nats(), {"stream": stream, "consumer": "d"}
    done = await actor.do("consumer-add", {"stream": stream}, name="d", filter=f"{stream}.1", max_deliver="3")
    assert done.status == 200, done.text
    done = await actor.do("consumer-edit", c, "d", max_pending="7", filter="")
    assert done.status == 200, done.text
    config = (await assets.consumer_info(client, stream, "d")).config
    assert (config.max_deliver, config.max_ack_pending, config.filter_subject) == (3, 7, None)
    assert "is paused until" in (await actor.do("consumer-pause", c, time="1h")).text
    assert (await assets.consumer_info(client, stream, "d")).paused
    assert "goes on" in (await actor.do("consumer-resume", c)).text
    assert (await actor.form("consumer-resume", **c)).status == 400
    taken = await actor.do("consumer-next", c, answer="acknowledge it")
    assert "Message 1 came, and was acknowledged" in taken.text
    assert (await assets.consumer_info(client, stream, "d")).ack_floor.stream == 1
    for message in await pull(client, stream, "d", 5):
        await client.request(message.reply, b"+ACK", timeout=10)
    reset = await actor.do("consumer-reset", c, "d", sequence="3")
    assert "begins again at sequence 3" in reset.text, reset.text
    info = await assets.consumer_info(client, stream, "d")
    assert (info.delivered.stream, info.pending) == (2, 8)
    assert "was deleted" in (await actor.do("consumer-delete", c, "d")).text
    assert [line["outcome"] for line in actor.lines()] == ["asked", "done"] * 7


async def test_a_message_is_published_and_its_payload_is_not_in_the_log(actor: Actor, stream: str):
    """The ack's stream and sequence are shown; a repeat of an id is told; private fields are told by their length."""
    client = await actor.visitor.nats()
    values = {
        "subject": f"{stream}.new",
        "payload": 'a "secret"\r\n{{Count}}',
        "headers": "Nats-Msg-Id: 7\r\nX-Key: hidden",
    }
    done = await actor.do("publish", {"stream": stream}, **values)
    assert f"Stream {stream} stored the message as 11" in done.text, done.text
    found = await assets.get_message(client, stream, 11)
    assert (found.data, found.headers["X-Key"]) == (b'a "secret"\n{{Count}}', ["hidden"])
    again = await actor.do("publish", {}, **values)
    assert "Nothing was stored" in again.text
    assert [line["outcome"] for line in actor.lines()] == ["asked", "done", "asked", "done in part"]
    assert not {"secret", "hidden"} & set(actor.audit.read_text().replace('"', " ").split())
    for subject in ("$JS.API.STREAM.DELETE." + stream, "_INBOX.x", f"{stream}.>", "a b", "nowhere.at.all"):
        refused = await actor.look("publish", {}, subject=subject)
        assert refused.status == 400, subject
    assert len(actor.lines()) == 4


async def test_a_key_is_put_and_deleted_only_as_it_was_seen(actor: Actor, unique: Name):
    """A key gets a value if it is still at the revision that was seen, and its old value is in the form."""
    from penstock.buckets import KeyValue

    client, bucket = await actor.visitor.nats(), unique("b")
    kv = await KeyValue.create_bucket(client, bucket)
    assert (await actor.do("key-add", {"bucket": bucket}, name="a.b", value="one")).status == 200
    key = {"bucket": bucket, "key": "a.b"}
    page = await actor.form("key-put", **key)
    assert "one" in page.text
    looked = await actor.look("key-put", key, value="two")
    await kv.put("a.b", b"by somebody else")
    assert (await actor.post("key-put", [*filled(looked.text), ("step", "do")])).status == 409
    assert (await actor.do("key-put", key, value="two")).status == 200
    assert (await kv.get("a.b")).value == b"two"
    assert (await actor.do("key-delete", key, "a.b")).status == 200
    assert await kv.keys() == []


# -- commands, and names that others chose -----------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["stream-edit", "consumer-edit", "bucket-edit", "objects-edit"])
async def test_a_mask_is_not_written_in_the_place_of_a_secret(actor: Actor, unique: Name, act: str):
    """A description that holds the console's own secret is left alone or changed as a whole: its mask is refused."""
    client, name = await actor.visitor.nats(), unique("MASKED")
    said = f"old words {actor.visitor.backend.upstream.options.token}"
    targets, stream = {"stream": name}, name
    if act in ("stream-edit", "consumer-edit"):
        await assets.add_stream(client, Stream(name=name, subjects=[name], description=said))
        await assets.add_consumer(client, name, Consumer(durable="c", description=said))
        targets |= {"consumer": "c"} if act == "consumer-edit" else {}
    elif act == "bucket-edit":
        await KeyValue.create_bucket(client, name, description=said)
        targets, stream = {"bucket": name}, f"KV_{name}"
    else:
        await ObjectStore.create_bucket(client, name, description=said)
        targets, stream = {"bucket": name}, f"OBJ_{name}"

    async def described() -> str | None:
        if act == "consumer-edit":
            return (await assets.consumer_info(client, stream, "c")).config.description
        return (await assets.stream_info(client, stream)).config.description

    for step in ("look", "do"):
        page = await actor.form(act, **targets)
        assert "old words ***" in page.text
        fields = [(name, value) for name, value in filled(page.text) if name != "description"]
        sent = [*fields, ("description", "new words ***"), ("typed", targets.get("consumer", name)), ("step", step)]
        refused = await actor.post(act, sent)
        assert (refused.status, "holds a hidden secret" in refused.text) == (400, True), refused.text
    assert await described() == said
    done = await actor.do(act, targets, targets.get("consumer", name), description="new words")
    assert done.status == 200, done.text
    assert await described() == "new words"


async def test_the_command_that_is_shown_does_the_same(actor: Actor, server: Server, unique: Name, tmp_path: Path):
    """Pasted into a shell, the command does what the form would, also for names and payloads that look like code."""
    client, name = await actor.visitor.nats(), f"-{unique('x')}$(touch${{IFS}}p)';`"
    await assets.add_stream(client, Stream(name=name, subjects=[f"{name}.>"]))
    page = await actor.look(
        "publish", {"stream": name}, subject=f"{name}.a", payload="-n $(touch p)\n'\"\x1b[31m", headers="-A: b c"
    )
    _run(commands(page.text), server, tmp_path)
    found = await assets.get_message(client, name, 1)
    assert (found.data, found.headers["-A"]) == (b"-n $(touch p)\n'\"\x1b[31m", ["b c"])
    page = await actor.look("stream-edit", {"stream": name}, max_msgs="7", max_age="2h", description="-x $(touch p)")
    _run(commands(page.text), server, tmp_path)
    config = (await assets.stream_info(client, name)).config
    assert (config.max_msgs, config.max_age, config.description) == (7, 7200.0, "-x $(touch p)")
    page = await actor.look("stream-delete", {"stream": name})
    _run(commands(page.text), server, tmp_path)
    with pytest.raises(NotFoundError):
        await assets.stream_info(client, name)
    assert not (tmp_path / "p").exists()


def _run(shown: list[str], server: Server, folder: Path) -> None:
    shell = f'penstock() {{ {shlex.quote(sys.executable)} -m penstock "$@"; }}\n' + "\n".join(shown)
    env = environment(folder, NATS_URL=server.url)
    done = subprocess.run(
        ["bash", "-c", shell], cwd=folder, env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, (shown, done.stderr)


async def test_names_cannot_become_markup_in_forms(actor: Actor, unique: Name):
    """A stream, a consumer and a description that hold markup are shown as they are written, in every step."""
    client, name = await actor.visitor.nats(), f'{unique("x")}"<script'
    info = Stream(name=name, subjects=[f"{unique('s')}.>"], description='"><img src=x onerror=alert(1)>')
    await assets.add_stream(client, info)
    await assets.add_consumer(client, name, Consumer(durable='c"<script'))
    steps = [
        await actor.form("stream-edit", stream=name),
        await actor.look("stream-edit", {"stream": name}, max_msgs="9"),
        await actor.look("consumer-reset", {"stream": name, "consumer": 'c"<script'}),
        await actor.look("publish", {"stream": name}, subject='a"><script>', payload="</textarea><script>"),
        await actor.look("stream-delete", {"stream": name}),
        await actor.do("stream-delete", {"stream": name}, name),
    ]
    for page in steps:
        assert "<script" not in page.text.replace('<script src="/static/console.js" defer></script>', "")
        assert "<img src=x" not in page.text
    assert steps[-1].status == 200


async def test_an_act_that_the_server_denies_is_told_and_logged(server: Server, actor: Actor, stream: str):
    """What the server refuses is on the page and in the log, as refused; the stream is as it was."""
    client = await actor.visitor.nats()
    info = await assets.stream_info(client, stream)
    await assets.edit_stream(client, info.config.changed(deny_purge=True))
    refused = await actor.do("stream-purge", {"stream": stream}, stream)
    assert refused.status == 502, refused.text
    assert [line["outcome"] for line in actor.lines()] == ["asked", "refused"]
    assert (await assets.stream_info(client, stream)).messages == 10


async def test_nobody_acts_if_the_log_cannot_be_written(actor: Actor, stream: str):
    """An act that would leave no line in the log is not tried."""
    page = await actor.look("stream-delete", {"stream": stream})
    actor.audit.unlink()
    actor.audit.mkdir()
    refused = await actor.post("stream-delete", [*filled(page.text), ("typed", stream), ("step", "do")])
    assert refused.status == 502
    assert "cannot be written" in refused.text
    assert (await assets.stream_info(await actor.visitor.nats(), stream)).messages == 10


async def test_what_is_too_long_or_no_form_is_refused(actor: Actor, stream: str):
    """Names beyond the server's longest, bodies beyond a form's, and things that are no forms get a sentence."""
    assert (await actor.form("stream-delete", stream="x" * 5000)).status == 400
    assert (await actor.form("stream-delete", stream="a.b")).status == 400
    assert (await actor.form("stream-delete")).status == 400
    assert (await actor.form("nonsense")).status == 404
    assert (await actor.post("nonsense", [])).status == 404
    fields = filled((await actor.form("stream-purge", stream=stream)).text)
    huge = await actor.post("stream-purge", [*fields, ("subject", "x" * 5_000_000)])
    assert huge.status == 400
    assert "too large" in huge.text
    many = await actor.post("stream-purge", [*fields, *(("x", "y") for _ in range(2000))])
    assert many.status == 400
    odd = await actor.visitor.get(
        "/act/stream-purge",
        method="POST",
        known=False,
        body=b"\xff=%ff",
        content_type="application/x-www-form-urlencoded",
        **actor.headers,
        **actor.said,
    )
    assert odd.status == 400
    wrong = await actor.look("stream-purge", {"stream": stream}, keep="many")
    assert wrong.status == 400
    assert 'value="many"' in wrong.text, "what was typed is still there"


# -- dead letters ------------------------------------------------------------------------------------------------------


async def test_dead_letters_are_put_back_once_however_often_it_is_clicked(actor: Actor, unique: Name):
    """Ticked ones go back, the others stay; a second form for the same ones does nothing, and says so."""
    client, name = await actor.visitor.nats(), unique("DEAD")
    await assets.add_stream(client, Stream(name=name, subjects=[f"{name}.>"]))
    await assets.add_consumer(client, name, Consumer(durable="c"))
    for number in range(3):
        await client.jetstream().publish(f"{name}.x", str(number).encode())

    async def refuse(delivery: Delivery) -> None:
        raise Reject("<b>no</b>")

    await Worker(client, name, "c", refuse, dead_letters=f"{name}-DEAD", limit=3).run()
    page = await actor.visitor.get(f"/dead-letters/{name}-DEAD", known=False, **actor.headers)
    assert 'name="number"' in page.text
    ticked = {"stream": name, "dead": f"{name}-DEAD", "number": ["1", "3"]}
    looked, again = await actor.form("letters-back", **ticked), await actor.form("letters-back", **ticked)
    assert commands(looked.text) == [f"penstock consumer redeliver {name} c --seq=1 --seq=3 --dead={name}-DEAD -f"]
    assert "<b>no" not in looked.text
    done = await actor.post("letters-back", [*filled(looked.text), ("step", "do")])
    assert "2 of 2 dead letters are back" in done.text, done.text
    none = await actor.post("letters-back", [*filled(again.text), ("step", "do")])
    assert none.status == 404
    info = await assets.stream_info(client, name)
    assert info.last_sequence == 5
    assert [letter.data async for letter in DeadLetters(client, name).letters()] == [b"1"]
    assert [(line["outcome"], line["with"]) for line in actor.lines()] == [
        ("asked", {"number": ["1", "3"]}),
        ("done", {"number": ["1", "3"]}),
    ]
    for wrong in ([], ["x"], ["1", "-1"], [str(number) for number in range(200)]):
        assert (await actor.form("letters-back", stream=name, number=wrong)).status == 400
