"""The model against the real server: what we write is what it reads, and what it writes is what we know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import penstock
from penstock.connection import api_request
from penstock.model import Consumer, Stream

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def ours(config: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the server writes about itself."""
    metadata = {name: text for name, text in config.get("metadata", {}).items() if not name.startswith("_nats.")}
    return {**config, "metadata": metadata}


async def test_the_golden_files_are_what_the_server_says() -> None:
    """Each golden stream and consumer, created through the model, is what the server then says it holds."""
    streams = json.loads((GOLDEN / "streams.json").read_text())
    consumers = json.loads((GOLDEN / "consumers.json").read_text())
    # A server of its own: the names in the golden files are fixed.
    with penstock.Server(sync="2m", config="server_tags: [ssd]") as server:
        async with await penstock.connect(server.url) as nc:
            await api_request(nc, "STREAM.CREATE.ORIGIN", {"name": "ORIGIN", "subjects": ["origin.>"]})
            for name, config in streams.items():
                body = Stream.from_json(ours(config)).to_json()
                answer = await api_request(nc, f"STREAM.CREATE.{name}", body)
                assert ours(answer["config"]) == ours(config)
                assert Stream.from_json(answer["config"]).unknown == {}
                # The server takes what we read from it as no change.
                same = await api_request(nc, f"STREAM.UPDATE.{name}", Stream.from_json(answer["config"]).to_json())
                assert ours(same["config"]) == ours(config)
            for name, config in consumers.items():
                made = Consumer.from_json(ours(config))
                body = {"stream_name": "ORIGIN", "config": made.to_json()}
                answer = await api_request(nc, f"CONSUMER.CREATE.ORIGIN.{name}", body)
                assert ours(answer["config"]) == ours(config)
                body = {"stream_name": "ORIGIN", "config": Consumer.from_json(answer["config"]).to_json()}
                answer = await api_request(nc, f"CONSUMER.CREATE.ORIGIN.{name}", {**body, "action": "update"})
                assert ours(answer["config"]) == ours(config)
