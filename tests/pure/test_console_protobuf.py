"""Files of Protobuf types that are not what `protoc` writes."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2

from penstock.console.protobuf import ProtobufTypes, _read
from penstock.errors import InputError


@pytest.mark.parametrize("field", ["name", "package", "dependency"])
def test_names_that_are_not_text_are_refused(field: str):
    """A file whose name, package or import is not UTF-8 is told by the path of the types."""
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="p")
    if field == "dependency":
        file.dependency.append("other")
    else:
        setattr(file, field, "other")
    content = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString().replace(b"other", b"oth\xb0r")
    with pytest.raises(InputError, match=r"types\.binpb has names of files that are not text"):
        _read(content, "types.binpb")


def test_a_type_with_a_name_of_googles_and_other_fields_is_shown_as_bytes():
    """Whoever names a type Timestamp and gives it other fields has it read by nobody; the page goes on."""
    found = descriptor_pb2.FileDescriptorSet()
    file = found.file.add(name="google/protobuf/timestamp.proto", package="google.protobuf", syntax="proto3")
    file.message_type.add(name="Timestamp").field.add(name="other", number=1, type=3, label=1)
    types = ProtobufTypes(*_read(found.SerializeToString(), "types.binpb"))
    assert types.show("google.protobuf.Timestamp", b"\x08\x05") is None
