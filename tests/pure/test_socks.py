"""SOCKS5 as bytes: whole, byte by byte, and never a byte more than belongs to the proxy."""

from __future__ import annotations

import pytest

from penstock.errors import LoginError, OptionError, UnreachableError
from penstock.options import ConnectionOptions, SocksProxy
from penstock.wire.socks import SocksHandshake

PLAIN = SocksProxy("proxy", 1080)
LOGIN = SocksProxy("proxy", 1080, "ann", "päß")
GREETING = b'INFO {"server_id":"x"}\r\n'


def talk(handshake: SocksHandshake, answers: bytes, step: int = 1 << 16) -> tuple[bytes, bytes]:
    """Speak with a proxy that says all of this; give what was sent, and what was left of its answers."""
    sent = b""
    while handshake.wanted:
        sent += handshake.take()
        piece = answers[: min(step, handshake.wanted)]
        answers = answers[len(piece) :]
        handshake.receive(piece)
    return sent, answers


@pytest.mark.parametrize("step", [1, 2, 1 << 16])
@pytest.mark.parametrize(
    "bound", [b"\x01\x7f\x00\x00\x01\x00\x01", b"\x03\x04here\x00\x01", b"\x04" + bytes(18), b"\x03\x00\x00\x01"]
)
@pytest.mark.parametrize(
    ("proxy", "host", "sent", "answers"),
    [
        (PLAIN, "nats.test", b"\x05\x01\x00\x05\x01\x00\x03\x09nats.test\x10\x7e", b"\x05\x00"),
        (PLAIN, "10.0.0.1", b"\x05\x01\x00\x05\x01\x00\x01\x0a\x00\x00\x01\x10\x7e", b"\x05\x00"),
        (PLAIN, "::1", b"\x05\x01\x00\x05\x01\x00\x04" + bytes(15) + b"\x01\x10\x7e", b"\x05\x00"),
        (
            LOGIN,
            "h",
            b"\x05\x02\x00\x02\x01\x03ann\x05p\xc3\xa4\xc3\x9f\x05\x01\x00\x03\x01h\x10\x7e",
            b"\x05\x02\x01\x00",
        ),
        (LOGIN, "h", b"\x05\x02\x00\x02\x05\x01\x00\x03\x01h\x10\x7e", b"\x05\x00"),
        (PLAIN, "bücher.test", b"\x05\x01\x00\x05\x01\x00\x03\x12xn--bcher-kva.test\x10\x7e", b"\x05\x00"),
    ],
)
def test_a_handshake_takes_what_belongs_to_it(proxy, host: str, sent: bytes, answers: bytes, bound: bytes, step: int):
    """Whatever address the proxy tells, the server's greeting behind it is left alone."""
    handshake = SocksHandshake(proxy, host, 4222, ())
    assert talk(handshake, answers + b"\x05\x00\x00" + bound + GREETING, step) == (sent, GREETING)


@pytest.mark.parametrize(
    ("proxy", "answers", "kind", "says"),
    [
        (PLAIN, b"", UnreachableError, "is not a SOCKS5 proxy: it closed the connection"),
        (PLAIN, b"HTTP/1.1 400\r\n", UnreachableError, "it does not speak SOCKS5"),
        (PLAIN, b"\x05\x02", UnreachableError, "a login that was not offered"),
        (PLAIN, b"\x05\xff", LoginError, "wants a login, and none is given"),
        (LOGIN, b"\x05\xff", LoginError, "takes no user and password"),
        (LOGIN, b"\x05\x02\x01\x01", LoginError, "refuses the login"),
        (PLAIN, b"\x05\x00\x05\x04\x00\x01\x00", UnreachableError, "to h:4222: the host cannot be reached"),
        (PLAIN, b"\x05\x00\x05\xee\x00\x01\x00", UnreachableError, "its reply is 238"),
        (PLAIN, b"\x05\x00\x04\x00\x00\x01\x00", UnreachableError, "its reply is not SOCKS5"),
        (PLAIN, b"\x05\x00\x05\x00\x00\x02\x00", UnreachableError, "an address of no known kind"),
        (PLAIN, b"\x05\x00\x05\x00\x00\x01\x00\x00", UnreachableError, "it closed the connection"),
    ],
)
def test_what_goes_wrong_is_told(proxy: SocksProxy, answers: bytes, kind: type[Exception], says: str):
    """Each refusal, and each answer that is none, has its sentence, which names the proxy and no password."""
    with pytest.raises(kind, match=says) as caught:
        talk(SocksHandshake(proxy, "h", 4222, ()), answers)
    assert "proxy:1080" in str(caught.value)
    assert "päß" not in str(caught.value)


@pytest.mark.parametrize("host", ["", "a..b", "x" * 64])
def test_what_is_no_host_name_is_never_sent(host: str):
    """A name with a part that is empty or too long is refused as one without a proxy is."""
    with pytest.raises(UnicodeError):
        SocksHandshake(PLAIN, host, 1, ())


# -- the option -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "proxy"),
    [
        ("socks5://h", SocksProxy("h", 1080)),
        ("socks5h://h:9/", SocksProxy("h", 9)),
        ("socks5://[::1]:9", SocksProxy("::1", 9)),
        ("socks5://a%40:p%3A@h:9", SocksProxy("h", 9, "a@", "p:")),
    ],
)
def test_a_proxy_is_read(text: str, proxy: SocksProxy):
    """Host, port and login come from the URL."""
    assert ConnectionOptions(socks_proxy=text).proxy == proxy


@pytest.mark.parametrize(
    "text",
    [
        "h:1080",
        "http://s3cr3t:p@h",
        "socks4://h",
        "socks5://",
        "socks5://h:0",
        "socks5://h:99999",
        "socks5://s3cr3t@h",
        "socks5://:s3cr3t@h",
        "socks5://a:@h",
        "socks5://h/path",
        "socks5://h?x",
        "socks5://h h",
        f"socks5://a:{'s3cr3t' * 50}@h",
    ],
)
def test_what_is_no_proxy_is_refused(text: str):
    """Anything else is refused, and no login of it is shown."""
    with pytest.raises(OptionError, match="socks_proxy") as caught:
        ConnectionOptions(socks_proxy=text)
    assert "s3cr3t" not in f"{caught.value} {caught.value.value}"


def test_the_login_of_a_proxy_is_a_secret():
    """It is in no repr, and is taken out of texts; an address without one is no secret."""
    options = ConnectionOptions(socks_proxy="socks5://ann:s3cr3t@h:9")
    assert "s3cr3t" not in repr(options) + repr(options.proxy) + str(options.proxy)
    assert options.scrub("it said s3cr3t of socks5://ann:s3cr3t@h:9") == "it said *** of ***"
    assert "socks5://h:9" in repr(ConnectionOptions(socks_proxy="socks5://h:9"))
