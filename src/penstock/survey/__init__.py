"""A survey of an account: every stream, consumer and pipeline, looked at again and again in the background.

The console, `penstock metrics` and `penstock top` read the same `Survey`. Its cost is bounded whatever there is to see;
a `Snapshot` says what was looked at, how old that is, and what was not looked at and why.
The names that it exports are public; its modules are not for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.exports import exports

if TYPE_CHECKING:
    from penstock.survey.snapshot import Snapshot as Snapshot
    from penstock.survey.state import ConsumerState as ConsumerState
    from penstock.survey.state import Covered as Covered
    from penstock.survey.state import Edge as Edge
    from penstock.survey.state import FlowSeen as FlowSeen
    from penstock.survey.state import PipelineSeen as PipelineSeen
    from penstock.survey.state import StreamState as StreamState
    from penstock.survey.state import Trouble as Trouble
    from penstock.survey.state import Unseen as Unseen
    from penstock.survey.survey import Survey as Survey
    from penstock.survey.survey import SurveySettings as SurveySettings

_MODULES = {
    "penstock.survey.snapshot": ("Snapshot",),
    "penstock.survey.state": (
        "ConsumerState",
        "Covered",
        "Edge",
        "FlowSeen",
        "PipelineSeen",
        "StreamState",
        "Trouble",
        "Unseen",
    ),
    "penstock.survey.survey": ("Survey", "SurveySettings"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)  # noqa: PLE0605  # the names are those above, all text

__getattr__, __dir__ = exports(__name__, _HOMES)
