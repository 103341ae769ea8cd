"""Protobuf payloads as people can read them, by the types of a FileDescriptorSet, as `protoc` writes it:

    protoc --include_imports --descriptor_set_out=types.binpb shop/*.proto

Which type a payload has, a rule says (a pattern of subjects and a type), or the header `Content-Type` of the message,
with its parameter `messageType` or `proto`; or whoever looks chooses one.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, json_format, message_factory, unknown_fields
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message

from penstock.errors import InputError
from penstock.wire.subjects import covers, subject_fault

__all__ = ["ProtobufText", "ProtobufTypes"]

_MOST = 64 * 2**20  # bytes of a file of types
_OWN = re.compile(r"google/protobuf/([a-z_]+)\.proto")
_CONTENT = re.compile(r"""(?:messagetype|proto)\s*=\s*"?([A-Za-z0-9_.]+)"?""", re.IGNORECASE)
_REMEDY = "Write it with protoc --include_imports --descriptor_set_out=FILE."


@dataclass(frozen=True)
class ProtobufText:
    """A payload as its type reads it."""

    text: str
    unknown: int
    """How many fields are in it that the type does not know: with many, it is another type's."""


class ProtobufTypes:
    """The message types of a descriptor set, and which subjects have which."""

    def __init__(self, pool: DescriptorPool, types: Iterable[str], rules: Iterable[tuple[str, str]] = ()) -> None:
        self._pool = pool
        self.types = tuple(sorted(types))
        """The full names of all message types."""
        self.rules = tuple(rules)
        for pattern, name in self.rules:
            if fault := subject_fault(pattern):
                raise InputError(f"The subject {pattern!r} {fault}.", remedy="Write orders.>=shop.Order.")
            if name not in self.types:
                raise InputError(f"There is no Protobuf type {name!r}.", remedy=f"There is {_some(self.types)}.")

    @classmethod
    def load(cls, path: str | Path, rules: Iterable[str] = ()) -> ProtobufTypes:
        """Read a descriptor set; each rule is SUBJECT=TYPE. InputError for what cannot be."""
        try:
            with Path(path).expanduser().open("rb") as file:
                content = file.read(_MOST + 1)
        except OSError as error:
            what = f"The Protobuf types in {path} cannot be read: {(error.strerror or str(error)).lower()}."
            raise InputError(what, remedy=_REMEDY) from None
        if len(content) > _MOST:
            raise InputError(f"{path} has more than {_MOST >> 20} MiB.", remedy="Leave types out that nobody looks at.")
        pairs = []
        for rule in rules:
            pattern, sign, name = rule.rpartition("=")
            if not sign:
                raise InputError(f"{rule!r} names no type for a subject.", remedy="Write orders.>=shop.Order.")
            pairs.append((pattern.strip(), name.strip()))
        pool, names = _read(content, str(path))
        return cls(pool, names, pairs)

    def type_of(self, subject: str, headers: Mapping[str, list[str]]) -> str | None:
        """Give the type that a rule, or the message itself, names; None if nobody does."""
        for pattern, name in self.rules:
            if covers(pattern, subject):
                return name
        for header, values in headers.items():
            if header.lower() == "content-type":
                for value in values:
                    if (found := _CONTENT.search(value)) and found[1] in self.types:
                        return found[1]
        return None

    def show(self, name: str, data: bytes) -> ProtobufText | None:
        """Read a payload as a type; None if it cannot be one."""
        kind = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))
        try:
            message = kind.FromString(data)
            content = json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=self._pool)
        except (
            DecodeError,
            ValueError,
            TypeError,
            AttributeError,
            json_format.Error,
            RecursionError,
        ):
            # TypeError is for an Any whose type is not known, AttributeError for a type with a name of Google's, as
            # Timestamp, and other fields than Google's.
            return None
        return ProtobufText(json.dumps(content, indent=2, ensure_ascii=False), _unknown(message))


def _read(content: bytes, path: str) -> tuple[DescriptorPool, list[str]]:
    try:
        files = list(descriptor_pb2.FileDescriptorSet.FromString(content).file)
    except DecodeError:
        files = []
    if not files:
        raise InputError(f"{path} holds no Protobuf types.", remedy=_REMEDY)
    names: list[object] = [name for item in files for name in (item.name, item.package, *item.dependency)]
    if not all(isinstance(name, str) for name in names):  # Protobuf gives bytes for what is not UTF-8
        raise InputError(f"{path} has names of files that are not text.", remedy=_REMEDY)
    pool, added = DescriptorPool(), set[str]()
    waiting = {item.name: item for item in files}
    wanted = {name for item in files for name in item.dependency} - set(waiting)
    missing = sorted(name for name in wanted if not _add_own(pool, name, added))
    if missing:
        raise InputError(f"{path} lacks {_some(missing)}, which others of its files import.", remedy=_REMEDY)
    while waiting:
        ready = [item for item in waiting.values() if added.issuperset(item.dependency)]
        if not ready:
            raise InputError(f"The files in {path} import each other in a circle.", remedy=_REMEDY)
        for item in ready:
            try:
                pool.AddSerializedFile(item.SerializeToString())
            except (TypeError, ValueError) as error:
                raise InputError(f"{item.name} in {path} cannot be used: {error}.", remedy=_REMEDY) from None
            added.add(waiting.pop(item.name).name)
    return pool, [name for item in files for name in _names(item.package, item.message_type)]


def _add_own(pool: DescriptorPool, name: str, added: set[str]) -> bool:
    """Add a file that comes with Protobuf itself; tell whether it is one."""
    found = _OWN.fullmatch(name)
    if name in added:
        return True
    if found is None:
        return False
    try:
        module = importlib.import_module(f"google.protobuf.{found[1]}_pb2")
    except ImportError:
        return False
    own = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(own)
    if all(_add_own(pool, item, added) for item in own.dependency):
        pool.AddSerializedFile(own.SerializeToString())
        added.add(name)
    return name in added


def _names(package: str, types: Any) -> list[str]:
    found = []
    for item in types:
        name = f"{package}.{item.name}" if package else item.name
        if not item.options.map_entry:
            found += [name, *_names(name, item.nested_type)]
    return found


def _unknown(message: Message) -> int:
    """Count the fields that a message and those within it have and their types do not know."""
    count = len(unknown_fields.UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            parts = [item for item in value.values() if isinstance(item, Message)]
        else:
            parts = [value] if isinstance(value, Message) else list(value)
        count += sum(_unknown(part) for part in parts)
    return count


def _some(names: Iterable[str], most: int = 5) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
