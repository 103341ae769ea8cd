"""Credentials: read from text and from files, signed with, and refused without showing them."""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path

import nkeys
import pytest

from penstock.credentials import Login, check, inline, login, tls_context
from penstock.errors import InputError, LinkError, LoginError, TlsError
from penstock.options import ConnectionOptions
from tests.support import Authority, Key, Operator, Pair, credentials_text

JWT = "eyJ0eXAi.eyJqdGki.c2lnbmF0dXJl"


@pytest.fixture(scope="module")
def user() -> Key:
    return Key.make()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("client")


def verified(user: Key, signature: str, nonce: str) -> bool:
    raw = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
    try:
        return bool(nkeys.from_seed(bytearray(user.seed.encode())).verify(nonce.encode(), raw))
    except nkeys.ErrInvalidSignature:
        return False


# -- logins --------------------------------------------------------------------------------------------------


def test_simple_logins_go_as_they_are() -> None:
    """A token, or a user with a password, needs no file and no signature."""
    assert login(ConnectionOptions()).connect_fields("nonce") == {}
    assert login(ConnectionOptions(token="t")).connect_fields("nonce") == {"auth_token": "t"}
    assert login(ConnectionOptions(user="u", password="p")).connect_fields(None) == {"user": "u", "pass": "p"}


DECORATED = "-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"


@pytest.mark.parametrize(
    ("form", "as_path"),
    [
        ("{seed}", False),
        ("{seed}\n", False),
        (DECORATED, False),
        ("{seed}", True),
        ("{seed}\r\n", True),
        ("{seed}\n{public}\n", True),
        (DECORATED, True),
    ],
)
def test_an_nkey_is_text_or_a_file(user: Key, tmp_path: Path, form: str, as_path: bool) -> None:
    """A seed is found in every form that the NATS tools write, and its signature verifies."""
    text = form.format(seed=user.seed, public=user.public)
    path = tmp_path / "user.nk"
    path.write_text(text)
    fields = login(ConnectionOptions(nkey=str(path) if as_path else text)).connect_fields("a nonce")
    assert fields.keys() == {"nkey", "sig"}
    assert fields["nkey"] == user.public
    assert verified(user, fields["sig"], "a nonce")
    assert not verified(user, fields["sig"], "another nonce")


def test_a_seed_of_the_nats_documentation() -> None:
    """A seed that other tools made has the public key that they say it has."""
    seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
    assert Login(seed=seed).public_key == "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


@pytest.mark.parametrize("as_path", [False, True])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_credentials_are_text_or_a_file(user: Key, tmp_path: Path, as_path: bool, ending: str) -> None:
    """Credentials give a JWT and a signature that verifies; the public key is in the JWT."""
    text = credentials_text(JWT, user.seed).replace("\n", ending)
    path = tmp_path / "user.creds"
    path.write_bytes(text.encode())
    fields = login(ConnectionOptions(credentials=str(path) if as_path else text)).connect_fields("a nonce")
    assert fields.keys() == {"jwt", "sig"}
    assert fields["jwt"] == JWT
    assert verified(user, fields["sig"], "a nonce")


@pytest.mark.parametrize(
    "form", ["{jwt}", "{jwt}\n", "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n"]
)
@pytest.mark.parametrize("as_path", [False, True])
def test_a_jwt_is_text_or_a_file(user: Key, tmp_path: Path, form: str, as_path: bool) -> None:
    """A JWT is signed for with the seed beside it; a bearer's goes alone."""
    jwt, path = JWT, tmp_path / "user.jwt"
    text = form.format(jwt=jwt)
    path.write_text(text)
    given = str(path) if as_path else text
    fields = login(ConnectionOptions(jwt=given, nkey=user.seed)).connect_fields("nonce")
    assert fields.keys() == {"jwt", "sig"}
    assert (fields["jwt"], verified(user, fields["sig"], "nonce")) == (jwt, True)
    assert login(ConnectionOptions(jwt=given)).connect_fields("nonce") == {"jwt": jwt}
    assert inline(ConnectionOptions(jwt=given, nkey=user.seed)) == ConnectionOptions(jwt=jwt, nkey=user.seed)


def test_what_a_command_names_is_checked_before_it_connects(authority: Authority, tmp_path: Path) -> None:
    """A missing or broken file is bad input, whichever option names it."""
    broken = tmp_path / "broken"
    broken.write_text("s3cr3t")
    for options in (
        ConnectionOptions(credentials="/no/such"),
        ConnectionOptions(nkey="/no/such"),
        ConnectionOptions(jwt="/no/such"),
        ConnectionOptions(jwt=str(broken)),
        ConnectionOptions(tls_ca="/no/such"),
        ConnectionOptions(tls_cert=str(authority.ca), tls_key=str(broken)),
    ):
        with pytest.raises(InputError) as caught:
            check(options)
        assert "s3cr3t" not in str(caught.value)
    check(ConnectionOptions(tls_ca=str(authority.ca), token="t"))


