"""What to start for a command line of the old server: a gateway, and the NATS server that it stands on."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.channels.limits import PAYLOAD, ChannelLimits, Limits
from penstock.channels.old_settings import OldSettings, read_settings
from penstock.conf_file import write_conf
from penstock.errors import InputError, OptionError

__all__ = ["OldServer", "plan_old_server"]

KEY_VARIABLE = "NATS_STREAMING_ENCRYPTION_KEY"
_ACCOUNTS = ("accounts", "operator", "resolver", "trusted_keys", "trusted")
_LOGINS = ("authorization", *_ACCOUNTS)
_HOST = "0.0.0.0"  # noqa: S104  # what the old server does, and here only with a login
_NOW_AND_THEN = "2m"  # between two syncs of a server that leaves it to the gateway
_CIPHERS = {"": "aes", "AES": "aes", "CHACHA": "chacha"}
_ALONE = (
    "Servers that share a cluster need a NATS that outlives each of them: run it by itself, with JetStream, and give "
    "its addresses, -ns nats://a:4222,nats://b:4222,nats://c:4222."
)


@dataclass(frozen=True, repr=False)
class OldServer:
    """What a command line of the old server asks for. It holds secrets, and shows none."""

    gateway: dict[str, Any]
    """Options of `Gateway`."""
    url: str | None
    """The NATS server to use; None for an embedded one."""
    server: dict[str, Any]
    """Options of the embedded `Server`."""
    login: dict[str, Any]
    """How the gateway connects: options of `ConnectionOptions` beside the URL."""
    pid_file: Path | None
    notes: tuple[str, ...]
    """What has no effect, or is different here; a sentence each, to be told."""
    syncs: bool = False
    """Whether the gateway syncs what the embedded server stored, once for all that waits, as the old server did."""
    asks: str = ""
    """`version` or `help`, if that was all that was wanted."""


def plan_old_server(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> OldServer:
    """Read a command line of the old server; OptionError or InputError for what cannot be done, before any of it is."""
    variables = os.environ if environment is None else environment
    settings = read_settings(arguments, variables)
    given = settings.given
    for name in ("version", "help", "help_tls"):
        if given.pop(name, False):
            return OldServer({}, None, {}, {}, None, (), asks="version" if name == "version" else "help")
    host, port = _listening(given)
    login, config = _security(given, settings.server)
    url = given.pop("nats_server", None) or None
    if url is None:
        server = _embedded(given, settings, config, login.get("user", ""), host, port, variables)
        page_host = server["host"]
    else:
        server = {}
        _external(given, settings, port, config)
        page_host = host or _HOST
        login = login if "@" not in url else {name: login[name] for name in login if name.startswith("tls_")}
    pid = given.pop("pid", None)
    monitor = _monitor(given, page_host)
    gateway = {**_gateway(given, settings), "monitor": monitor}
    assert not given, f"nobody looked at {', '.join(given)}"
    # Only of the one account that a server has by itself it is known where its streams are.
    syncs = server.get("sync") == "always" and not any(name in config for name in _ACCOUNTS)
    server |= {"sync": _NOW_AND_THEN} if syncs else {}
    return OldServer(gateway, url, server, login, Path(pid) if pid else None, tuple(settings.notes), syncs)


def _gateway(given: dict[str, Any], settings: OldSettings) -> dict[str, Any]:
    names = ("max_msgs", "max_bytes", "max_age", "max_subs", "max_inactivity")
    default = ChannelLimits(**{name: given.pop(name) for name in names if name in given})
    limits = Limits(given.pop("max_channels", Limits.channels), default, tuple(settings.channels))
    same = ("cluster_id", "discover_prefix", "hb_interval", "hb_timeout", "hb_fail_count", "replace_durable")
    options = {name: given.pop(name) for name in same if name in given}
    peers = given.pop("cluster_peers", None)
    options["limits"] = limits
    if given.pop("clustered", False):
        listed = [name for name in peers.split(",") if name] if isinstance(peers, str) else list(peers or ())
        options |= {"standby": True, "replicas": 5 if len(listed) > 3 else 3}
        settings.notes.append(
            f"Clustered: this gateway stands by if another one serves, and each stream is kept {options['replicas']} "
            "times, which needs as many NATS servers with JetStream."
        )
    if given.pop("ft_group", ""):
        options["standby"] = True
        settings.notes.append("ft_group: this gateway stands by if another one serves the cluster id.")
    return options


# -- the NATS server ---------------------------------------------------------------------------------------------------


def _listening(given: dict[str, Any]) -> tuple[str | None, int]:
    """Give the address that was asked for, None for none, and the port."""
    listen = str(given.pop("listen", ""))
    host, _, port = listen.rpartition(":") if ":" in listen else ("", "", listen)
    host = str(given.pop("addr", "") or host).strip("[]")
    number = given.pop("port", None) or port or 4222
    try:
        wanted = int(number)
    except ValueError:
        raise InputError(f"listen has the port {number!r}.", remedy="Write listen: host:port.") from None
    return host or None, max(wanted, 0)


def _monitor(given: dict[str, Any], host: str) -> str | None:
    """Give where the monitoring pages are to be."""
    http = str(given.pop("http", ""))
    number = given.pop("http_port", None)
    named, _, port = http.rpartition(":")
    host = named.strip("[]") or host
    try:
        wanted = int(number or port or 0)
    except ValueError:
        raise InputError("http has no port.", remedy="Write http: host:port.") from None
    if not wanted:
        return None
    host = "127.0.0.1" if host == "localhost" else host
    return f"{f'[{host}]' if ':' in host else host}:{max(wanted, 0)}"


def _security(given: dict[str, Any], server: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give how the gateway logs in, and what the embedded server is to be told, from flags and files."""
    config = dict(server)
    user, password, token = (given.pop(name, "") or "" for name in ("user", "pass", "auth"))
    if user or password or token:
        config["authorization"] = {"token": token} if token else {"user": user, "password": password}
    block = config.get("authorization")
    said = block if isinstance(block, dict) else {}
    login = {
        "user": said.get("user") or said.get("username") or given.pop("nats_user", None),
        "password": said.get("password") or said.get("pass") or given.pop("nats_password", None),
        "token": said.get("token") or given.pop("nats_token", None),
        "nkey": given.pop("nats_nkey", None),
        "credentials": given.pop("credentials", None),
        "tls_ca": given.pop("tls_client_cacert", None),
        "tls_cert": given.pop("tls_client_cert", None),
        "tls_key": given.pop("tls_client_key", None),
        "tls_hostname": given.pop("tls_server_name", None),
    }
    for name in ("nats_user", "nats_password", "nats_token"):
        given.pop(name, None)  # the embedded server's own login counts more
    for name in ("tls_ca", "tls_cert", "tls_key", "credentials"):
        if login[name] and not os.access(login[name], os.R_OK):
            raise InputError(f"The file {login[name]}, for {name}, cannot be read.", remedy="Check the path.")
    _server_tls(given, config)
    return {name: value for name, value in login.items() if value}, config


