"""Streams that benchmarks make: they take every way of publishing, and go again at the end unless they are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.bench.client_job import ClientJob, Subjects
from penstock.cli.bench_run import Bench
from penstock.cli.late import assets, model
from penstock.errors import JetStreamError, NotFoundError

if TYPE_CHECKING:
    from penstock.info import StreamInfo

__all__ = ["declared", "filled", "made", "remover", "temporary"]

_NAME_TAKEN, _OVERLAP = 10058, 10065


def declared(name: str, subjects: Subjects, settings: Mapping[str, Any]) -> Any:
    """Declare a stream that takes every way of publishing; it refuses what is too much instead of dropping."""
    fields = {"subjects": [subjects.pattern], "discard": "new", "allow_direct": True, **settings}
    if "replicas" in fields:  # as buckets call it
        fields["num_replicas"] = fields.pop("replicas")
    return model.Stream(name=name, allow_atomic=True, allow_batched=settings.get("persist_mode") is None, **fields)


async def made(run: Bench, stream: Any) -> StreamInfo:
    """Create a stream; one of that name that is another one stays as it is."""
    try:
        return await assets.add_stream(run.client, stream)
    except JetStreamError as error:
        if isinstance(error, NotFoundError) or error.err_code not in (_NAME_TAKEN, _OVERLAP):
            raise
        remedy = "Publish to it with --stream and without --create, or choose another subject or name."
        raise JetStreamError(error.what, remedy=remedy, **error.facts) from None


async def temporary(run: Bench, subjects: Subjects, settings: Mapping[str, Any]) -> StreamInfo:
    """Make a stream that goes again at the end."""
    name = run.new_name()
    # Noted before it is made: an answer that is lost leaves a stream behind, too.
    run.remove_later(f"Stream {name}", remover(run, name))
    return await made(run, declared(name, subjects, settings))


def remover(run: Bench, stream: str) -> Callable[[], Any]:
    """Give what removes a stream, and minds nothing if it was never made."""

    async def remove() -> None:
        try:
            await assets.delete_stream(run.client, stream)
        except NotFoundError:
            return

    return remove


async def filled(run: Bench, info: StreamInfo) -> StreamInfo:
    """Put messages into a stream, on the first of its subjects."""
    pattern = next((one for one in info.config.subjects), info.name)
    subject = ".".join("bench" if token in ("*", ">") else token for token in pattern.split("."))
    mode = "fast" if info.config.allow_batched else "acks"
    payload = run.amount.payload()
    fields: dict[str, Any] = {"payload": payload, "subjects": Subjects(subject), "name": info.name, "mode": mode}
    await run.run(
        [ClientJob("streams.publish", run.options, run.amount.msgs, patience=run.patience, **fields)], what="Fill"
    )
    return await assets.stream_info(run.client, info.name)
