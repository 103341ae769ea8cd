"""What tests share: certificates, keys and JWTs made on the spot, listeners that record, and a way to wait."""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import ipaddress
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nkeys
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# -- waiting -------------------------------------------------------------------------------------------------


async def eventually(check: Callable[[], Any], what: str, *, timeout: float = 20.0) -> Any:
    """Wait until `check` gives something true, and give that; it may be a coroutine function."""
    deadline = time.monotonic() + timeout
    while True:
        found = check()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not happen in {timeout:g} s"
        await asyncio.sleep(0.02)


# -- certificates --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder, which signs what tests ask for."""

    folder: Path
    name: str = "authority"
    _key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ca.write_bytes(_pem(_sign(self.name, self._key, self.name, self._key, None)))

    @property
    def ca(self) -> Path:
        """The authority's own certificate."""
        return self.folder / f"{self.name}.pem"

    def issue(self, name: str, *hosts: str, password: str | None = None) -> Pair:
        """Sign a certificate for these host names and addresses, for servers and clients alike."""
        key = ec.generate_private_key(ec.SECP256R1())
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        pair.cert.write_bytes(_pem(_sign(name, key, self.name, self._key, hosts)))
        cipher: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            cipher = serialization.BestAvailableEncryption(password.encode())
        encoding, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        pair.key.write_bytes(key.private_bytes(encoding, kind, cipher))
        pair.key.chmod(0o600)
        return pair


def _sign(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    hosts: tuple[str, ...] | None,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    authority = hosts is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .add_extension(_usage(authority), critical=True)
    )
    if hosts:
        names = [_general_name(host) for host in hosts]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if not authority:
        both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = builder.add_extension(both, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


# -- keys and JWTs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """An nkey: its seed, and the public half."""

    seed: str
    public: str

    @classmethod
    def make(cls, kind: int = nkeys.PREFIX_BYTE_USER) -> Key:
        """Make a new key, of a user where nothing else is said."""
        seed = bytes(nkeys.encode_seed(os.urandom(32), kind)).decode()
        return cls(seed, nkeys.from_seed(bytearray(seed.encode())).public_key.decode())

    def sign(self, data: bytes) -> bytes:
        """Sign with the private half."""
        return nkeys.from_seed(bytearray(self.seed.encode())).sign(data)


@dataclass(frozen=True)
class Operator:
    """An operator with two accounts, which makes the JWTs of a server in operator mode (NATS JWT, version 2)."""

    operator: Key = field(default_factory=lambda: Key.make(nkeys.PREFIX_BYTE_OPERATOR))
    account: Key = field(default_factory=lambda: Key.make(nkeys.PREFIX_BYTE_ACCOUNT))
    system: Key = field(default_factory=lambda: Key.make(nkeys.PREFIX_BYTE_ACCOUNT))

    def config(self) -> str:
        """Give the server configuration that trusts this operator."""
        claims = {"type": "operator", "version": 2, "system_account": self.system.public}
        everything = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True}
        everything |= {"conn": -1, "leaf": -1}
        streams = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
        account = {"type": "account", "version": 2, "limits": {**everything, **streams}}
        system = {"type": "account", "version": 2, "limits": everything}
        return (
            f"operator: {_jwt(self.operator, self.operator, 'operator', claims)}\n"
            f"system_account: {self.system.public}\n"
            "resolver: MEMORY\n"
            "resolver_preload: {\n"
            f"  {self.account.public}: {_jwt(self.operator, self.account, 'account', account)}\n"
            f"  {self.system.public}: {_jwt(self.operator, self.system, 'system', system)}\n"
            "}\n"
        )

    def credentials(self, *, expired: bool = False, user: Key | None = None) -> str:
        """Give the text of a `.creds` file for a user of the account."""
        user = user or Key.make()
        claims = {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1}
        jwt = _jwt(self.account, user, "user", claims, expires=int(time.time()) - 60 if expired else None)
        return credentials_text(jwt, user.seed)


def credentials_text(jwt: str, seed: str) -> str:
    """Write a JWT and a seed as a `.creds` file has them."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        "NKEY Seed printed below can be used to sign and prove identity.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n\n"
        "*************************************************************\n"
    )


def _jwt(issuer: Key, subject: Key, name: str, claims: dict[str, Any], expires: int | None = None) -> str:
    content: dict[str, Any] = {"iat": int(time.time()), "iss": issuer.public, "name": name, "sub": subject.public}
    content["nats"] = claims
    if expires is not None:
        content["exp"] = expires
    content["jti"] = base64.b32encode(hashlib.sha256(_compact(content)).digest()).decode().rstrip("=")
    head = _base64(_compact({"typ": "JWT", "alg": "ed25519-nkey"}))
    body = f"{head}.{_base64(_compact(content))}"
    return f"{body}.{_base64(issuer.sign(body.encode()))}"


def _compact(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


# -- listeners -----------------------------------------------------------------------------------------------


@dataclass
class Listener:
    """A listener that is no NATS server: it says one thing, and keeps all that it hears."""

    port: int = 0
    heard: bytearray = field(default_factory=bytearray)
    opened: int = 0
    closed: int = 0


@asynccontextmanager
async def listening(greeting: bytes = b"", *, answer: bytes = b"", hang_up: bool = False) -> AsyncIterator[Listener]:
    """Listen on loopback: greet, answer the first thing that is said, then stay silent or hang up."""
    listener = Listener()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        listener.opened += 1
        try:
            writer.write(greeting)
            await writer.drain()
            while not hang_up and (data := await reader.read(65536)):
                listener.heard += data
                writer.write(answer)
                await writer.drain()
        except ConnectionError:
            pass  # the client may go as it likes
        finally:
            writer.close()
            listener.closed += 1

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    listener.port = server.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        server.close()
        await eventually(lambda: listener.opened == listener.closed, "the listener's last connection ending")
