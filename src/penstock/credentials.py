"""What a connection proves itself with: logins, signatures and TLS, read from files or text.

Both doors to NATS use this, the asyncio one and the blocking one, so that a credential that works with one
works with the other. Files are read here and nowhere else.
"""

from __future__ import annotations

import base64
import re
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import InputError, LoginError, TlsError
from penstock.json_text import load_json
from penstock.options import ConnectionOptions, is_hidden, is_jwt, is_seed, is_text

__all__ = ["Login", "check", "claims", "find_seed", "inline", "login", "tls_context", "tls_reason"]

_BLOCK = r"-+BEGIN {0}-+\s+(\S+)\s+-+END {0}-+"
_JWT = re.compile(_BLOCK.format("NATS USER JWT"))
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[\sA-Za-z0-9+/=]+-----END CERTIFICATE-----")
_USER_SEED = re.compile(_BLOCK.format("USER NKEY SEED"))


@dataclass(frozen=True)
class Login:
    """What the CONNECT message says about who we are."""

    token: str | None = field(default=None, repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    jwt: str | None = field(default=None, repr=False)
    seed: str | None = field(default=None, repr=False)

    @property
    def public_key(self) -> str | None:
        """The public half of the seed, which the server knows us by."""
        if self.seed is None:
            return None
        key = _key_pair(self.seed)
        try:
            return str(key.public_key.decode())
        finally:
            key.wipe()

    def sign(self, nonce: str) -> str:
        """Sign the server's nonce with the seed, as unpadded URL-safe base64."""
        if self.seed is None:
            raise LoginError(
                "The server asks for a signature and there is no seed.", remedy="Give nkey or credentials."
            )
        key = _key_pair(self.seed)
        try:
            return base64.urlsafe_b64encode(key.sign(nonce.encode())).rstrip(b"=").decode()
        finally:
            key.wipe()

    def connect_fields(self, nonce: str | None) -> dict[str, str]:
        """Give the fields of the CONNECT message that log us in."""
        fields = {"auth_token": self.token, "user": self.user, "pass": self.password, "jwt": self.jwt}
        if self.seed is not None and nonce:
            fields["sig"] = self.sign(nonce)
            if self.jwt is None:
                fields["nkey"] = self.public_key
        return {name: value for name, value in fields.items() if value is not None}


def login(options: ConnectionOptions) -> Login:
    """Read whatever these options log in with; LoginError if it cannot be read."""
    if options.credentials is not None:
        text = _content(options.credentials, "credentials")
        jwt, seed = _JWT.search(text), _USER_SEED.search(text)
        if jwt is None or seed is None:
            what = f"credentials {_place(options.credentials)} hold no {'JWT' if jwt is None else 'seed'}."
            raise LoginError(what, remedy="Give a .creds file as `nsc generate creds` writes it, whole.")
        return Login(jwt=jwt.group(1), seed=_checked_seed(seed.group(1), "credentials"))
    jwt_text = None if options.jwt is None else _find_jwt(_content(options.jwt, "jwt"), options.jwt)
    if options.nkey is not None:
        return Login(jwt=jwt_text, seed=_checked_seed(find_seed(_content(options.nkey, "nkey")), "nkey"))
    if jwt_text is not None:
        return Login(jwt=jwt_text)
    return Login(token=options.token, user=options.user, password=options.password)


def check(options: ConnectionOptions) -> None:
    """Read whatever these options name, as connecting will; InputError if something is missing or cannot be used."""
    try:
        login(options)
        if options.tls_ca or options.tls_cert:
            tls_context(options)
    except (LoginError, TlsError) as error:
        raise InputError(error.what, remedy=error.remedy) from None


def claims(credentials: str) -> dict[str, Any]:
    """Read what the JWT of a credentials file says, signed as it must be; LoginError if it cannot be read."""
    found = _JWT.search(_content(credentials, "credentials"))
    if found is None:
        what = f"credentials {_place(credentials)} hold no JWT."
        raise LoginError(what, remedy="Give a .creds file as `nsc generate creds` writes it, whole.")
    from nacl.signing import VerifyKey  # what nkeys signs with; it verifies nothing by a public key

    try:
        head, body, signature = found.group(1).split(".")
        said = load_json(_unpadded(body))
        issuer = base64.b32decode(said["iss"] + "=" * (-len(said["iss"]) % 8))[1:-2]
        VerifyKey(issuer).verify(f"{head}.{body}".encode(), _unpadded(signature))
    except Exception:  # whatever is wrong with it, nobody can log in with it
        remedy = "Make the file anew: `nsc generate creds`."
        raise LoginError(f"The JWT in credentials {_place(credentials)} is damaged.", remedy=remedy) from None
    return dict(said)


def _unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def inline(options: ConnectionOptions) -> ConnectionOptions:
    """Give the same options with every file's content in place of its path, for machines that lack the files."""
    login(options)  # what is in the files is checked here, where they are, and not on another machine
    contents = {
        name: _content(value, name)
        for name in ("credentials", "nkey", "jwt", "tls_ca", "tls_cert", "tls_key")
        if (value := getattr(options, name)) is not None
    }
    if "nkey" in contents:
        contents["nkey"] = find_seed(contents["nkey"])
    if options.jwt is not None:
        contents["jwt"] = _find_jwt(contents["jwt"], options.jwt)
    for name, content in contents.items():
        if name.startswith("tls") and not is_text(content):
            raise TlsError(f"{name} {_place(getattr(options, name))} holds no PEM.", remedy="Give a PEM file.")
    return options.replace(**contents) if contents else options


def tls_context(options: ConnectionOptions) -> ssl.SSLContext:
    """Build the TLS context of these options; TlsError if a certificate or key cannot be used."""
    try:
        trusted = None if options.tls_ca is None else _certificates(options.tls_ca)
        # With authorities of our own the system's are not trusted: who names one wants that one.
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=trusted)
        if options.tls_cert is not None and options.tls_key is not None:
            _load_pair(context, _content(options.tls_cert, "tls_cert"), _content(options.tls_key, "tls_key"))
    except (ssl.SSLError, ValueError) as error:
        remedy = "tls_ca, tls_cert and tls_key must be PEM, and the key must belong to the certificate."
        raise TlsError(f"The TLS certificates cannot be used: {tls_reason(error)}.", remedy=remedy) from None
    return context


