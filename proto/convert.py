"""The one place where our dataclasses and protobuf's classes meet: both have the same names and the same fields.

`encode` and `decode` work by introspection, once per class; a test checks that every message survives the round trip and that
no field is missing on either side.
"""

import dataclasses
import re
import types
import typing
from enum import StrEnum
from functools import cache
from typing import Any

from google.protobuf.message import Message

from deadpool.host.errors import ProtocolError
from deadpool.host.text import printable
from deadpool.proto import messages
from deadpool.proto.generated import agent_pb2, common_pb2, rank_pb2, status_pb2
from deadpool.proto.messages import status as status_messages

_FIELDS: dict[Any, dict[str, Any]] = {}
_JSON = ("config_json", "json")  # fields whose text is JSON of ours: ASCII, and whole or nothing
_MODULES = (common_pb2, agent_pb2, rank_pb2, status_pb2)


def encode_agent_message(message: messages.AgentMessage, *, number: int = 0) -> agent_pb2.AgentMessage:
    return agent_pb2.AgentMessage(number=number, **{_snake(type(message).__name__): encode(message)})


def decode_agent_message(wire: agent_pb2.AgentMessage) -> messages.AgentMessage:
    return typing.cast(messages.AgentMessage, _decode_body(wire))


def encode_order(order: messages.Order, *, number: int = 0, heard: int = 0) -> agent_pb2.Order:
    return agent_pb2.Order(number=number, heard=heard, **{_snake(type(order).__name__): encode(order)})


def decode_order(wire: agent_pb2.Order) -> messages.Order:
    return typing.cast(messages.Order, _decode_body(wire))


def encode_rank_message(message: messages.RankMessage) -> rank_pb2.RankMessage:
    return rank_pb2.RankMessage(**{_snake(type(message).__name__): encode(message)})


def decode_rank_message(wire: rank_pb2.RankMessage) -> messages.RankMessage:
    return typing.cast(messages.RankMessage, _decode_body(wire))


def encode_rank_order(order: messages.RankOrder) -> rank_pb2.RankOrder:
    return rank_pb2.RankOrder(**{_snake(type(order).__name__): encode(order)})


def decode_rank_order(wire: rank_pb2.RankOrder) -> messages.RankOrder:
    return typing.cast(messages.RankOrder, _decode_body(wire))


def encode(message: Any) -> Any:
    """Returns the protobuf message of the same name with the dataclass's values; its texts are bounded and printable."""
    return _wire_class(type(message).__name__)(
        **{
            name: value if name in _JSON else _encode_value(value)
            for name in _fields(type(message))
            if (value := getattr(message, name)) is not None
        }
    )


def decode(wire: Message) -> Any:
    """Returns the dataclass of the same name with the protobuf message's values."""
    cls = getattr(status_messages if wire.DESCRIPTOR.file is status_pb2.DESCRIPTOR else messages, wire.DESCRIPTOR.name)
    return cls(**{name: _decode_value(wire, name, hint) for name, hint in _fields(cls).items()})


def to_plain(message: Any) -> Any:
    """Returns the dataclass as dicts, lists and numbers, for JSON."""
    return dataclasses.asdict(message)


def _decode_body(wire: Any) -> object:
    body = wire.WhichOneof("body")
    if body is None:
        raise ProtocolError(f"{wire.DESCRIPTOR.name} without a body: sent by another version of deadpool?")
    return decode(getattr(wire, body))


def _encode_value(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, tuple):
        return [_encode_value(each) for each in value]
    if isinstance(value, dict):
        return {name: printable(text) for name, text in value.items()}
    return encode(value) if dataclasses.is_dataclass(value) else value


def _decode_value(wire: Any, name: str, hint: Any) -> Any:
    value = getattr(wire, name)
    origin = typing.get_origin(hint)
    if origin is tuple:
        return tuple(decode(each) if isinstance(each, Message) else each for each in value)
    if origin is dict:
        return dict(value)
    if origin in (typing.Union, types.UnionType):
        return decode(value) if wire.HasField(name) else None
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint(value)
    return decode(value) if isinstance(value, Message) else value


def _fields(cls: Any) -> dict[str, Any]:
    """Returns the fields of a message class with their types; looked up once per class."""
    if cls not in _FIELDS:
        hints = typing.get_type_hints(cls)
        _FIELDS[cls] = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    return _FIELDS[cls]


@cache
def _wire_class(name: str) -> Any:
    return next(getattr(module, name) for module in _MODULES if hasattr(module, name))


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
