"""Checks of servers, connections, services, accounts and credentials, over what was answered. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.durations import format_duration
from penstock.errors import InputError
from penstock.system.fields import fields, figure, moment, rows, seconds, switch, word
from penstock.system.result import CheckResult, judge

__all__ = [
    "AccountLevels",
    "CredentialLevels",
    "MetaLevels",
    "RequestLevels",
    "ServerLevels",
    "check_account",
    "check_credential",
    "check_meta",
    "check_request",
    "check_server",
    "check_time",
]


def _span(value: float) -> str:
    return format_duration(round(value, 6))


def check_time(result: CheckResult, gauge: str, value: float, warning: float, critical: float, what: str) -> None:
    """Check how long something took; a level of 0 is none."""
    result.measure(gauge, value, f"Seconds that the {what} took", warning=warning, critical=critical, unit="s")
    level = "CRITICAL" if 0 < critical <= value else "WARNING" if 0 < warning <= value else "OK"
    result.say(level, f"{what} {_span(value)}")


# -- servers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerLevels:
    """What a server must be; None if nothing is asked."""

    cpu_warn: int | None = None
    cpu_critical: int | None = None
    mem_warn: int | None = None
    mem_critical: int | None = None
    conn_warn: int | None = None
    conn_critical: int | None = None
    subs_warn: int | None = None
    subs_critical: int | None = None
    uptime_warn: float | None = None
    uptime_critical: float | None = None
    auth_required: bool = False
    tls_required: bool = False
    js_required: bool = False
    tls_cert_warn: float | None = None
    tls_cert_crit: float | None = None

    def __post_init__(self) -> None:
        for name in ("cpu", "mem"):
            warning, critical = getattr(self, f"{name}_warn"), getattr(self, f"{name}_critical")
            if warning and critical and critical < warning:
                what = f"--{name}-critical is {critical}, which is less than --{name}-warn."
                raise InputError(what, remedy="Give the larger one as critical.")
        if self.uptime_warn and self.uptime_critical and self.uptime_critical > self.uptime_warn:
            what = "--uptime-critical is longer than --uptime-warn."
            raise InputError(what, remedy="A short time up is critical: give the shorter one as critical.")


def check_server(result: CheckResult, varz: Mapping[str, Any], levels: ServerLevels) -> None:
    """Check one server, over what it says of itself."""
    required = (
        (levels.js_required, bool(fields(varz, "jetstream", "config")), "JetStream on", "JetStream off"),
        (levels.tls_required, switch(varz, "tls_required"), "TLS required", "TLS not required"),
        (levels.auth_required, switch(varz, "auth_required"), "login required", "login not required"),
    )
    for asked, is_so, right, wrong in required:
        if asked:
            result.say("OK" if is_so else "CRITICAL", right if is_so else wrong)
    now, started = moment(varz, "now"), moment(varz, "start")
    if levels.tls_cert_warn or levels.tls_cert_crit:
        _check_certificates(result, varz, now, levels)
    up = (now - started).total_seconds() if now and started else 0.0
    if levels.uptime_warn or levels.uptime_critical:
        short = up <= (levels.uptime_critical or -1), up <= (levels.uptime_warn or -1)
        result.say("CRITICAL" if short[0] else "WARNING" if short[1] else "OK", f"up {format_duration(round(up, 1))}")
    result.measure(
        "uptime",
        up,
        "Seconds since the server was started",
        warning=levels.uptime_warn or 0,
        critical=levels.uptime_critical or 0,
        unit="s",
    )
    counted = (
        ("cpu", "CPU", figure(varz, "cpu"), levels.cpu_warn, levels.cpu_critical, "CPU in percent"),
        ("mem", "bytes of memory", figure(varz, "mem"), levels.mem_warn, levels.mem_critical, "Memory in bytes"),
        ("connections", "connections", figure(varz, "connections"), levels.conn_warn, levels.conn_critical, "Clients"),
        (
            "subscriptions",
            "subscriptions",
            figure(varz, "subscriptions"),
            levels.subs_warn,
            levels.subs_critical,
            "Subscriptions",
        ),
    )
    for name, _, value, warning, critical, help in counted:
        unit = "%" if name == "cpu" else ""
        result.measure(name, value, help, warning=warning or 0, critical=critical or 0, unit=unit)
    for name, what, value, warning, critical, _ in counted:
        if not warning and not critical:
            continue
        if name in ("cpu", "mem"):  # these have no lower bound
            level = (
                "CRITICAL" if critical and value >= critical else "WARNING" if warning and value >= warning else "OK"
            )
        else:
            level = judge(value, warning or None, critical or None)
        result.say(level, f"{value:g}% {what}" if name == "cpu" else f"{value:,} {what}")


def _check_certificates(
    result: CheckResult, varz: Mapping[str, Any], now: datetime | None, levels: ServerLevels
) -> None:
    places = [
        ("server", moment(varz, "tls_cert_not_after")),
        *(
            (name, moment(varz, name, "tls_cert_not_after"))
            for name in ("cluster", "gateway", "leaf", "mqtt", "websocket")
        ),
    ]
    ends = [(name, end) for name, end in places if end is not None]
    if not ends or now is None:
        result.critical("the server has no TLS certificate")
        return
    for name, end in ends:
        left = (end - now).total_seconds()
        text = f"{name} certificate until {end:%Y-%m-%d %H:%M}"
        if left <= 0:
            result.critical(f"{name} certificate expired {end:%Y-%m-%d %H:%M}")
        elif levels.tls_cert_crit and left <= levels.tls_cert_crit:
            result.critical(text)
        else:
            result.say("WARNING" if levels.tls_cert_warn and left <= levels.tls_cert_warn else "OK", text)


@dataclass(frozen=True)
class MetaLevels:
    """What the group of servers that lead JetStream must be."""

    expect: int
    lag_critical: int
    seen_critical: float


def check_meta(result: CheckResult, jsz: Mapping[str, Any], levels: MetaLevels) -> None:
    """Check the group that leads JetStream in a cluster, over what its leader says."""
    meta = fields(jsz, "meta_cluster")
    if not meta:
        result.critical("JetStream is not clustered")
        return
    if not word(meta, "leader"):
        result.critical("there is no leader")
        return
    others = rows(meta, "replicas")
    peers = len(others) + 1
    result.measure("peers", peers, "Servers of the group", warning=levels.expect, critical=levels.expect)
    if levels.expect > 0 and peers != levels.expect:
        result.critical(f"{peers} peers, and not {levels.expect}")
    wrong = {
        "offline": [item for item in others if switch(item, "offline")],
        "not_current": [item for item in others if not switch(item, "current")],
        "inactive": [item for item in others if 0 < levels.seen_critical < seconds(item, "active")],
        "lagged": [item for item in others if 0 < levels.lag_critical < figure(item, "lag")],
    }
    words = {
        "offline": "offline",
        "not_current": "not up to date",
        "inactive": f"not seen for more than {_span(levels.seen_critical)}",
        "lagged": f"more than {levels.lag_critical:,} operations behind",
    }
    for name, found in wrong.items():
        result.measure(f"peer_{name}", len(found), f"Peers that are {words[name]}")
        if found:
            result.critical(f"{words[name]}: {', '.join(word(item, 'name') for item in found)}")
    if result.status == "OK":
        result.ok(f"{peers} peers, led by {word(meta, 'leader')}")


# -- accounts and services -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AccountLevels:
    """How much of its limits an account may use, in percent; below zero for no level."""

    mem_warn: int = 75
    mem_critical: int = 90
    store_warn: int = 75
    store_critical: int = 90
    streams_warn: int = -1
    streams_critical: int = -1
    consumers_warn: int = -1
    consumers_critical: int = -1

    def __post_init__(self) -> None:
        for name in ("mem", "store", "streams", "consumers"):
            warning, critical = getattr(self, f"{name}_warn"), getattr(self, f"{name}_critical")
            if -1 not in (warning, critical) and warning >= critical:
                what = f"--{name}-critical is {critical}, which is not more than --{name}-warn, {warning}."
                raise InputError(what, remedy="Give the larger one as critical.")


def check_account(result: CheckResult, info: Mapping[str, Any], levels: AccountLevels) -> None:
    """Check what an account uses of its JetStream limits; what has no limit is never too much."""
    used = (
        ("memory", "memory", "max_memory", "B", levels.mem_warn, levels.mem_critical),
        ("storage", "storage", "max_storage", "B", levels.store_warn, levels.store_critical),
        ("streams", "streams", "max_streams", "", levels.streams_warn, levels.streams_critical),
        ("consumers", "consumers", "max_consumers", "", levels.consumers_warn, levels.consumers_critical),
    )
    for name, key, limit, unit, warning, critical in used:
        value, most = figure(info, key), figure(info, "limits", limit)
        percent = int(value / most * 100) if most > 0 else 0
        result.measure(name, value, f"JetStream {name} in use", unit=unit)
        help = f"JetStream {name} in use, in percent of the limit"
        result.measure(f"{name}_pct", percent, help, unit="%", warning=warning, critical=critical)
        if percent > 100:
            result.critical(f"{name} is above its limit")
        elif 0 <= critical < percent:
            result.critical(f"{percent}% of {name}")
        elif 0 <= warning < percent:
            result.warn(f"{percent}% of {name}")


@dataclass(frozen=True)
class RequestLevels:
    """What the answer of a service must be: its time in seconds, a pattern in its body, and headers."""

    response_warn: float = 0.0
    response_critical: float = 0.0
    match_payload: str = ""
    match_headers: tuple[tuple[str, str], ...] = ()


def check_request(
    result: CheckResult, took: float, data: bytes, headers: Mapping[str, Sequence[str]], levels: RequestLevels
) -> None:
    """Check an answer, and how long it took."""
    if levels.match_payload and not re.search(levels.match_payload.encode(), data):
        result.critical(f"the answer does not match {levels.match_payload}")
    for name, wanted in levels.match_headers:
        found = list(headers.get(name) or ())
        if wanted not in found:
            result.critical(f"the header {name} is {', '.join(found) or 'not there'}, and not {wanted}")
    if 0 < levels.response_critical < took:
        result.critical(f"the answer took {_span(took)}")
    elif 0 < levels.response_warn < took:
        result.warn(f"the answer took {_span(took)}")
    if result.status == "OK":
        result.ok(f"answered in {_span(took)}")


@dataclass(frozen=True)
class CredentialLevels:
    """How long a credential must be valid, in seconds, and whether it must end at all."""

    validity_warn: float = 0.0
    validity_critical: float = 0.0
    require_expiry: bool = True


def check_credential(result: CheckResult, expires: int, levels: CredentialLevels, now: float) -> None:
    """Check when a credential ends; `expires` is the Unix time of its end, 0 for never."""
    left = expires - now if expires else 0.0
    about = {"warning": levels.validity_warn, "critical": levels.validity_critical}
    result.measure("expiry", round(left), "Seconds until the credential expires", unit="s", **about)
    if not expires:
        result.say("CRITICAL" if levels.require_expiry else "OK", "never expires")
    elif left <= 0:
        result.critical(f"expired {format_duration(round(-left))} ago")
    else:
        short = left <= levels.validity_critical, left <= levels.validity_warn
        level = "CRITICAL" if short[0] else "WARNING" if short[1] else "OK"
        result.say(level, f"expires in {format_duration(round(left))}")
