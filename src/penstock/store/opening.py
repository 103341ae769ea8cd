"""A file of this machine, or of any place that Arrow opens by its URI.

`s3a://` and `s3n://`, as Hadoop writes them, are `s3://` to Arrow. What a place needs beside its name (an endpoint, a
region) stands behind a question mark at the end of the URI, or in the environment. Who may read it is a secret, and
stands only in the environment: a URI is part of plans, of errors and of logs.
"""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import InputError

__all__ = ["arrow_path", "joined", "open_file"]

_S3 = ("s3", "s3a", "s3n")
_USE = "Use a path, or file, s3a, hdfs, gs, abfs."
_REMEDIES = {
    "hdfs": "HDFS needs Hadoop's libhdfs and a JVM, here and on every executor: set HADOOP_HOME, JAVA_HOME and "
    "CLASSPATH (`hadoop classpath --glob`).",
    "s3": "Name the endpoint and the region behind the path, if they are not Amazon's own: "
    "?endpoint_override=host:port&scheme=https&region=eu-1. Keys stand in the environment: AWS_ACCESS_KEY_ID.",
}
_SECRETS = ("access_key", "secret_key", "session_token", "password", "token", "account_key", "sas_token")


def open_file(uri: str) -> BinaryIO:
    """Open a file to read any part of it."""
    if "://" not in uri:
        return Path(uri).open("rb")
    system, path = arrow_path(uri)
    # Small reads, one behind the other, must not each become a request.
    return io.BufferedReader(system.open_input_file(path), 1 << 20)


def joined(uri: str, *names: str) -> str:
    """Give the path or the URI of what is below a folder; what stands behind a question mark stays at the end."""
    base, mark, query = uri.partition("?") if "://" in uri else (uri, "", "")
    return "/".join((base.rstrip("/"), *names)) + mark + query


def arrow_path(uri: str) -> tuple[Any, str]:
    """Give the file system of a URI, and the path there."""
    base, _, query = uri.partition("?")
    scheme, _, rest = base.partition("://")
    place, slash, path = rest.partition("/")
    _refuse_secrets(uri)
    system, root = _system("s3" if scheme in _S3 else scheme, place, query)
    return system, root.rstrip("/") + slash + unquote(path)


@functools.lru_cache(maxsize=16)  # each has connections of its own
def _system(scheme: str, place: str, query: str) -> tuple[Any, str]:
    from pyarrow import ArrowException, fs

    # A path may have characters that a URI may not: Arrow gets only the place of it.
    shown = f"{scheme}://{place}"
    try:
        system, root = fs.FileSystem.from_uri(f"{shown}/?{query}" if query else f"{shown}/")
    except (ArrowException, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(f"{shown} cannot be opened: {reason}.", remedy=_REMEDIES.get(scheme, _USE)) from None
    return system, root


def _refuse_secrets(uri: str) -> None:
    """Refuse a URI with a secret in it, without saying it."""
    try:
        found = urlsplit(uri)
    except ValueError:  # what it says may be a secret
        raise InputError(
            "A URI is given that cannot be read: its host is neither a name nor an address.", remedy=_USE
        ) from None
    if "://" in uri and ("@" in found.netloc and ":" in found.netloc.rpartition("@")[0]):
        what = f"The URI {found.scheme}://…@{found.netloc.rpartition('@')[2]} has a password in it."
    elif named := [name for name, _ in parse_qsl(found.query, keep_blank_values=True) if name in _SECRETS]:
        what = f"The URI {found.scheme}://{found.netloc}… has a secret in it: {named[0]}."
    else:
        return
    raise InputError(
        what,
        remedy="A URI is seen in plans and logs: give secrets in the environment (AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE), on executors with spark.executorEnv.",
    )