def tls_reason(cause: Exception) -> str:
    """Give the reason why a handshake failed, or a certificate is no use, in the words that the ssl module has."""
    if verify := str(getattr(cause, "verify_message", "")):
        return verify.rstrip(".")
    reason = getattr(cause, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(cause)


def _certificates(value: str) -> str:
    # Bundles carry remarks between their blocks, in any alphabet; the ssl module takes none but ASCII.
    blocks = _CERTIFICATE.findall(_content(value, "tls_ca"))
    if not blocks:
        raise TlsError(f"tls_ca {_place(value)} holds no certificate.", remedy="Give certificates as PEM.")
    return "\n".join(blocks) + "\n"


def _load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    if "ENCRYPTED" in key:
        remedy = "Decrypt it (`openssl pkey -in KEY -out PLAIN`), and let nobody else read the file."
        raise TlsError("tls_key is encrypted, and nobody is there to ask for its password.", remedy=remedy)
    # The ssl module loads pairs from files only; this one is readable by us alone and gone when we return.
    with tempfile.NamedTemporaryFile("w", prefix="penstock-tls-", suffix=".pem") as file:
        file.write(certificate.rstrip() + "\n" + key)
        file.flush()
        context.load_cert_chain(file.name, password=lambda: "")  # what is encrypted after all never asks the terminal


def _content(value: str, option: str) -> str:
    if is_text(value) or (option == "nkey" and is_seed(value)) or (option == "jwt" and is_jwt(value)):
        return value
    try:
        return Path(value).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: no text, or a path with a zero byte in it
        kind = TlsError if option.startswith("tls") else LoginError
        reason = getattr(error, "strerror", None) or "not a text file"
        what = f"{option} {_place(value)} cannot be read: {reason}."
        raise kind(what, remedy="Check the path, or give the content itself.") from None


def _place(value: str) -> str:
    return "given as text" if is_hidden(value) else f"file {value}"


def _find_jwt(text: str, given: str) -> str:
    """Find the JWT in a text: alone, or between BEGIN and END lines."""
    found = _JWT.search(text)
    jwt = text.strip() if found is None else found.group(1)
    if not is_jwt(jwt):
        remedy = "Give a user's JWT, as `nsc describe user --raw` prints it."
        raise LoginError(f"jwt {_place(given)} holds no JWT.", remedy=remedy)
    return jwt


def find_seed(text: str) -> str:
    """Find the seed in an nkey file: alone, beside its public key, or between BEGIN and END lines."""
    return next((line.strip() for line in text.splitlines() if is_seed(line)), text.strip())


def _checked_seed(seed: str, option: str) -> str:
    _key_pair(seed, option).wipe()
    if not seed.startswith("SU"):
        what = f"The seed in {option} is not that of a user."
        raise LoginError(what, remedy="A user's seed begins with SU; those of accounts and operators cannot log in.")
    return seed


def _key_pair(seed: str, option: str = "nkey"):  # type: ignore[no-untyped-def]  # nkeys ships no types
    import nkeys

    try:
        kind, raw = nkeys.decode_seed(seed.encode())
        # nkeys passes over the checksum: a mistyped seed would be the key of somebody else.
        if nkeys.encode_seed(raw, kind).decode() != seed:
            raise ValueError("checksum")
        return nkeys.from_seed(bytearray(seed.encode()))
    except Exception:  # nkeys raises ValueError, binascii.Error or its own, depending on what is wrong
        remedy = "A seed begins with S and has 58 characters; the last ones check the others."
        raise LoginError(f"The seed in {option} is not a whole nkey seed.", remedy=remedy) from None
