"""What the Spark sink keeps in a stream beside the data: out of sight, unless somebody asks for it."""

from __future__ import annotations

import typer

__all__ = ["Sieve"]


class Sieve:
    """Lets messages of the data through, counts markers; a filter that names markers is a way to ask for them."""

    def __init__(self, everything: bool, pattern: str | None = None) -> None:
        from penstock.spark.markers import MARKER_ROOT

        self.open = everything or (pattern is not None and pattern.split(".")[0] == MARKER_ROOT)
        self.hidden = 0

    def shows(self, subject: str) -> bool:
        """Tell whether to show a message of this subject."""
        from penstock.spark.markers import is_marker

        if self.open or not is_marker(subject):
            return True
        self.hidden += 1
        return False

    def tell(self) -> None:
        """Say what was left out, beside the output."""
        if self.hidden:
            what = "1 marker" if self.hidden == 1 else f"{self.hidden:,} markers"
            typer.echo(f"Not shown: {what} of the Spark sink; see --all.", err=True)
