"""Spark Declarative Pipelines over NATS: a topology applied, a pipeline run, and progress that people can read.

The pipeline itself is ordinary `pyspark.pipelines`: a `spark-pipeline.yaml` and files with tables, flows and sinks.
This package starts Spark for it, as a child that can be killed at any moment and goes on where it was. Names are
loaded when they are used, because pipeline files import this package, too.

The names that it exports are public; its modules are not for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.exports import exports

if TYPE_CHECKING:
    from penstock.pipelines.order import RunOrder as RunOrder
    from penstock.pipelines.outcome import FlowProgress as FlowProgress
    from penstock.pipelines.outcome import Outcome as Outcome
    from penstock.pipelines.process import PipelineRun as PipelineRun
    from penstock.pipelines.project import Project as Project
    from penstock.pipelines.replaying import replay as replay
    from penstock.pipelines.running import run as run
    from penstock.pipelines.running import start as start
    from penstock.pipelines.settings import in_replay as in_replay
    from penstock.pipelines.settings import start_position as start_position
    from penstock.pipelines.settings import target as target
    from penstock.pipelines.tables import KeptTable as KeptTable
    from penstock.pipelines.tables import Table as Table

_HOMES = {
    "FlowProgress": "penstock.pipelines.outcome",
    "KeptTable": "penstock.pipelines.tables",
    "Outcome": "penstock.pipelines.outcome",
    "PipelineRun": "penstock.pipelines.process",
    "Project": "penstock.pipelines.project",
    "RunOrder": "penstock.pipelines.order",
    "Table": "penstock.pipelines.tables",
    "in_replay": "penstock.pipelines.settings",
    "replay": "penstock.pipelines.replaying",
    "run": "penstock.pipelines.running",
    "start": "penstock.pipelines.running",
    "start_position": "penstock.pipelines.settings",
    "target": "penstock.pipelines.settings",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605  # the names are the keys above, all text

__getattr__, __dir__ = exports(__name__, _HOMES)
