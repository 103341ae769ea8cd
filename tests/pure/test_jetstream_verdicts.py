"""One table of verdicts: it holds every error code of the server, and decides as the server means it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock import errors
from penstock.errors import (
    DeadlineError,
    DeniedError,
    DisconnectedError,
    InputError,
    JetStreamError,
    LinkError,
    LocalProtocolError,
    LoginError,
    NoRespondersError,
    NotFoundError,
    PenstockError,
    RemoteProtocolError,
    TlsError,
    UnreachableError,
)
from penstock.wire.jetstream.verdicts import (
    Verdict,
    error_codes,
    judge,
    judge_code,
    may_ask_again,
)

STORED, REFUSED, PASSING, UNKNOWN = Verdict.STORED, Verdict.REFUSED, Verdict.PASSING, Verdict.UNKNOWN
# What nats-server 2.15 knows: 10002 to 10227 without a gap.
KNOWN = range(10002, 10228)
PASSES = {
    10004, 10008, 10009, 10023, 10035, 10096, 10118, 10119, 10124, 10158, 10163, 10167, 10176, 10180, 10202, 10208,
    10210, 10211, 10226,
}  # fmt: skip


# -- the table -------------------------------------------------------------------------------------------------------


def test_the_table_is_whole():
    """Every error code of nats-server 2.15 stands in the table, and nothing else."""
    assert list(error_codes()) == list(KNOWN)


@pytest.mark.parametrize("number", KNOWN)
def test_every_code_is_judged(number: int):
    """Every code has an HTTP code, a name of its own, and the verdict that was decided for it."""
    entry = error_codes()[number]
    assert entry.err_code == number
    assert entry.code in (400, 404, 409, 412, 429, 500, 503)
    assert entry.constant.startswith("JS")
    assert [other.constant for other in error_codes().values()].count(entry.constant) == 1
    assert entry.verdict is (PASSING if number in PASSES else UNKNOWN if number == 10063 else REFUSED)
    assert judge_code(entry.code, number) is entry.verdict


def test_what_http_would_not_say_has_a_reason():
    """Where the verdict is not what the HTTP code suggests, and where it depends on the text, a word says why."""
    for entry in error_codes().values():
        suggested = PASSING if entry.code in (429, 503) else REFUSED
        if entry.verdict is not suggested or entry.verdict is PASSING or entry.then or entry.code >= 500:
            assert entry.why, f"{entry.err_code} {entry.constant} is {entry.verdict.value} without a reason"
        assert bool(entry.says) == (entry.then is not None), entry.err_code
        assert entry.says == entry.says.lower(), f"{entry.err_code}: texts are compared in small letters"


def test_the_table_costs_nothing_until_it_is_needed():
    """Importing the verdicts does not read the table; a command that meets no error never does."""
    code = (
        "from penstock.wire.jetstream import verdicts as v;"
        "assert v.error_codes.cache_info().currsize == 0;"
        "v.judge_code(503, 10008);"
        "assert v.error_codes.cache_info().currsize == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# -- single decisions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "err_code", "description", "verdict"),
    [
        pytest.param(503, 10008, "JetStream system temporarily unavailable", PASSING, id="no leader"),
        pytest.param(500, 10009, "JetStream cluster can not handle request", PASSING, id="not the leader"),
        pytest.param(503, 10023, "insufficient resources", PASSING, id="over its limits just now"),
        pytest.param(409, 10158, "duplicate message id is in process", PASSING, id="the same id on its way"),
        pytest.param(429, 10167, "too many requests", PASSING, id="too many"),
        pytest.param(400, 10176, "atomic publish batch is incomplete", PASSING, id="a leader changed"),
        pytest.param(500, 10118, "stream is offline", PASSING, id="all nodes away"),
        pytest.param(500, 10194, "stream is offline: unsupported - config error", REFUSED, id="too old a server"),
        pytest.param(503, 10077, "maximum messages exceeded", REFUSED, id="a full stream"),
        pytest.param(503, 10077, "maximum bytes exceeded", REFUSED, id="a full stream in bytes"),
        pytest.param(503, 10077, "store is closed", UNKNOWN, id="a server that stops"),
        pytest.param(503, 10063, "expected stream sequence does not match", UNKNOWN, id="a replica out of step"),
        pytest.param(503, 10039, "JetStream not enabled for account", REFUSED, id="no JetStream for the account"),
        pytest.param(503, 10076, "JetStream not enabled", REFUSED, id="no JetStream"),
        pytest.param(400, 10005, "no suitable peers for placement, peer offline", PASSING, id="a peer is away"),
        pytest.param(400, 10005, "no suitable peers for placement, Peer OFFLINE", PASSING, id="in any case"),
        pytest.param(400, 10005, "no suitable peers for placement, insufficient storage", REFUSED, id="no peer fits"),
        pytest.param(400, 10071, "wrong last sequence: 7", REFUSED, id="a condition"),
        pytest.param(400, 10164, "wrong last sequence", REFUSED, id="a condition in doubt"),
        pytest.param(404, 10059, "stream not found", REFUSED, id="not found"),
        pytest.param(503, 60001, "a new thing", PASSING, id="unknown 503"),
        pytest.param(429, 60001, "a new thing", PASSING, id="unknown 429"),
        pytest.param(500, 60001, "a new thing", REFUSED, id="unknown 500"),
        pytest.param(400, 60001, "a new thing", REFUSED, id="unknown 400"),
        pytest.param(503, None, "no stream takes this subject", PASSING, id="503 alone"),
        pytest.param(503, 0, "", PASSING, id="503 with no code"),
        pytest.param(429, None, "", PASSING, id="429 alone"),
        pytest.param(500, None, "", REFUSED, id="500 alone"),
        pytest.param(None, None, None, REFUSED, id="nothing at all"),
        pytest.param(None, 10008, None, PASSING, id="only the exact code"),
    ],
)
def test_decisions(code: int | None, err_code: int | None, description: str | None, verdict: Verdict):
    """The exact code decides; the text only where the code covers two cases; HTTP's only for a code we do not know."""
    assert judge_code(code, err_code, description) is verdict
    error = JetStreamError("x", code=code, err_code=err_code, description=description)
    assert judge(error) is verdict
    assert may_ask_again(error) is (verdict in (PASSING, UNKNOWN))


