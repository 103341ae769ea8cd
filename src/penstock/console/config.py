"""The configuration of a stream or a consumer as pairs that people read."""

from __future__ import annotations

from typing import Any

from penstock.console.masking import Mask
from penstock.console.payload import visible
from penstock.durations import format_duration
from penstock.info import Placed
from penstock.model import Consumer, Stream
from penstock.sizes import format_size
from penstock.spark.markers import marker_filter

__all__ = ["config_rows", "placed_facts"]

# Shown whatever they are; other fields where they are not the default.
_ALWAYS = {"subjects", "retention", "storage", "num_replicas", "discard", "max_age", "max_msgs", "ack_policy"}
_BYTES = {"max_bytes", "max_msg_size"}


def placed_facts(placed: Placed) -> dict[str, Any]:
    """Give which servers carry a stream or a consumer, for its page."""
    return {
        "cluster": placed.cluster,
        "leader": placed.leader,
        "replicas": [{"name": name, "current": current} for name, current in placed.replicas],
    }


def config_rows(config: Stream | Consumer, mask: Mask) -> list[tuple[str, str]]:
    """Give a configuration as pairs for people; what is as it always is, is left out."""
    rows = []
    kind = type(config)
    for name, field in kind.model_fields.items():
        value = getattr(config, name)
        default = field.get_default(call_default_factory=True)
        if name in ("name", "unknown") or (value == default and name not in _ALWAYS):
            continue
        if isinstance(config, Stream) and name == "subjects":
            value = [item for item in value if item != marker_filter(config.name)]
        value = _plain(value)
        if name == "metadata":
            value = {key: text for key, text in value.items() if not key.startswith("_nats.")}  # the server's own
        if name == "metadata" and not value:
            continue
        rows.append((name.replace("_", " "), _shown(name, mask.plain(value))))
    return rows


def _plain(value: Any) -> Any:
    """Give values of the model as the JSON they stand for."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.to_json() if hasattr(value, "to_json") else value


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "yes" if value else "no"
    if isinstance(value, float):  # every float of the model is a duration
        return format_duration(value) if value else "no limit"
    if isinstance(value, int):
        if value < 0:
            return "no limit"
        return format_size(value) if name in _BYTES else f"{value:,}"
    if isinstance(value, list):
        return ", ".join(_shown("", item) for item in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "none"
    return visible(str(value))
