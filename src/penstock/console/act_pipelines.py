"""Acts on pipelines: run, stop, replay. What runs from here ends with the console, and goes on with the next run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.console.acts import ActRequest, ActSight, Done, Intent, act, digest
from penstock.console.forms import Field
from penstock.console.pipeline_runs import Watch
from penstock.console.shell import command
from penstock.errors import InputError, NotFoundError

if TYPE_CHECKING:
    from penstock.pipelines.project import Project

__all__ = ["PIPELINE_ACTS"]


def _project(asked: ActRequest) -> Project:
    name = asked.targets["project"]
    for project in asked.backend.projects:
        if project.name == name:
            return project
    raise NotFoundError(
        f"This console shows no pipeline {name[:80]}.", remedy="Start it with --pipeline DIR.", code=404
    )


async def _see(asked: ActRequest) -> ActSight:
    """See a pipeline: it is the same as long as its spec is."""
    project = _project(asked)
    try:
        text = await asyncio.to_thread(project.spec.read_text)
    except OSError as error:
        raise InputError(f"{project.spec} cannot be read: {error.strerror}.", remedy="Is it still there?") from None
    return ActSight(digest([text, project.storage]), project)


def _folder(project: Project) -> str:
    return str(project.folder)


@act(
    "pipeline-run",
    "Run",
    of="pipeline",
    targets=("project",),
    fields=(
        Field("mode", "How", "choice", "once", ("once", "continuously"), "over all that is there, or until stopped"),
    ),
    look=_see,
)
async def run(asked: ActRequest, seen: ActSight) -> Intent:
    """Run a pipeline on the machine of this console, with a Spark of its own; it ends with the console."""
    from penstock.pipelines.running import run as run_pipeline
    from penstock.pipelines.stopping import running_project

    project: Project = seen.info
    continuous = asked.values["mode"] == "continuously"
    if await asyncio.to_thread(running_project, project) is not None:
        raise InputError(f"The pipeline {project.name} runs already.", remedy="Wait for it, or stop it.")

    def work(watch: Watch) -> None:
        run_pipeline(project, options=asked.backend.upstream.given, continuous=continuous, watch=watch)

    async def do() -> Done:
        await asked.backend.runs.start(f"Pipeline {project.name}", work, asked.backend.settings.page_timeout)
        return Done(f"Pipeline {project.name} runs {asked.values['mode']}.", None, "/pipelines")

    flags = ["--continuous"] if continuous else []
    says = f"Applies the topology of pipeline {project.name}, and runs it {asked.values['mode']}."
    return Intent(says, [command("pipeline run", _folder(project), flags=flags)], do)


@act("pipeline-stop", "Stop", of="pipeline", targets=("project",), look=_see)
async def stop(asked: ActRequest, seen: ActSight) -> Intent:
    """Ask the run of a pipeline to end after the update in hand, whoever started it on this machine."""
    from penstock.pipelines.stopping import ask_to_stop, running_project

    project: Project = seen.info
    if await asyncio.to_thread(running_project, project) is None:
        what = f"The pipeline {project.name} does not run, as far as this machine knows."
        raise InputError(what, remedy="Nothing is to be done.")

    async def do() -> Done:
        pid = await asyncio.to_thread(ask_to_stop, project)
        says = f"The run of pipeline {project.name} was asked to end after the update in hand."
        return Done(says, {"pid": pid}, "/pipelines")

    says = f"Asks the run of pipeline {project.name} to end. What it has done stays done."
    return Intent(says, [command("pipeline stop", _folder(project), flags=["--wait=0s"])], do)


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in text.split():
        old, equals, new = item.partition("=")
        if not (old and equals and new):
            raise InputError(f"{item[:80]!r} is not a pair.", remedy="Write REVENUE=REVENUE_V2, one a line.")
        pairs[old] = new
    return pairs


@act(
    "pipeline-replay",
    "Replay",
    of="pipeline",
    targets=("project",),
    fields=(
        Field("name", "Name of the replay", default="replay", needed=True),
        Field("start", "Begin at", default="all", hint="all, a sequence, a time, or a duration ago", needed=True),
        Field("into", "Into", "text", hint="STREAM=NEW, one a line; new streams are made"),
    ),
    typed="project",
    look=_see,
)
async def replay(asked: ActRequest, seen: ActSight) -> Intent:
    """Run a pipeline over history into new streams beside the old ones, on the machine of this console."""
    from penstock.pipelines.replaying import replay as replay_pipeline
    from penstock.pipelines.replays import NAME
    from penstock.spark.positions import parse_position

    project: Project = seen.info
    name, start = asked.values["name"], asked.values["start"]
    into: Mapping[str, str] = _pairs(asked.values["into"])
    if not NAME.fullmatch(name):
        raise InputError(f"{name[:80]!r} cannot be the name of a replay.", remedy="Use letters, digits, - and _.")
    parse_position(start, option="from")

    def work(watch: Watch) -> None:
        options = asked.backend.upstream.given
        replay_pipeline(project, options=options, start=start, into=into, name=name, watch=watch)

    async def do() -> Done:
        title = f"Replay {name} of pipeline {project.name}"
        await asked.backend.runs.start(title, work, asked.backend.settings.page_timeout)
        return Done(f"{title} runs.", None, "/pipelines")

    flags = [f"--name={name}", f"--from={start}", *(f"--into={old}={new}" for old, new in into.items())]
    says = f"Runs pipeline {project.name} over history from {start} on"
    says += f", into {', '.join(into.values())}." if into else "; what it writes to stays as it is."
    return Intent(says, [command("pipeline replay", _folder(project), flags=flags)], do)


PIPELINE_ACTS = (run, stop, replay)
