"""All pages of the console, in the order in which the menu and the docs show them."""

from __future__ import annotations

from dataclasses import asdict

from penstock import __version__
from penstock.console.backend import Backend, Data, Page, PageRequest, page
from penstock.console.buckets import bucket, buckets, entry, object_bucket, object_entry
from penstock.console.channels import channel_cluster, channels
from penstock.console.cluster import cluster
from penstock.console.consumers import consumer, consumers
from penstock.console.dead_letters import dead_letters, letters
from penstock.console.downloads import DOWNLOADS
from penstock.console.messages import message, messages, tail
from penstock.console.overview import overview
from penstock.console.pipelines import pipeline, pipelines
from penstock.console.streams import stream, streams
from penstock.console.transfers import transfers

__all__ = ["DOWNLOADS", "PAGES"]


@page("/about")
async def about(backend: Backend, request: PageRequest) -> Data:
    """The settings of this console, and its pages."""
    return {
        "version": __version__,
        "write": backend.write,
        "prometheus": None if backend.prometheus is None else backend.prometheus.where,
        "settings": asdict(backend.settings),
        "pages": [{"path": item.path, "json": f"{item.path}.json", "what": item.sentence} for item in PAGES],
    }


PAGES: tuple[Page, ...] = (
    *(overview, streams, stream, messages, message, tail),
    *(consumers, consumer, pipelines, pipeline, dead_letters, letters),
    *(buckets, bucket, entry, object_bucket, object_entry),
    *(transfers, channels, channel_cluster, cluster, about),
)
