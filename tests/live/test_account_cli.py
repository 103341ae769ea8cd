"""`penstock account`: who we are, what we may, what our account uses, and the server's certificate."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from penstock.server import Server
from tests.live.inprocess import Done, invoke
from tests.support import Authority, Operator

CONFIG = """
accounts {
  APP {
    jetstream: {max_mem: 100M, max_store: 1G, max_streams: 10, max_consumers: 20}
    users: [
      {user: ann, password: pw}
      {user: limited, password: pw, permissions: {
        publish: {allow: ["$SYS.REQ.USER.INFO", "a.>"], deny: ["a.b"]}, subscribe: "_INBOX.>", allow_responses: true}}
      {user: nothing, password: pw, permissions: {publish: "x", subscribe: "_INBOX.>"}}
    ]
  }
  NOJS { users: [{user: bob, password: pw}] }
}
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "our authority")


@pytest.fixture(scope="module")
def guarded(authority: Authority) -> Iterator[Server]:
    """A server with TLS, accounts and permissions."""
    pair = authority.issue("server", "127.0.0.1", "localhost")
    tls = f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}" }}'
    with Server(sync="2m", auth=False, config=f"{tls}\n{CONFIG}") as running:
        yield running


@pytest.fixture(scope="module")
def ask(guarded: Server, authority: Authority):
    """Run `penstock account` as some user."""

    def run(user: str, *arguments: str) -> Done:
        flags = ("--user", user, "--password", "pw", "--tlsca", str(authority.ca))
        return invoke(f"nats://{guarded.nodes[0].address}", "account", *arguments, *flags)

    return run


def test_info_tells_who_we_are_and_what_we_have(ask):
    """User, account, server, TLS, and JetStream's limits and usage."""
    done = ask("ann", "info")
    assert done.status == 0, done.stderr
    for line in (
        "User: ann\n",
        "Account: APP\n",
        "Expires: never\n",
        "using TLS_",
        "TLS Verified: issuer CN=our authority\n",
        "Memory: 0 B of 95.4 MiB\n",
        "Streams: 0 of 10\n",
        "Consumers: at most 20 per stream\n",
        "API Level: ",
        "Server Version: 2.",
    ):
        assert line in done.stdout
    facts = json.loads(ask("ann", "nfo", "--json").stdout)
    assert (facts["user"]["user"], facts["jetstream"]["limits"]["max_streams"]) == ("ann", 10)
    assert facts["problems"] == {}


def test_info_says_what_it_may_not_know(ask):
    """What is denied, and JetStream that is off, is said in its place; permissions are shown."""
    said = ask("limited", "info").stdout
    assert "Allow: $SYS.REQ.USER.INFO, a.>\n" in said
    assert "Deny: a.b\n" in said
    assert "JetStream: not known: we may not publish to $JS.API.INFO\n" in said
    done = ask("nothing", "info")
    assert done.status == 0
    assert "User: not known: we may not publish to $SYS.REQ.USER.INFO\n" in done.stdout
    assert "JetStream not enabled for account" in ask("bob", "info").stdout


def test_reports_tell_of_our_account_alone(ask, guarded: Server):
    """Connections are filtered, sorted and counted; figures are those of our account."""
    found = json.loads(ask("ann", "report", "connections", "--json").stdout)
    assert [item["authorized_user"] for item in found] == ["ann"]
    assert found[0]["server"]["name"] == guarded.nodes[0].name
    assert json.loads(ask("ann", "report", "conn", "--subject", "nobody.listens", "--json").stdout) == []
    flags = ("--state", "closed", "--sort", "cid", "-R", "--top", "2", "--json")
    ended = json.loads(ask("ann", "report", "conns", *flags).stdout)
    assert [item["cid"] for item in ended] == sorted((item["cid"] for item in ended), reverse=True)
    assert len(ended) == 2
    said = ask("ann", "rep", "connz", "--state", "all", "--closed-reason", "CLIENT closed", "--username", "ann").stdout
    assert "Client Closed" in said
    figures = json.loads(ask("ann", "report", "stats", "--json").stdout)
    assert [(item["acc"], item["server"]["name"]) for item in figures] == [("APP", guarded.nodes[0].name)]


@pytest.mark.parametrize(
    ("user", "arguments", "status", "words"),
    [
        ("nothing", ("report", "statistics"), 1, "does not permit"),
        ("nothing", ("report", "connections"), 1, "does not permit"),
        ("ann", ("report", "connections", "--sort", "x"), 2, "--sort is 'x'"),
        ("ann", ("report", "connections", "--state", "x"), 2, "--state is 'x'"),
        ("ann", ("report", "connections", "--subject", "a..b"), 2, "'a..b'"),
        ("ann", ("report", "connections", "--closed-reason", "("), 2, "is not a regular expression"),
        ("ann", ("tls", "--ocsp"), 2, "OCSP"),
        ("ann", ("tls", "--expire-warn", "soon"), 2, "--expire-warn is 'soon'"),
    ],
)
def test_what_does_not_work_is_one_sentence(ask, user: str, arguments: tuple[str, ...], status: int, words: str):
    """Bad input is told before anything is asked, and what is denied at once."""
    done = ask(user, *arguments)
    assert (done.status, done.stdout) == (status, ""), done
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_tls_shows_the_chain(ask, authority: Authority, server: Server):
    """The server's certificate and the authority above it, as PEM; status 1 if one ends soon, or there is no TLS."""
    done = ask("ann", "tls", "--expire-warn", "1h")
    assert done.status == 0, done.stderr
    assert "certificate 1: CN=server\n" in done.stdout
    assert "certificate 2: CN=our authority\n" in done.stdout
    assert "SAN DNS: localhost\n" in done.stdout
    assert authority.ca.read_text() in done.stdout
    done = ask("ann", "tls", "--no-pem")
    assert (done.status, "BEGIN" in done.stdout) == (1, False)
    assert "ends within 1w: CN=server, CN=our authority" in done.stderr
    done = invoke(server.url, "account", "tls")
    assert (done.status, "has no TLS" in done.stderr) == (1, True)


def test_no_jwt_is_shown(tmp_path):
    """Servers tell the JWTs of connections, and the JWT of a bearer is a login: ours are not in a report."""
    operator = Operator()
    (tmp_path / "x.creds").write_text(operator.credentials())
    with Server(sync="2m", auth=False, config=operator.config()) as server:
        creds = str(tmp_path / "x.creds")
        done = invoke(server.url, "account", "report", "connections", "--json", "--creds", creds)
    assert done.status == 0, done.stderr
    assert json.loads(done.stdout)[0]["account"] == operator.account.public
    assert "eyJ" not in done.stdout
