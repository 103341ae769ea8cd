"""The console's page for Prometheus, behind the same entrance as the others: it wants the token, as a bearer token."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from penstock.metrics import exposition
from penstock.metrics.text import CONTENT_TYPE
from penstock.survey import Survey

__all__ = ["metrics"]


async def metrics(survey: Survey, request: Request) -> Response:
    """Answer with everything that the survey knows."""
    return Response(await asyncio.to_thread(exposition, survey), media_type=CONTENT_TYPE)
