"""proto/*.proto, the generated code, common.py and status.py say the same."""

import dataclasses
import difflib
import subprocess
import sys
import tomllib
import types
import typing
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import deadpool
from deadpool.host.errors import ProtocolError
from deadpool.host.text import TEXT_CHARS_MAX, printable
from deadpool.proto import convert, messages
from deadpool.proto.generated import agent_pb2, common_pb2, rank_pb2, status_pb2
from deadpool.proto.messages import status as status_messages

PROTO = (Path(deadpool.__file__).parent / "proto").resolve()
SOURCES, GENERATED = PROTO / "messages", PROTO / "generated"
MODULES: tuple[Any, ...] = (common_pb2, agent_pb2, rank_pb2, status_pb2)
MESSAGES: list[Any] = [
    each
    for _, each in sorted((vars(messages) | vars(status_messages)).items())
    if isinstance(each, type) and dataclasses.is_dataclass(each)
]
ENVELOPES: dict[str, tuple[Any, Any, Any]] = {
    "AgentMessage": (messages.AgentMessage, convert.encode_agent_message, convert.decode_agent_message),
    "Order": (messages.Order, convert.encode_order, convert.decode_order),
    "RankMessage": (messages.RankMessage, convert.encode_rank_message, convert.decode_rank_message),
    "RankOrder": (messages.RankOrder, convert.encode_rank_order, convert.decode_rank_order),
}
INT64 = st.integers(-(2**63), 2**63 - 1)


def descriptors() -> dict[str, Any]:
    return {name: each for module in MODULES for name, each in module.DESCRIPTOR.message_types_by_name.items()}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Returns a strategy for the values that a field of this type may hold."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([st.none() if each is type(None) else values(each) for each in arguments])
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(typing.cast(type, hint), **{field.name: values(hints[field.name]) for field in dataclasses.fields(hint)})
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(hint)
    return {
        bytes: st.binary(max_size=8),
        int: INT64,
        float: st.floats(allow_nan=False),
        bool: st.booleans(),
        str: st.text().map(printable),
    }[hint]


def test_the_committed_code_is_what_protoc_makes(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="needs the dev extras")
    sources = sorted(str(path) for path in SOURCES.glob("*.proto"))
    out = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-Ideadpool/proto/generated={SOURCES}", *out, *sources],
        check=True,
        timeout=50,
    )
    again = tmp_path / "deadpool" / "proto" / "generated"
    made = sorted(path.name for path in again.iterdir())
    assert made == sorted(path.name for path in GENERATED.glob("*_pb2*"))
    for name in made:
        fresh, ours = [without_versions((folder / name).read_text()) for folder in (again, GENERATED)]
        difference = "\n".join(difflib.unified_diff(ours, fresh, "committed", "regenerated", lineterm="", n=1))
        assert not difference, f"{name}: run protoc again (CONTRIBUTING.md)\n{difference}"


def without_versions(text: str) -> list[str]:
    """Returns the lines of generated code without what depends on the generator's version only."""
    lines = text.splitlines()
    versions = {
        index for index, line in enumerate(lines) if line.startswith(("# Protobuf Python Version", "GRPC_GENERATED_VERSION"))
    }
    at = next((index for index, line in enumerate(lines) if "ValidateProtobufRuntimeVersion" in line), None)
    return [line for index, line in enumerate(lines) if index not in versions and not (at is not None and at < index <= at + 5)]


def test_the_generated_code_asks_for_no_newer_grpc_than_pyproject() -> None:
    requirements = tomllib.loads((PROTO.parent / "pyproject.toml").read_text())["project"]["dependencies"]
    asked = dict(each.split(">=") for each in requirements if ">=" in each)
    generated = (GENERATED / "status_pb2_grpc.py").read_text().split("GRPC_GENERATED_VERSION = '")[1].split("'")[0]
    assert version(asked["grpcio"]) >= version(generated)
    assert version(asked["protobuf"]) >= tuple(
        int(line.strip(" ,")) for line in (GENERATED / "status_pb2.py").read_text().split("Domain.PUBLIC,")[1].splitlines()[1:4]
    )


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def test_both_sides_have_the_same_messages() -> None:
    assert {each.__name__ for each in MESSAGES} == descriptors().keys() - ENVELOPES.keys()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: each.__name__)
def test_both_sides_have_the_same_fields(message: Any) -> None:
    assert {field.name for field in dataclasses.fields(message)} == set(descriptors()[message.__name__].fields_by_name)


@pytest.mark.parametrize("name", ENVELOPES)
def test_an_envelope_holds_just_its_messages(name: str) -> None:
    union = typing.get_args(ENVELOPES[name][0])
    bodies = descriptors()[name].oneofs_by_name["body"].fields
    assert [field.message_type.name for field in bodies] == [each.__name__ for each in union]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: each.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_every_message_survives_the_wire(message: Any, data: st.DataObject) -> None:
    value = data.draw(values(message))
    wire = convert.encode(value)
    assert convert.decode(type(wire).FromString(wire.SerializeToString())) == value


@pytest.mark.parametrize("name", ENVELOPES)
@settings(max_examples=25)
@given(data=st.data())
def test_every_envelope_survives_the_wire(name: str, data: st.DataObject) -> None:
    union, encode, decode = ENVELOPES[name]
    value = data.draw(values(data.draw(st.sampled_from(typing.get_args(union)))))
    wire = encode(value)
    assert decode(type(wire).FromString(wire.SerializeToString())) == value


@pytest.mark.parametrize("name", ENVELOPES)
def test_an_empty_envelope_is_refused(name: str) -> None:
    module = next(module for module in MODULES if hasattr(module, name))
    with pytest.raises(ProtocolError, match=name):
        ENVELOPES[name][2](getattr(module, name)())


@pytest.mark.parametrize("text", ["img_\udcff.png", "\x1b[2J", "x" * 6_000_000])
def test_no_text_keeps_a_message_from_being_sent(text: str) -> None:
    said = messages.RankExited(generation=1, rank=0, pid=1, exit_code=1, error=text, log_tail=text)
    wire = convert.encode_agent_message(said)
    assert wire.ByteSize() < 3 * TEXT_CHARS_MAX
    heard = convert.decode_agent_message(agent_pb2.AgentMessage.FromString(wire.SerializeToString()))
    assert isinstance(heard, messages.RankExited)
    assert heard.error == heard.log_tail == printable(text)


def test_the_values_of_an_environment_are_printable_too() -> None:
    role = messages.Role(
        generation=1, rank=0, local_rank=0, world_size=1, muted=False, store_host="", store_port=0, hint_step=0,
        placement=messages.Placement(rank=0, local_rank=0, node_id="n", node_rank=0), environment={"ROLE_NAME": "a\udcff"},
    )  # fmt: skip
    heard = convert.decode_rank_order(convert.encode_rank_order(role))
    assert isinstance(heard, messages.Role)
    assert heard.environment == {"ROLE_NAME": r"a\udcff"}


def test_a_long_configuration_is_not_cut() -> None:
    welcome = messages.Welcome(config_json="x" * (2 * TEXT_CHARS_MAX), generation=1)
    assert convert.decode_order(convert.encode_order(welcome)) == welcome