def _server_tls(given: dict[str, Any], config: dict[str, Any]) -> None:
    names = {"tlscert": "cert_file", "tlskey": "key_file", "tlscacert": "ca_file", "tlsverify": "verify"}
    flags = {key: given.pop(name) for name, key in names.items() if given.get(name)}
    wanted = given.pop("tls", False) or flags
    for name in names:
        given.pop(name, None)
    if wanted:
        known = config.get("tls")
        config["tls"] = {**(known if isinstance(known, dict) else {}), **flags}
    block = config.get("tls")
    if block is None:
        return
    if not isinstance(block, dict) or not block.get("cert_file") or not block.get("key_file"):
        raise InputError("TLS is on without a certificate and its key.", remedy="Give -tlscert and -tlskey.")
    for name, value in block.items():
        if name.endswith("_file"):
            if not os.access(str(value), os.R_OK):
                raise InputError(f"The file {value}, for tls {name}, cannot be read.", remedy="Check the path.")
            block[name] = str(Path(str(value)).absolute())


def _embedded(
    given: dict[str, Any],
    settings: OldSettings,
    config: dict[str, Any],
    user: str,
    host: str | None,
    port: int,
    variables: Mapping[str, str],
) -> dict[str, Any]:
    """Give the options of the embedded server."""
    for name, shown in (("ft_group", "-ft_group"), ("clustered", "-clustered")):
        if given.get(name):
            raise OptionError(f"{shown} cannot be used with an embedded server.", remedy=_ALONE, option=shown)
    kind = str(given.pop("store", "MEMORY") or "MEMORY").upper()
    folder = given.pop("dir", "") or ""
    sync = given.pop("file_sync", True)
    pause = given.pop("file_auto_sync", 60.0)
    if kind not in ("MEMORY", "FILE"):
        remedy = "Use FILE with -dir DIR, or MEMORY. What an SQL store holds comes over with `channels migrate`."
        raise OptionError(f"The store {kind} cannot be used here.", remedy=remedy, option="-store")
    if kind == "FILE" and not folder:
        raise OptionError("The store FILE needs a folder.", remedy="Give -dir DIR.", option="-dir")
    if kind == "FILE" and (Path(folder) / "server.dat").exists():
        raise InputError(
            f"{folder} holds the channels of a NATS Streaming server, which JetStream does not read.",
            remedy=f"Bring them over, `penstock channels migrate --from-store {folder} --store NEW`; give -dir NEW.",
        )
    if kind == "MEMORY" and folder:
        settings.notes.append("-dir has no effect: the store is MEMORY, which goes with the process.")
    _encrypt(given, config, variables)
    if user:
        _enable_jetstream(config, user, settings)
    safe = any(name in config for name in _LOGINS) or bool(dict(config.get("tls") or {}).get("verify"))
    if host is None and not safe:
        settings.notes.append(
            "No login is asked for, so only this machine is let in: -a ADDRESS lets others in, too, and -user and "
            "-pass, or -auth, keep strangers out."
        )
    elif not safe and not _is_here(host or _HOST):
        settings.notes.append(f"Anybody who reaches {host} may use the server: -user and -pass, or -auth, change that.")
    return {
        "store": Path(folder) if kind == "FILE" else None,
        "host": host or (_HOST if safe else "127.0.0.1"),
        "port": port,
        "sync": "always" if kind == "FILE" and sync else f"{max(pause, 1.0) if pause > 0 else 120.0:g}s",
        "max_payload": None if "max_payload" in config else PAYLOAD,
        "auth": False,
        # A word of configuration tells the embedded server that whoever wrote it decided on the logins.
        "config": write_conf(config) or "# as the old server",
    }


