"""What tests of pipelines share. Each file starts Sparks of its own, so that files can run side by side."""

from __future__ import annotations

from tests.live.conftest import eventually, server, unique  # noqa: F401  # fixtures
from tests.spark.java import set_up_java

set_up_java()
