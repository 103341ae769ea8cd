"""Everything that a connection to NATS needs, as one frozen value.

`ConnectionOptions` is pure: it checks what it is given and touches no file and no socket. It survives
pickling, so that Spark can carry it to executors, and it masks its secrets wherever it is shown. Files that
it names are read by `penstock.credentials`, at the moment of connecting.

A URL may carry a token (`nats://TOKEN@host`) or a user (`nats://user:password@host`). They are lifted out of
the URL into their own fields, so that an address is always safe to print.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from penstock.errors import OptionError

# `SocksProxy`, `is_hidden`, `is_jwt`, `is_seed` and `is_text` are for our own modules.
__all__ = ["DEFAULT_URL", "ConnectionOptions", "mask_url"]

DEFAULT_URL = "nats://127.0.0.1:4222"
"""Where a program connects to that names no server."""
MASK = "***"
_PORTS = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
_SEED = re.compile(r"S[A-Z2-7]{57}")
# What a key looks like once its BEGIN line is lost, or in the middle of a text: a path seldom looks so.
_KEY_MATERIAL = re.compile(r"[\r\n]|eyJ|[A-Za-z0-9+=_-]{40,}")
_JWT = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]+")
_LOOSE_SECRETS = re.compile(r"\bS[UANOCX][A-Z2-7]{56}\b|\beyJ[\w-]+\.[\w-]+\.[\w-]+")
_SUBJECT_PREFIX = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")


def is_text(value: str) -> bool:
    """Tell PEM or credentials text from the path of a file that holds it."""
    return "-----BEGIN" in value


def is_seed(value: str) -> bool:
    """Tell an nkey seed from the path of a file that holds one."""
    return _SEED.fullmatch(value.strip()) is not None


def is_jwt(value: str) -> bool:
    """Tell a JWT from the path of a file that holds one."""
    return _JWT.fullmatch(value.strip()) is not None


def mask_url(text: str) -> str:
    """Replace the user information of every URL in a text by asterisks.

    A password may hold any character if somebody forgot to quote it, so all of a URL up to its last @ is hidden.
    """
    return re.sub(r"(?<=://)(?:(?!,\w+://)\S)*@", f"{MASK}@", text)


def is_hidden(value: str) -> bool:
    """Tell a secret, or what looks like a mangled one, from the path of a file that may be shown."""
    return is_text(value) or is_seed(value) or _KEY_MATERIAL.search(value) is not None


# Secrets that may be given as the path of a file, which is none.
_FILES = ("nkey", "jwt", "credentials", "tls_key")


def _secret(default: str | None = None) -> Any:
    return field(default=default, metadata={"secret": True})


@dataclass(frozen=True, repr=False)
class ConnectionOptions:
    """How to reach NATS, and as whom. Every field is checked here, before anything is opened."""

    url: str = DEFAULT_URL
    """One address or several, separated by commas; `nats://`, `tls://`, `ws://` or `wss://`, `nats://` if
    none is written. A token or a user in it is lifted into the fields below. Several addresses are tried in
    random order."""
    name: str = "penstock"
    """The name under which the server lists this connection."""
    token: str | None = _secret()
    """A shared token."""
    user: str | None = None
    """A user name; needs `password`."""
    password: str | None = _secret()
    """The password of `user`."""
    nkey: str | None = _secret()
    """An nkey seed, or the path of a file that holds one."""
    jwt: str | None = _secret()
    """A user JWT, or the path of a file that holds one; signed with the seed in `nkey`, which a bearer JWT does
    without."""
    credentials: str | None = _secret()
    """User credentials (a JWT and its seed): the text of a `.creds` file, or its path."""
    tls_ca: str | None = None
    """The certificates to trust, PEM text or the path of a file; the system's if nothing is given."""
    tls_cert: str | None = None
    """Our own certificate for mutual TLS, PEM text or a path; needs `tls_key`."""
    tls_key: str | None = _secret()
    """The private key of `tls_cert`, PEM text or a path."""
    tls_first: bool = False
    """Shake hands before the server speaks, for servers configured with `handshake_first`."""
    tls_hostname: str | None = None
    """The name that the server's certificate must carry, if it differs from the address."""
    socks_proxy: str | None = _secret()
    """A SOCKS5 proxy that every connection goes through: `socks5://host:port`, with `user:password@` if it wants
    a login. The proxy looks up host names."""
    domain: str | None = None
    """The JetStream domain; mutually exclusive with `api_prefix`."""
    api_prefix: str | None = None
    """The subject prefix of the JetStream API, `$JS.API` if nothing is given."""
    event_prefix: str | None = None
    """The subject prefix of JetStream's advisories and metrics, `$JS.EVENT` if nothing is given."""
    inbox_prefix: str = "_INBOX"
    """The first tokens of every reply subject; change it if permissions ask for it."""
    connect_timeout: float = 5.0
    """Seconds until a first connection must stand, all addresses tried together."""
    request_timeout: float = 5.0
    """Seconds to wait for an answer if the caller says nothing else."""
    reconnect: bool = True
    """Whether a lost connection is made again."""
    reconnect_wait: float = 1.0
    """Seconds between two attempts at the same address."""
    reconnect_attempts: int = 600
    """How often each address is tried before the connection is given up; -1 for ever."""
    keep_order: bool = False
    """Whether several addresses are tried in the order in which they were given, not in random order."""
    no_echo: bool = False
    """Whether the server leaves out of a connection's subscriptions what the same connection publishes."""
    ping_interval: float = 20.0
    """Seconds between pings that find out whether the server is still there; two unanswered ones end the connection."""

    def __post_init__(self) -> None:
        self._check_kinds()
        self._lift_urls()
        self._check_login()
        self._check_tls()
        self._check_proxy()
        self._check_prefixes()
        self._check_numbers()

    # -- reading ---------------------------------------------------------------------------------------------

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses, without any secret, each with its scheme and port."""
        return tuple(self.url.split(","))

    @property
    def tls(self) -> bool:
        """Whether this connection insists on TLS."""
        secure = any(url.startswith(("tls://", "wss://")) for url in self.urls)
        return secure or self.tls_first or bool(self.tls_ca or self.tls_cert)

    @property
    def js_prefix(self) -> str:
        """The prefix of JetStream API subjects, from `api_prefix`, `domain` or the default."""
        if self.api_prefix:
            return self.api_prefix
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"

    def event_subject(self, subject: str) -> str:
        """Give the subject on which we hear an advisory or metric that JetStream tells on `$JS.EVENT…`."""
        return subject if self.event_prefix is None else self.event_prefix + subject.removeprefix("$JS.EVENT")

    @property
    def proxy(self) -> SocksProxy | None:
        """The SOCKS proxy, read."""
        return None if self.socks_proxy is None else SocksProxy.parse(self.socks_proxy)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every secret text in these options; paths of files are not secrets."""
        found = [str(getattr(self, item.name)) for item in dataclasses.fields(self) if self._hides(item)]
        proxy = self.proxy
        return (*found, proxy.password) if proxy is not None and proxy.password else tuple(found)

    def scrub(self, text: str) -> str:
        """Take every secret of these options, and any user information in a URL, out of a text."""
        forms = {form for secret in self.secrets for form in (secret, secret.strip(), quote(secret, safe=""))}
        for form in sorted(forms, key=len, reverse=True):  # the longest first: one secret may hold another
            text = text.replace(form, MASK) if form else text
        return mask_url(_LOOSE_SECRETS.sub(MASK, text))

    def replace(self, **changes: Any) -> ConnectionOptions:
        """Give the same options with some of them changed; the result is checked like any other."""
        return dataclasses.replace(self, **changes)

    def __repr__(self) -> str:
        shown = []
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if value == item.default and item.name != "url":
                continue
            shown.append(f"{item.name}={MASK!r}" if self._hides(item) else f"{item.name}={value!r}")
        return f"ConnectionOptions({', '.join(shown)})"

    # -- checking --------------------------------------------------------------------------------------------

    def _hides(self, item: dataclasses.Field[Any]) -> bool:
        value = getattr(self, item.name)
        if value is None or not item.metadata.get("secret"):
            return False
        if item.name == "socks_proxy":
            return "@" in value
        return item.name not in _FILES or is_hidden(value)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_kinds(self) -> None:
        for item in dataclasses.fields(self):
            name, default, value = item.name, item.default, getattr(self, item.name)
            if default is None and value == "":
                self._set(name, None)  # context files write "" for "not given"
            elif isinstance(default, bool) and not isinstance(value, bool):
                raise _wrong(name, f"{name} is {value!r}.", "Give True or False.", value)
            elif isinstance(default, str | None) and not isinstance(value, str | type(default)) and name != "url":
                # The value stays out: bytes may be a password.
                raise _wrong(name, f"{name} is of type {type(value).__name__}.", "Give text.")

    def _lift_urls(self) -> None:
        given: Any = self.url
        if isinstance(given, list | tuple) and all(isinstance(item, str) for item in given):
            given = ",".join(given)
        if not isinstance(given, str):
            raise _wrong("url", f"url is of type {type(given).__name__}.", f"Give an address such as {DEFAULT_URL}.")
        # A comma in an unquoted password cuts it in two: no piece of such a list is safe to show.
        shown = MASK if "," in given and "@" in given else _hide_login(given)
        addresses = [_ParsedUrl.parse(item.strip(), shown) for item in given.split(",") if item.strip()]
        if not addresses:
            raise _wrong("url", "url is empty.", f"Give an address such as {DEFAULT_URL}.", "")
        schemes = {address.scheme for address in addresses}
        if len({scheme in ("ws", "wss") for scheme in schemes}) > 1:
            raise _wrong("url", "url mixes WebSocket and plain addresses.", "Use one kind for all of them.")
        if schemes >= {"ws", "wss"}:
            what = "url mixes ws:// and wss://, and the login would go out unprotected to one of them."
            raise _wrong("url", what, "Use one kind for all of them.")
        logins = {(address.user, address.password) for address in addresses if address.user is not None}
        if len(logins) > 1:
            remedy = "Give one login, as token or as user and password; quote a comma in it as %2C."
            raise _wrong("url", "url carries different logins for different addresses.", remedy)
        self._set("url", ",".join(address.url for address in addresses))
        for user, password in logins:
            fields = {"token": user} if password is None else {"user": user, "password": password}
            for name, value in fields.items():
                if getattr(self, name) not in (None, value):
                    what = f"url carries a {name} and the option {name} is another one."
                    raise _wrong(name, what, "Leave one of them out.")
                self._set(name, value)

    def _check_login(self) -> None:
        ways = [name for name in ("token", "user", "jwt", "nkey", "credentials") if getattr(self, name) is not None]
        if "jwt" in ways and "nkey" in ways:
            ways.remove("nkey")  # its seed
        if len(ways) > 1:
            remedy = "A connection logs in one way: leave the others out."
            raise _wrong(ways[1], f"{' and '.join(ways)} are given together.", remedy)
        if self.nkey and re.fullmatch(r"S[A-Za-z0-9]{40,}", self.nkey.strip()) and not is_seed(self.nkey):
            remedy = "A seed begins with S and has 58 characters; give it whole, or the path of its file."
            raise _wrong("nkey", "nkey looks like a seed, but is not a whole one.", remedy)
        if self.credentials and not is_text(self.credentials) and re.search(r"[\r\n]|^eyJ", self.credentials):
            remedy = "Give what `nsc generate creds` writes, BEGIN and END lines included, or its path."
            what = "credentials are neither the path of a file nor the whole text of one."
            raise _wrong("credentials", what, remedy)
        if self.jwt and not is_text(self.jwt) and self.jwt.strip().startswith("eyJ") and not is_jwt(self.jwt):
            remedy = "A JWT has three parts, joined by dots; give it whole, or the path of its file."
            raise _wrong("jwt", "jwt looks like a JWT, but is not a whole one.", remedy)
        for one, other in (("user", "password"), ("tls_cert", "tls_key")):
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                missing, present = (one, other) if getattr(self, one) is None else (other, one)
                raise _wrong(missing, f"{present} is given without {missing}.", "Give both.")

    def _check_tls(self) -> None:
        schemes = {url.partition("://")[0] for url in self.urls}
        if "ws" in schemes and self.tls:
            what = "url is a ws:// address, which has no TLS, and TLS options are given."
            raise _wrong("url", what, "Use wss://, or leave the TLS options out.", self.url)
        if "wss" in schemes and (self.tls_first or self.tls_hostname):
            name = "tls_first" if self.tls_first else "tls_hostname"
            raise _wrong(name, f"{name} cannot be used with wss://.", "Leave it out.")

    def _check_proxy(self) -> None:
        if self.socks_proxy is not None:
            self._set("socks_proxy", self.socks_proxy.strip())
            SocksProxy.parse(self.socks_proxy or "")

    def _check_prefixes(self) -> None:
        if self.domain and self.api_prefix:
            remedy = "A domain is short for the prefix $JS.<domain>.API: leave one out."
            raise _wrong("domain", "domain and api_prefix are given together.", remedy, self.domain)
        if self.domain and re.search(r"[\s.*>]", self.domain):
            what = f"domain is {self.domain!r}, which is not one token of a subject."
            raise _wrong("domain", what, "Use letters, digits, - and _.", self.domain)
        for name in ("api_prefix", "event_prefix", "inbox_prefix"):
            value = getattr(self, name)
            if value is not None and not _SUBJECT_PREFIX.fullmatch(value):
                remedy = "Use tokens joined by dots, without wildcards, spaces or a dot at the end."
                raise _wrong(name, f"{name} is {value!r}, which cannot begin a subject.", remedy, value)
        if not self.name or not self.name.isprintable():
            raise _wrong("name", "name must be printable text.", "Leave it out for the default.", self.name)

    def _check_numbers(self) -> None:
        for name in ("connect_timeout", "request_timeout", "reconnect_wait", "ping_interval"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise _wrong(name, f"{name} is {value!r}.", "Give a number of seconds above zero.", value)
        attempts = self.reconnect_attempts
        if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < -1:
            what = f"reconnect_attempts is {attempts!r}."
            raise _wrong("reconnect_attempts", what, "Give a whole number, or -1 to try for ever.", attempts)


def _wrong(option: str, what: str, remedy: str, value: Any = None) -> OptionError:
    return OptionError(what, remedy=remedy, option=option, value=value)


def _hide_login(address: str) -> str:
    """Show one address, however broken, without anything that may belong to a login."""
    login, at, place = address.rpartition("@")
    scheme, mark, _ = login.partition("://")
    if not at:
        return address
    return f"{scheme}://{MASK}@{place}" if mark and scheme in _PORTS else f"{MASK}@{place}"


class _ParsedUrl(NamedTuple):
    """One parsed URL: `url` is what is left of it without its login."""

    scheme: str
    url: str
    user: str | None
    password: str | None

    @classmethod
    def parse(cls, text: str, shown: str) -> _ParsedUrl:
        def wrong(what: str, remedy: str) -> OptionError:
            return _wrong("url", f"url {shown!r} {what}.", remedy, shown)

        try:
            parts = urlsplit(text if "://" in text else f"nats://{text}")
            host, port = parts.hostname, parts.port
            if port == 0 or re.search(r"[\s\x00-\x1f\x7f]", text):  # urlsplit drops some of these in silence
                raise ValueError(text)
        except ValueError:  # its text may show a part of the login
            remedy = "Write it as nats://host:port; quote / @ : , ? # in a login, / as %2F."
            raise wrong("cannot be read", remedy) from None
        if parts.scheme not in _PORTS:
            raise wrong("has an unknown scheme", "Known are nats://, tls://, ws:// and wss://.")
        if not host or parts.query or parts.fragment or (parts.path.strip("/") and not parts.scheme.startswith("ws")):
            raise wrong("is not an address", "Write it as nats://host:port.")
        if parts.username == "" or (parts.username is None and "@" in parts.netloc):
            raise wrong("carries an empty login", "Write the token or user before the @, or leave the @ out.")
        shown_host = f"[{host}]" if ":" in host else host
        path = parts.path if parts.scheme.startswith("ws") else ""
        user, password = (None if text is None else unquote(text) for text in (parts.username, parts.password))
        return cls(parts.scheme, f"{parts.scheme}://{shown_host}:{port or _PORTS[parts.scheme]}{path}", user, password)


class SocksProxy(NamedTuple):
    """A SOCKS5 proxy: where it is, and the login that it wants, if any."""

    host: str
    port: int
    user: str | None = None
    password: str | None = None

    @classmethod
    def parse(cls, text: str) -> SocksProxy:
        """Read a proxy from its URL; OptionError if it is not a SOCKS5 address."""
        shown = _hide_login(text)
        remedy = "Write it as socks5://host:port, or socks5://user:password@host:port; quote / @ : in a login."
        wrong = _wrong("socks_proxy", f"socks_proxy {shown!r} is not a SOCKS5 proxy.", remedy, shown)
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError:  # its text may show a part of the login
            raise wrong from None
        user, password = (None if item is None else unquote(item) for item in (parts.username, parts.password))
        if parts.scheme not in ("socks5", "socks5h") or not host or port == 0 or re.search(r"[\s\x00-\x1f\x7f]", text):
            raise wrong
        if parts.path.strip("/") or parts.query or parts.fragment or (user is None) != (password is None):
            raise wrong
        if any(not 0 < len(item.encode()) <= 255 for item in (user, password) if item is not None):
            raise _wrong(
                "socks_proxy", "The login of socks_proxy is empty or too long.", "Up to 255 bytes each.", shown
            )
        return cls(host, port or 1080, user, password)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"SocksProxy({str(self)!r})"
