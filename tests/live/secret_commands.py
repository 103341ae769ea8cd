"""Every command, with what it is to do while secrets are searched for, or why no secret can reach it.

In a line, `{file}` is a topology and `{folder}` a folder that is searched. A line that begins with `!` fails; one with
`~` goes on until Ctrl-C, which comes once it has said what stands behind that sign.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.cli.tree import COMMANDS, Entry, Group

__all__ = ["BENCHMARKS", "ELSEWHERE", "EVERYWHERE", "SYSTEM", "every_command", "named"]

EVERYWHERE = """
stream add S --subjects s.> --defaults --allow-counter --allow-direct
stream add T --subjects t.> --defaults --allow-direct
stream ls
stream info S
stream info S --json
stream state S
stream report
stream find
stream size --messages 10 --payload 1KB --subject t.a
pub t.a hello
pub t.b hello
req t.c hello
stream view T
stream get T 1
stream subjects T
stream gaps T
pub t.json {{"a":1}}
stream schema T
stream edit T --description=changed -f
stream copy T U --subjects u.>
stream rmm T 2 -f
stream purge U -f
stream seal U -f
! stream cluster step-down T
stream cluster balance
! stream cluster evacuate nobody -f
! stream cluster peer-remove T nobody -f
! stream cluster cancel-move T -f
sub t.> --stream T --last --count 1
sub x.> ~ Subscribing
reply x.b hello ~ Listening
events --all ~ Listening
consumer add T c --pull --defaults
consumer edit T c --description=changed -f
consumer copy T c d
consumer info T c
consumer info T c --json
consumer state T c
consumer ls T
consumer find T
consumer report T
consumer next T c
consumer sub T d --count 1
consumer samples T c --wait 100ms
consumer pause T c 1h -f
consumer resume T c -f
consumer reset T c -f
! consumer unpin T c -f
! consumer redeliver T c
! consumer cluster step-down T c
consumer cluster balance T
! consumer cluster evacuate nobody -f
consumer rm T d -f
counter increment s.n 1
counter decrement s.n 1
counter get s.n
counter view s.n
counter list s.>
kv add bucket --history 5
kv edit bucket --description=changed
kv put bucket key value
kv create bucket other value
kv get bucket key
kv update bucket key value 1
kv history bucket key
kv watch bucket ~ other
kv revert bucket key 1 -f
kv info bucket
kv ls bucket
kv purge bucket other -f
kv del bucket key -f
kv compact bucket -f
object add files
object edit files --description=changed -f
object put files {file} --name topology
object get files topology --output {folder}/object
object info files topology
object ls files
object watch files ~ topology
object rename files topology plan
object link files link plan
object compact files -f
object del files link -f
object seal files -f
account info
! account tls
account report connections
account report statistics
server info
server info --json
server check connection
server check request --subject t.c
server check jetstream
server check stream --stream T
server check consumer --stream T --consumer c
server check message --stream T --subject t.a
server check kv --bucket bucket
rtt
apply {file} --dry-run
apply {file}
backup stream T {folder}/backup
backup info {folder}/backup
backup validate {folder}/backup
stream backup T {folder}/again
! stream restore {folder}/again
! backup restore stream {folder}/backup
chunks send {file} large
chunks ls T
chunks receive large --to {folder} ~ Receiving
! chunks info T nothing
! bus call shop all
channels ls
bus serve tests.live.roles:_answer --queue shop ~ shop
! channels info news
! channels export news
! channels migrate --from nats://127.0.0.1:1
top --once --interval 200ms
console ~ It shows
metrics serve --port 0 ~ It looks at
bench pub bench --msgs 10 --no-progress
bench sub bench ~ Waiting
bench service serve bench ~ Answering
doctor
pipeline new sensors --in {folder}
pipeline status {folder}/sensors
! pipeline stop {folder}/sensors
pipeline reset {folder}/sensors -f
! pipeline switch {folder}/sensors
! pipeline replay {folder}/sensors --into ALERTS
! stream info missing
! consumer info T missing
! pub t..a bad
stream rm S -f
stream rm T -f
stream rm U -f
stream rm Z -f
kv del bucket -f
object del files -f
""".strip().splitlines()
"""With every kind of login."""

BENCHMARKS = """
! bench service request bench --msgs 1 --no-progress
! bench request bench --msgs 1 --no-progress
bench js pub sync bench --msgs 10 --no-progress --csv {folder}/bench.csv
bench js pub async bench --msgs 10 --no-progress
bench js pub atomic bench --msgs 10 --no-progress
bench js pub fast bench --msgs 10 --no-progress
bench js ordered --msgs 10 --no-progress
bench js consume --msgs 10 --no-progress
bench js fetch --msgs 10 --no-progress
bench js get sync --msgs 10 --no-progress
bench js get batch --msgs 10 --no-progress
bench kv put --msgs 10 --no-progress
bench kv get --msgs 10 --no-progress
bench object put --msgs 1 --size 1KB --no-progress
bench object get --msgs 1 --size 1KB --no-progress
bench chunks --msgs 1 --size 1MB --no-progress
bench bus --msgs 10 --no-progress
bench channels --msgs 10 --no-progress
""".strip().splitlines()
"""With one kind of login: each starts processes, and hands it on to them in the same way."""

SYSTEM = """
server list
server list --json
server ping
server info
server account info APP
server report accounts
server report connections
server report cpu
server report mem
server report health
server report jetstream
server report routes
server report gateways
server report leafnodes
server report downgrade 1
! server check server --name nobody --outfile {folder}/check
! server check meta --expect 3 --lag-critical 1 --seen-critical 1s
server request variables
server request connections
server request subscriptions
server request routes
server request gateways
server request leafnodes
server request accounts
server request jetstream
server request jetstream-health
server request raft
server request ipqueue
! server cluster step-down
events --all ~ Listening
""".strip().splitlines()
"""With a login of the system account."""

_SPARK = "it starts Spark: tests/pipelines/test_secrets.py runs a pipeline, tests/spark/test_secrets.py a query"
_CONTEXT = "it writes and shows contexts: test_a_context"
_LOCAL = "it reads local files alone, and connects to nobody"
ELSEWHERE = {
    "server run": "it prints the address of its own server, with the token: that is what it is for",
    "server check credential": "it reads a file and connects to nobody: test_a_credentials_file",
    "channels serve": "it takes its login from a context: test_a_context",
    "channels old-server": "it has flags of nats-streaming-server alone: tests/live/test_channels_secrets.py",
    "backup lookup": _LOCAL,
    "store inspect": _LOCAL,
    "stream archive": "it starts Spark: test_an_archive in tests/spark/test_secrets.py",
    "bench spark write": _SPARK,
    "bench spark read": _SPARK,
    "pipeline run": "tests/pipelines/test_secrets.py",
    "quickstart": "its server and its token are its own; Spark gets it as in tests/pipelines/test_secrets.py",
    "demo": "tests/pipelines/test_orders.py searches its report and all that it keeps",
    **{f"context {verb}": _CONTEXT for verb in ("add", "copy", "edit", "ls", "rm", "select")},
    **{f"context {verb}": _CONTEXT for verb in ("unselect", "previous", "info", "validate")},
}
"""Commands that none of these lines runs, and why."""


def every_command(entries: Mapping[str, Entry | Group] = COMMANDS, before: str = "") -> Iterator[str]:
    """Give the words of every command."""
    for name, item in entries.items():
        if isinstance(item, Group):
            yield from every_command(item.verbs, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def named(line: str) -> str:
    """Give the command that a line runs."""
    words = line.removeprefix("! ")
    return max((name for name in every_command() if f"{words} ".startswith(f"{name} ")), key=len)