def _enable_jetstream(config: dict[str, Any], user: str, settings: OldSettings) -> None:
    """Let the account of the gateway's user store messages, which the old server did by itself."""
    accounts = config.get("accounts")
    for name, account in accounts.items() if isinstance(accounts, dict) else ():
        users = account.get("users") if isinstance(account, dict) else None
        known = {item.get("user") or item.get("username") for item in users or () if isinstance(item, dict)}
        if user in known and "jetstream" not in account:
            account["jetstream"] = "enabled"
            settings.notes.append(f"The account {name} keeps the channels: JetStream is on for it.")


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _encrypt(given: dict[str, Any], config: dict[str, Any], variables: Mapping[str, str]) -> None:
    said, cipher = given.pop("encryption_key", ""), str(given.pop("encryption_cipher", "")).upper()
    wanted = given.pop("encrypt", False) or bool(said)
    key = variables.get(KEY_VARIABLE) or said
    if not wanted:
        return
    if cipher not in _CIPHERS:
        raise OptionError(
            "-encryption_cipher is neither AES nor CHACHA.", remedy="Use one of them.", option="-encryption_cipher"
        )
    if not key:
        raise OptionError("Encryption needs a key.", remedy=f"Put it into {KEY_VARIABLE}.", option="-encryption_key")
    config["jetstream"] = {"cipher": _CIPHERS[cipher], "key": key}


def _external(given: dict[str, Any], settings: OldSettings, port: int, config: dict[str, Any]) -> None:
    """Tell what has no effect, or cannot be, when the NATS server is another one."""
    if given.pop("encrypt", False) or given.pop("encryption_key", ""):
        remedy = "Let the NATS server encrypt what it stores: jetstream { key: ..., cipher: aes }."
        raise OptionError("-encrypt cannot be used with -ns.", remedy=remedy, option="-encrypt")
    given.pop("encryption_cipher", None)
    if str(given.get("store", "")).upper() == "SQL":
        raise OptionError("The store SQL cannot be used here.", remedy="Leave -store out.", option="-store")
    told = {"store": "-store", "dir": "-dir", "file_sync": "-file_sync", "file_auto_sync": "-file_auto_sync"}
    found = [shown for name, shown in told.items() if given.pop(name, None) is not None]
    if found:
        settings.notes.append(
            f"{', '.join(found)}: no effect, as the JetStream of the other server keeps the messages."
        )
    left = [name for name in config if name != "authorization"] + (["port"] if port != 4222 else [])
    if left:
        settings.notes.append(f"{', '.join(left)}: no effect, as the NATS server is another one.")
