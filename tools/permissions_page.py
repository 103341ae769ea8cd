"""docs/reference/permissions.md: what each role needs, from the configuration that the tests run with."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.conf_file import read_conf

__all__ = ["page"]

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "tests" / "golden" / "permissions" / "roles.conf"
_INTRO = """# Permissions of each role

The least that each role needs, as the configuration of a nats-server that can be copied. A test runs the whole work of
each role with exactly this, and once with each subject missing: then the error names the subject, and what to add, at
once.

Each login has an inbox of its own: who may subscribe to `_INBOX.>` hears the replies to everybody. So each connects
with its prefix: `inbox_prefix="_INBOX.<role>"` in Python, `--inbox-prefix` in commands, `inboxPrefix` in Spark,
`inbox_prefix` in a context. Names to change: the streams `ORDERS`, `RESULTS`, `DEAD` and `FILES`, their subjects, the
consumer `billing`, the buckets `prices` and `pictures`, the queue `shop` with two partitions, the cluster id
`test-cluster`, the subjects of its channels, and the passwords. A domain changes `$JS.API` to `$JS.<domain>.API`.

Three kinds of acts of `console-write` need more. Pipelines that are run from the console need the subjects of
`pipeline`, too. In a cluster, to let leaders of streams and consumers step down needs
`$JS.API.STREAM.LEADER.STEPDOWN.*` and `$JS.API.CONSUMER.LEADER.STEPDOWN.*.*`. To let the leader of JetStream step down
needs a login of the system account, with `--system`.
"""


def page() -> str:
    """Write the page."""
    text = CONF.read_text()
    sentences = dict(re.findall(r"^ *# ([^\n]+)\n *\{ user: ([\w-]+)", text, re.MULTILINE))
    about = {user: sentence for sentence, user in sentences.items()}
    users = read_conf(CONF).values["authorization"]["users"]
    rows = [f"| `{item['user']}` | {about[item['user']]} |" for item in users]
    table = "\n".join(["| role | what it does |", "|---|---|", *rows])
    return f"{_INTRO}\n{table}\n\n```text\n{text.rstrip()}\n```\n"
