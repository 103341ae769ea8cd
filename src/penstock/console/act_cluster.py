"""Acts on the cluster: let the leader of a stream, of a consumer or of JetStream itself step down."""

from __future__ import annotations

from dataclasses import replace

from penstock.console.act_consumers import consumer_page
from penstock.console.act_streams import stream_page
from penstock.console.acts import ActRequest, ActSight, Done, Intent, act, see_consumer, see_stream
from penstock.console.forms import Field
from penstock.console.shell import command
from penstock.errors import InputError
from penstock.info import ConsumerInfo, StreamInfo
from penstock.jetstream import peers
from penstock.system.meta import MetaGroup, meta_group, step_down_meta

__all__ = ["CLUSTER_ACTS"]

_ELECTED = 10.0  # seconds that an election may take
_PREFERRED = Field("preferred", "Server that is to lead", hint="any that carries it, if empty")


def _with_leader(seen: ActSight, leader: str | None, others: list[str]) -> ActSight:
    """Whoever led when the page was shown is to step down, and nobody else."""
    if not others:
        raise InputError("One server alone carries it.", remedy="Nobody else could lead.")
    names = ", ".join(others)
    return replace(seen, made=f"{seen.made} {leader}", hints={"preferred": f"one of {names}; any of them, if empty"})


async def _see_stream(asked: ActRequest) -> ActSight:
    seen = await see_stream(asked)
    info: StreamInfo = seen.info
    return _with_leader(seen, info.placed.leader, [name for name, _ in info.placed.replicas])


async def _see_consumer(asked: ActRequest) -> ActSight:
    seen = await see_consumer(asked)
    info: ConsumerInfo = seen.info
    return _with_leader(seen, info.placed.leader, [name for name, _ in info.placed.replicas])


def _chosen(asked: ActRequest, leader: str | None, others: list[str]) -> str | None:
    """Give the server that was named, None if any will do."""
    preferred = asked.values["preferred"] or None
    if leader is None:
        raise InputError("Nobody leads it now.", remedy="Wait for a leader.")
    if preferred is not None and preferred not in others:
        raise InputError(f"{preferred[:80]} does not follow the leader.", remedy=f"Name one of {', '.join(others)}.")
    return preferred


def _says(leader: str | None, what: str, preferred: str | None) -> str:
    return f"Lets {leader} step down as the leader of {what}, for {preferred or 'another server'} to lead."


@act(
    "stream-step-down",
    "Step down",
    of="stream-group",
    targets=("stream",),
    fields=(_PREFERRED,),
    look=_see_stream,
)
async def stream_step_down(asked: ActRequest, seen: ActSight) -> Intent:
    """Let the leader of a stream step down, so that another server leads."""
    info: StreamInfo = seen.info
    before = info.placed.leader
    preferred = _chosen(asked, before, [name for name, _ in info.placed.replicas])

    async def do() -> Done:
        now = await peers.step_down(asked.client, info.name, preferred=preferred, timeout=_ELECTED)
        says = f"{now.placed.leader} leads stream {info.name} now; before, {before} did."
        return _done(says, preferred, now.placed.leader, now.raw.get("cluster"), stream_page(info.name))

    flags = [f"--preferred={preferred}"] if preferred else []
    words = command("stream cluster step-down", info.name, flags=flags)
    return Intent(_says(before, f"stream {info.name}", preferred), [words], do)


@act(
    "consumer-step-down",
    "Step down",
    of="consumer-group",
    targets=("stream", "consumer"),
    fields=(_PREFERRED,),
    look=_see_consumer,
)
async def consumer_step_down(asked: ActRequest, seen: ActSight) -> Intent:
    """Let the leader of a consumer step down, so that another server leads."""
    info: ConsumerInfo = seen.info
    before = info.placed.leader
    preferred = _chosen(asked, before, [name for name, _ in info.placed.replicas])

    async def do() -> Done:
        now = await peers.step_down_consumer(
            asked.client, info.stream, info.name, preferred=preferred, timeout=_ELECTED
        )
        says = f"{now.placed.leader} leads consumer {info.name} of stream {info.stream} now; before, {before} did."
        page = consumer_page(info.stream, info.name)
        return _done(says, preferred, now.placed.leader, now.raw.get("cluster"), page)

    flags = [f"--preferred={preferred}"] if preferred else []
    words = command("consumer cluster step-down", info.stream, info.name, flags=flags)
    return Intent(_says(before, f"consumer {info.name} of stream {info.stream}", preferred), [words], do)


async def _see_meta(asked: ActRequest) -> ActSight:
    if asked.backend.system is None:
        what = "Only a user of the system account may do that, and this console was given none."
        raise InputError(what, remedy="Start it with penstock console --system CONTEXT.")
    group = await meta_group(await asked.backend.system.client())
    return _with_leader(ActSight(group.name, group), group.leader, list(group.others))


@act("meta-step-down", "Step down", of="meta-group", fields=(_PREFERRED,), look=_see_meta)
async def meta_step_down(asked: ActRequest, seen: ActSight) -> Intent:
    """Let the server that leads JetStream step down, so that another one does. Needs --system."""
    group: MetaGroup = seen.info
    preferred = _chosen(asked, group.leader, list(group.others))
    system = asked.backend.system
    if system is None:
        raise InputError("This console has no login of the system account.", remedy="Give --system.")

    async def do() -> Done:
        now = await step_down_meta(await system.client(), preferred=preferred, timeout=_ELECTED)
        says = f"{now.leader} leads JetStream in {now.name} now; before, {group.leader} did."
        return _done(says, preferred, now.leader, {"leader": now.leader, "others": now.others}, "/cluster")

    flags = [*([f"--host={preferred}"] if preferred else []), "-f"]
    what = f"JetStream in {group.name}"
    return Intent(_says(group.leader, what, preferred), [command("server cluster step-down", flags=flags)], do)


def _done(says: str, preferred: str | None, leader: str | None, answer: object, page: str) -> Done:
    if preferred is not None and leader != preferred:
        return Done(f"{says} {preferred} was asked for.", answer, page, whole=False)
    return Done(says, answer, page)


CLUSTER_ACTS = (stream_step_down, consumer_step_down, meta_step_down)
