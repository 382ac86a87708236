"""The golden files: what an earlier version wrote stays as it was written, and stays readable.

How to change an encoding:

- A field that older workers may ignore: add it to the .proto, run ``make proto``, and add its line to
  ``golden/wire.txt``. The golden bytes stay what they are.
- Anything else: raise the version of the cell or record, keep reading the earlier ones, and add a golden file
  ``<what>_v<version>.bin`` that the new code wrote, with its digest to the table below.

A golden file that is there is never written anew: the same bytes lie in somebody's state.
"""

from __future__ import annotations

import hashlib
import pathlib
from typing import TYPE_CHECKING

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from beam_agents.memory.layout import SCHEMA_VERSION
from beam_agents.memory.stores.contract import RECORD_VERSION, StoreRow, decode_record, encode_record
from beam_agents.model.replay import REPLAY_STATE_VERSION
from beam_agents.runtime.control import CONTROL_VERSION
from beam_agents.wire import beam_agents_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor_pb2 import DescriptorProto

TESTS = pathlib.Path(__file__).parents[1]
HERE = pathlib.Path("state/golden")

DIGESTS = {
    "unit/runtime/golden/control_v1.bin": "757280c024706721e94b1a8fcf77670ec3050b629a27d5a593f837af738da5c7",
    "unit/memory/golden/memory_v1.bin": "0a68fef50061d68f3a0063da2bfc10ddb32f230684b61fed4bc7786933972f6d",
    "unit/memory/golden/record_v1.bin": "4b0cdb52cef3d45612709004b980d9f702ab44adbbf04f3f61810b6e93dd184e",
    "unit/model/golden/replay_v1.bin": "0056d5dabcc28c408293195591b71b29c572fb49af5f1d0a7e2fc6c407facfbe",
    "state/golden/control_extended.bin": "f6cbf039fa91b916a2c14c646e791e04bce1ea64290a45c74b5a3432c4b588ab",
    "state/golden/control_newer.bin": "2f8c9c50879135719756d3224e7a77c17454e79762e934eebf88228538f00e1e",
    "state/golden/memory_extended.bin": "dc8d7d2312559fdb235e4144a078e3b47be0ddeb20368f5fdbb353d050b81c6e",
    "state/golden/memory_newer.bin": "0743c4a4620cddbe37e14b64b965d42a9f39dd2a562548f80ca1119a8452758a",
    "state/golden/record_extended.bin": "acb70ae0426f0cde1298e1fb320bb23f5f22128824b79b21ffc4513d39216ea3",
    "state/golden/record_newer.bin": "5c7ad2d42d27ac4bca3d54082d0287ee31b95390f463225f971a85cf47e661d5",
    "state/golden/replay_extended.bin": "9ce928f2b27f6e9ca65c9f8827c2ddd70857106552ebd882888d7939ed0e598e",
    "state/golden/replay_newer.bin": "4f55a4eb23b717be5d32554fbc10455a241f5c210d733cb577391b5b3e8d2882",
    "state/golden/savepoint_deadlines_v1.json": (
        "8207444f7ddc71d1959f4ab34318e99b28b506dd4e0bcbf93c99de0e28f659fd"
    ),
    "state/golden/savepoint_v1.json": "fec4283db4d7b44e829f8262a57696fe4b65fd59c3f619969ecdca538b28cafa",
    "stores/golden/rows_v1.json": "6f713668330e8521f0eb8f42b8e3d2da55c77a1de6b35dd76f8c74954f89b905",
}
"""Of each golden file below ``tests``, but for ``wire.txt``, which grows."""

VERSIONS = {
    "unit/runtime/golden/control": CONTROL_VERSION,
    "unit/memory/golden/memory": SCHEMA_VERSION,
    "unit/memory/golden/record": RECORD_VERSION,
    "unit/model/golden/replay": REPLAY_STATE_VERSION,
}


def test_no_golden_file_was_written_anew() -> None:
    found = {
        path.relative_to(TESTS).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in TESTS.rglob("golden/*")
        if path.name != "wire.txt"
    }
    assert found == DIGESTS, "a golden file is new, gone or changed: read the head of this test file"


@pytest.mark.parametrize("what", VERSIONS)
def test_each_version_up_to_todays_has_its_file(what: str) -> None:
    wanted = {f"{what}_v{version}.bin" for version in range(1, VERSIONS[what] + 1)}
    assert wanted == {path for path in DIGESTS if path.startswith(what)}


def fields(message: DescriptorProto, parent: str = "") -> Iterator[str]:
    name = f"{parent}{message.name}"
    for field in message.field:
        kind = field.type_name.rpartition(".")[2] or FieldDescriptorProto.Type.Name(field.type)[5:].lower()
        repeated = "repeated " if field.label == FieldDescriptorProto.LABEL_REPEATED else ""
        yield f"{name}.{field.number:02d} {repeated}{kind} {field.name}"
    for nested in message.nested_type:
        yield from fields(nested, f"{name}.")


def todays_wire() -> list[str]:
    file = FileDescriptorProto()
    beam_agents_pb2.DESCRIPTOR.CopyToProto(file)
    return sorted(line for message in file.message_type for line in fields(message))


def test_fields_are_added_and_never_changed() -> None:
    recorded = (TESTS / HERE / "wire.txt").read_text().splitlines()
    today = todays_wire()
    assert set(recorded) <= set(today), "a field was removed, renamed, renumbered or changed its type"
    assert recorded == today, "a field was added: read the head of this test file, then add it to wire.txt"


def test_records_of_version_1_are_read_and_written_as_ever() -> None:
    golden = (TESTS / "unit/memory/golden/record_v1.bin").read_bytes()
    seq, at_ms = 1_700_000_000_123, 1_700_000_000_456
    assert encode_record(b"a value of version 1", seq, at_ms) == golden
    record = decode_record(StoreRow(b"ada", "profile", seq, golden, at_ms))
    assert (record.value, record.seq, record.updated_at_ms) == (b"a value of version 1", seq, at_ms)
