"""Small pipelines for tests, and a look into the streams that they read and write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import penstock
from penstock.connection import api_request
from penstock.jetstream import Publisher
from penstock.pipelines.new_project import write_project
from penstock.wire.bulk import BulkConnection
from tests.spark.java import QUICK_JVM


def quick_project(folder: Path, name: str = "sensors", **configuration: str) -> Path:
    """Write what `pipeline new` writes, with a Java that does not live long enough to compile well."""
    project = write_project(folder, name)
    settings = {"spark.driver.extraJavaOptions": QUICK_JVM, **configuration}
    with (project / "spark-pipeline.yaml").open("a") as spec:
        spec.writelines(f'  {key}: "{value}"\n' for key, value in settings.items())
    return project


def api(options: str | penstock.ConnectionOptions, method: str, body: object = None) -> Any:
    """Call the JetStream API; what passes is waited out, as a folder that a deleted stream is still leaving."""

    async def call() -> Any:
        client = await penstock.connect(options)
        try:
            return await api_request(client, method, body, patience=5.0)
        finally:
            await client.close()

    return asyncio.run(call())


def send(options: str | penstock.ConnectionOptions, readings: Iterable[dict[str, Any]]) -> None:
    """Publish readings to the stream READINGS."""

    async def publish() -> None:
        client = await penstock.connect(options)
        try:
            async with Publisher(client, "READINGS") as publisher:
                for reading in readings:
                    await publisher.send(f"readings.{reading['sensor']}", json.dumps(reading).encode())
        finally:
            await client.close()

    asyncio.run(publish())


def count(options: str | penstock.ConnectionOptions, stream: str, subjects: str) -> int:
    """Count the messages of some subjects."""
    with BulkConnection(options) as bulk:
        # The sink purges its own marks as it goes.
        return sum(batch.num_rows for batch in bulk.read(stream, subjects=subjects, on_loss=lambda lost: None))