def test_a_signature_waits_for_a_nonce(user: Key) -> None:
    """A server that sends no nonce asks for no signature."""
    assert login(ConnectionOptions(nkey=user.seed)).connect_fields(None) == {}
    with pytest.raises(LoginError, match="asks for a signature and there is no seed"):
        Login(token="t").sign("nonce")
    assert Login().public_key is None


def test_a_file_below_the_home_folder(user: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path may begin with ~."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "user.nk").write_text(user.seed)
    assert login(ConnectionOptions(nkey="~/user.nk")).public_key == user.public


def test_a_login_shows_no_secret(user: Key) -> None:
    """The repr of a login has the user's name at the most."""
    assert repr(Login("t0k3n", "ann", "p4ss", JWT, user.seed)) == "Login(user='ann')"


def test_unreadable_files_are_one_sentence(tmp_path: Path) -> None:
    """A file that cannot be read is named, with the reason."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path, reason in (
        (tmp_path / "gone", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / "binary", "not a text file"),
    ):
        for option in ("credentials", "nkey"):
            with pytest.raises(LoginError, match=f"{option} file {path} cannot be read: {reason}"):
                login(ConnectionOptions(**{option: str(path)}))


def test_what_is_in_the_file_is_checked(user: Key, tmp_path: Path) -> None:
    """Half of a credentials file, a broken seed, or one that is no user's, is told apart; none is shown."""
    account = Key.make(nkeys.PREFIX_BYTE_ACCOUNT)
    broken = user.seed[:-1] + ("A" if user.seed[-1] != "A" else "B")
    cases = [
        ("credentials", credentials_text(JWT, user.seed).partition("USER NKEY")[0], "hold no seed"),
        ("credentials", credentials_text(JWT, user.seed).partition("\n\n")[2], "hold no JWT"),
        ("credentials", "nothing of the kind", "hold no JWT"),
        ("credentials", credentials_text(JWT, broken), "The seed in credentials is not a whole nkey seed"),
        ("credentials", credentials_text(JWT, account.seed), "The seed in credentials is not that of a user"),
        ("nkey", broken, "The seed in nkey is not a whole nkey seed"),
        ("nkey", account.seed, "The seed in nkey is not that of a user"),
        ("nkey", user.public, "The seed in nkey is not a whole nkey seed"),
        ("nkey", "", "The seed in nkey is not a whole nkey seed"),
    ]
    for option, content, says in cases:
        path = tmp_path / "file"
        path.write_text(content)
        with pytest.raises(LoginError, match=says) as caught:
            login(ConnectionOptions(**{option: str(path)}))
        assert caught.value.remedy
        for secret in (user.seed, broken, account.seed, JWT):
            assert secret not in str(caught.value)


def test_a_mangled_secret_given_as_a_path_is_not_shown() -> None:
    """A key that was copied badly looks like a missing file; the error does not repeat it."""
    mangled = "x" + Key.make().seed
    with pytest.raises(LoginError, match="nkey given as text cannot be read") as caught:
        login(ConnectionOptions(nkey=mangled))
    assert mangled not in str(caught.value)


# -- files made into text ------------------------------------------------------------------------------------


def test_inline_needs_no_files_any_more(user: Key, authority: Authority, pair: Pair, tmp_path: Path) -> None:
    """Options for a machine without the files hold their content, and work there."""
    nkey, creds = tmp_path / "user.nk", tmp_path / "user.creds"
    nkey.write_text(f"{user.seed}\n{user.public}\n")
    creds.write_text(Operator().credentials(user=user))
    tls = {"tls_ca": str(authority.ca), "tls_cert": str(pair.cert), "tls_key": str(pair.key)}
    moved = [
        inline(ConnectionOptions("tls://h", nkey=str(nkey), **tls)),
        inline(ConnectionOptions("tls://h", credentials=str(creds), **tls)),
    ]
    nkey.unlink()
    creds.unlink()
    for options in moved:
        assert login(options).public_key == user.public
        assert tls_context(options).get_ca_certs()
        assert user.seed not in repr(options)
        assert inline(options) == options


def test_inline_leaves_other_options_alone() -> None:
    """Options without files are the same ones."""
    options = ConnectionOptions(token="t")
    assert inline(options) is options


def test_inline_checks_before_anything_travels(pair: Pair, tmp_path: Path) -> None:
    """A file that is no good is found where it is, not on another machine."""
    wrong = tmp_path / "wrong"
    wrong.write_text("nothing of the kind")
    with pytest.raises(LoginError, match="hold no JWT"):
        inline(ConnectionOptions(credentials=str(wrong)))
    with pytest.raises(TlsError, match=f"tls_ca file {wrong} holds no PEM"):
        inline(ConnectionOptions(tls_ca=str(wrong)))
    with pytest.raises(TlsError, match=r"tls_key file .* cannot be read: No such file"):
        inline(ConnectionOptions(tls_cert=str(pair.cert), tls_key=str(tmp_path / "gone")))


# -- TLS -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_text", [False, True])
def test_certificates_are_text_or_files(authority: Authority, pair: Pair, as_text: bool) -> None:
    """PEM may be given itself or by its path; the certificates are checked, and so is the host."""
    files = {"tls_ca": authority.ca, "tls_cert": pair.cert, "tls_key": pair.key}
    context = tls_context(
        ConnectionOptions(**{name: path.read_text() if as_text else str(path) for name, path in files.items()})
    )
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_only_the_given_authority_is_trusted(authority: Authority) -> None:
    """Who names an authority trusts that one, and not all of the system's besides."""
    names = [item["subject"] for item in tls_context(ConnectionOptions(tls_ca=str(authority.ca))).get_ca_certs()]
    assert names == [((("commonName", "authority"),),)]


def test_a_bundle_may_hold_remarks(authority: Authority, tmp_path: Path) -> None:
    """Text between the certificates of a bundle, in any alphabet, is passed over."""
    bundle = tmp_path / "bundle.pem"
    other = Authority(tmp_path, "other")
    bundle.write_text(f"# Würzburg\n{authority.ca.read_text()}\n# 東京\n{other.ca.read_text()}")
    assert len(tls_context(ConnectionOptions(tls_ca=str(bundle))).get_ca_certs()) == 2


def test_no_private_key_is_left_on_disk(
    authority: Authority, pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whether the pair fits or not, its temporary file is gone afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tls_context(ConnectionOptions(tls_cert=str(pair.cert), tls_key=str(pair.key)))
    with pytest.raises(TlsError):
        tls_context(ConnectionOptions(tls_cert=str(pair.cert), tls_key=str(authority.issue("second").key)))
    assert os.listdir(tmp_path) == []


def test_certificates_that_cannot_be_used(authority: Authority, pair: Pair, tmp_path: Path) -> None:
    """A key of another certificate, a file without PEM, a broken one, a missing one: each says what it is."""
    wrong, broken = tmp_path / "wrong", tmp_path / "broken"
    wrong.write_text("nothing of the kind")
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    other = authority.issue("other")
    for fields, says in (
        ({"tls_ca": wrong}, f"tls_ca file {wrong} holds no certificate"),
        ({"tls_ca": broken}, "The TLS certificates cannot be used"),
        ({"tls_ca": tmp_path / "gone"}, "tls_ca file .* cannot be read: No such file"),
        ({"tls_cert": pair.cert, "tls_key": other.key}, "cannot be used: key values mismatch"),
        ({"tls_cert": wrong, "tls_key": pair.key}, "The TLS certificates cannot be used"),
        ({"tls_cert": pair.cert, "tls_key": wrong}, "The TLS certificates cannot be used"),
        ({"tls_cert": pair.cert, "tls_key": tmp_path / "gone"}, "tls_key file .* cannot be read: No such file"),
    ):
        with pytest.raises(TlsError, match=says) as caught:
            tls_context(ConnectionOptions(**{name: str(path) for name, path in fields.items()}))
        assert caught.value.remedy
        assert isinstance(caught.value, LinkError)


def test_an_encrypted_key_does_not_ask_the_terminal(authority: Authority) -> None:
    """A program without anybody at its terminal must not wait for a password: the key is refused at once."""
    locked = authority.issue("locked", password="secret")
    program = (
        "from penstock.credentials import tls_context\n"
        "from penstock.options import ConnectionOptions\n"
        f"tls_context(ConnectionOptions(tls_cert={str(locked.cert)!r}, tls_key={str(locked.key)!r}))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Standard input stays open and silent: who asks would wait for ever.
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=environment,
        text=True,
    ) as child:
        try:
            assert child.wait(timeout=60) == 1
        finally:
            child.kill()
        said = child.stderr.read() if child.stderr else ""
    assert "TlsError: tls_key is encrypted" in said
    assert "pass phrase" not in said
