"""The page of the cluster, and acting on it: three real nodes with a system account."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.console.settings import Settings
from penstock.console.upstream import Upstream
from penstock.jetstream import assets
from penstock.model import Consumer, Stream
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.system.meta import meta_group
from tests.live.acting import Actor, commands, filled
from tests.live.console.test_console_hostile import check_page
from tests.live.inprocess import invoke
from tests.live.visitor import visiting
from tests.support import eventually

Name = Callable[..., str]
CONFIG = """
accounts {
  SYS { users [ { user: sys, password: pass } ] }
  APP { jetstream: enabled, users [ { user: app, password: pass } ] }
}
system_account: SYS
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Server]:
    """One cluster for all tests here."""
    with Server(nodes=3, sync="2m", auth=False, config=CONFIG) as running:
        yield running


def login(cluster: Server, user: str) -> ConnectionOptions:
    return ConnectionOptions(cluster.url, user=user, password="pass")


@pytest.fixture
async def actor(cluster: Server, tmp_path: Path) -> AsyncIterator[Actor]:
    """One who may act on the cluster, with a login of its system account."""
    audit = tmp_path / "acts.log"
    system = Upstream(login(cluster, "sys"), timeout=5.0)
    async with visiting(login(cluster, "app"), Settings(page_timeout=60.0), audit=audit) as visitor:
        object.__setattr__(visitor.backend, "system", system)
        try:
            yield Actor(visitor, audit)
        finally:
            await system.close()


async def _ready(look: Callable[[], Any]) -> bool:
    info = await look()
    return info.placed.leader is not None and len(info.placed.replicas) == 2


async def test_leaders_of_streams_consumers_and_of_jetstream_step_down(
    actor: Actor, cluster: Server, unique: Name, tmp_path: Path
):
    """Another server leads afterwards, the one that is named if one is; who leads is told, logged, and on the page."""
    client, name = await actor.visitor.nats(), unique("LED")
    await assets.add_stream(client, Stream(name=name, subjects=[name], num_replicas=3))
    await assets.add_consumer(client, name, Consumer(durable="c", num_replicas=3))

    async def stream() -> Any:
        return await assets.stream_info(client, name)

    async def consumer() -> Any:
        return await assets.consumer_info(client, name, "c")

    for look in (stream, consumer):
        await eventually(lambda look=look: _ready(look), "a leader", timeout=60)
    targets: dict[str, tuple[dict[str, str], Callable[[], Any]]] = {
        "stream": ({"stream": name}, stream),
        "consumer": ({"stream": name, "consumer": "c"}, consumer),
    }
    for kind, (target, look) in targets.items():
        before = (await look()).placed
        wanted = before.replicas[0][0]
        form = await actor.form(f"{kind}-step-down", **target)
        assert f"one of {before.replicas[0][0]}, {before.replicas[1][0]}" in form.text
        assert (await actor.look(f"{kind}-step-down", target, preferred="nobody")).status == 400
        late = await actor.look(f"{kind}-step-down", target)
        page = await actor.look(f"{kind}-step-down", target, preferred=wanted)
        (shown,) = commands(page.text)
        assert shown == f"penstock {kind} cluster step-down {' '.join(target.values())} --preferred={wanted}"
        done = await actor.post(f"{kind}-step-down", [*filled(page.text), ("step", "do")])
        assert f"{wanted} leads {kind}" in done.text, done.text
        assert f"before, {before.leader} did" in done.text
        assert (await look()).placed.leader == wanted
        refused = await actor.post(f"{kind}-step-down", [*filled(late.text), ("step", "do")])
        assert refused.status == 409, "another one leads by now"
    system = await actor.visitor.backend.system.client()  # type: ignore[union-attr]  # the fixture gave one
    meta = await meta_group(system)
    wanted = meta.others[0]
    page = await actor.look("meta-step-down", {}, preferred=wanted)
    assert commands(page.text) == [f"penstock server cluster step-down --host={wanted} -f"]
    done = await actor.post("meta-step-down", [*filled(page.text), ("step", "do")])
    assert "leads JetStream in" in done.text, done.text
    assert (await meta_group(system)).leader != meta.leader
    outcomes = [(line["act"], line["outcome"]) for line in actor.lines()]
    assert [act for act, outcome in outcomes if outcome in ("done", "done in part")] == [
        *("stream-step-down", "consumer-step-down", "meta-step-down"),
    ]
    shown_page = await actor.visitor.get("/cluster", known=False, **actor.headers)
    check_page(shown_page.text)
    for act in ("stream-step-down", "consumer-step-down", "meta-step-down"):
        assert f"/act/{act}" in shown_page.text, act
    data = await actor.visitor.twin("/cluster")
    leads = {row["name"]: row["leader"] for row in data["led"]}
    assert leads[name] == (await stream()).placed.leader
    assert {"stream", "consumer"} <= {row["kind"] for row in data["led"]}
    looked = await actor.visitor.get("/cluster")
    assert "/act/" not in looked.text, "who may only look has nothing to press"


def test_the_command_lets_another_server_lead_jetstream(cluster: Server):
    """`server cluster step-down` says who leads and who did; one that does not follow, or another login, is told."""
    words = ("server", "cluster", "step-down", "-f")
    system = ("--user", "sys", "--password", "pass")
    first = invoke(cluster.url, *system, *words)
    leader = first.stdout.partition(" leads JetStream in ")[0]
    assert leader in [node.name for node in cluster.nodes], first.stderr
    again = invoke(cluster.url, *system, *words)
    assert again.stdout.rstrip().endswith(f"before, {leader} did"), again.stderr
    wrong = invoke(cluster.url, *system, *words, "--host", "nobody")
    assert (wrong.status, "does not follow" in wrong.stderr) == (2, True)
    other = invoke(cluster.url, "--user", "app", "--password", "pass", *words)
    assert other.status != 0
    assert "system account" in other.stderr


async def test_what_one_server_keeps_cannot_be_led_by_another(actor: Actor, unique: Name):
    """A stream with one replica offers no step-down, and the form says why; without --system nobody elects a leader."""
    client, name = await actor.visitor.nats(), unique("ALONE")
    await assets.add_stream(client, Stream(name=name, subjects=[name]))
    page = await actor.visitor.get(f"/streams/{name}", known=False, **actor.headers)
    assert "step-down" not in page.text
    refused = await actor.form("stream-step-down", stream=name)
    assert (refused.status, "One server alone" in refused.text) == (400, True)
    object.__setattr__(actor.visitor.backend, "system", None)
    refused = await actor.form("meta-step-down")
    assert (refused.status, "--system" in refused.text) == (400, True)
    page = await actor.visitor.get("/cluster", known=False, **actor.headers)
    assert "meta-step-down" not in page.text


async def test_a_monitoring_port_of_another_cluster_is_told_and_left_out(actor: Actor, cluster: Server, server: Server):
    """Figures of servers that have nothing to do with this console's are not shown among them."""
    ports = (*cluster.monitor_urls, server.monitor_urls[0])
    object.__setattr__(actor.visitor.backend, "monitors", ports)
    data = await actor.visitor.twin("/cluster")
    told = {node["name"] for node in data["nodes"] if node["told"]}
    assert told == {node.name for node in cluster.nodes}
    (trouble,) = data["troubles"]
    assert server.nodes[0].name in trouble
    assert "not one of those that this console is connected to" in trouble
