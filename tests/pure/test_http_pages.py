"""Requests of the small HTTP servers that no browser sends."""

from __future__ import annotations

import pytest

from penstock.channels import Gateway
from penstock.channels.monitoring import Monitor
from penstock.http_pages import HttpRefused, HttpRequest
from penstock.metrics import MetricsServer
from penstock.options import ConnectionOptions

NOWHERE = "nats://127.0.0.1:1"


@pytest.mark.parametrize("target", ["//[", "//[]/streaming/serverz", "http://[x]/"])
@pytest.mark.parametrize(
    "pages",
    [Monitor(Gateway(NOWHERE, cluster_id="c"), "127.0.0.1:0"), MetricsServer(ConnectionOptions(NOWHERE))],
    ids=["gateway", "metrics"],
)
async def test_a_target_that_is_not_an_address_is_refused(pages: Monitor | MetricsServer, target: str) -> None:
    """A host in brackets that is not an address gets the status of a bad request, and a line of text."""
    with pytest.raises(HttpRefused, match="400 Bad Request"):
        await pages._answer(HttpRequest(target, {"host": "127.0.0.1"}))