# -- errors that are no answers --------------------------------------------------------------------------------------

KINDS = [
    (NoRespondersError, PASSING),
    (DeadlineError, UNKNOWN),
    (DisconnectedError, UNKNOWN),
    (LinkError, UNKNOWN),
    (UnreachableError, PASSING),
    (LoginError, REFUSED),
    (DeniedError, REFUSED),
    (TlsError, REFUSED),
    (LocalProtocolError, REFUSED),
    (RemoteProtocolError, REFUSED),
    (InputError, REFUSED),
    (JetStreamError, REFUSED),
    (NotFoundError, REFUSED),
]


@pytest.mark.parametrize(("kind", "verdict"), KINDS, ids=lambda item: getattr(item, "__name__", None))
def test_errors_without_an_answer(kind: type[PenstockError], verdict: Verdict):
    """No answer leaves a doubt, nobody there leaves none, and what was refused stays refused."""
    assert judge(kind("It broke.")) is verdict


def test_every_error_has_a_verdict():
    """Each error of the tree gets a verdict, and those that are not named above are refusals."""
    named = {kind for kind, _ in KINDS}
    for name in errors.__all__:
        kind = getattr(errors, name)
        if kind not in named:
            assert judge(kind("It broke.")) is REFUSED, name


def test_strangers_are_refusals():
    """An error that is none of ours, a cancellation too, is never a reason to try again."""
    for stranger in (ValueError("x"), OSError("x"), KeyboardInterrupt()):
        assert judge(stranger) is REFUSED
        assert not may_ask_again(stranger)
