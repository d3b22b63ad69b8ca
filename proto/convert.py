"""The one place where our dataclasses and protobuf's classes meet: both have the same names and the same fields.

`encode` and `decode` work by introspection, once per class; a test checks that every message survives the round trip and that
no field is missing on either side.
"""

import dataclasses
import operator
import re
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any

from google.protobuf.message import Message

from deadpool.host.errors import ProtocolError
from deadpool.host.text import printable
from deadpool.proto import messages
from deadpool.proto.generated import agent_pb2, common_pb2, rank_pb2, status_pb2
from deadpool.proto.messages import status as status_messages

_PLAIN = (int, float, bool, bytes)
_JSON = ("config_json", "json")  # fields whose text is JSON of ours: ASCII, and whole or nothing
_MODULES = (common_pb2, agent_pb2, rank_pb2, status_pb2)


def encode_agent_message(message: messages.AgentMessage, *, number: int = 0) -> agent_pb2.AgentMessage:
    return agent_pb2.AgentMessage(number=number, **{_snake(type(message).__name__): encode(message)})


def decode_agent_message(wire: agent_pb2.AgentMessage) -> messages.AgentMessage:
    return typing.cast(messages.AgentMessage, _decode_body(wire))


def encode_order(order: messages.Order, *, number: int = 0, heard: int = 0) -> agent_pb2.Order:
    return agent_pb2.Order(number=number, heard=heard, **{_snake(type(order).__name__): encode(order)})


def order_body(order: messages.Order) -> bytes:
    """Returns the order on the wire without its numbers: the same for all nodes that get it."""
    return bytes(encode_order(order).SerializeToString())


def order_wire(body: bytes, *, number: int = 0, heard: int = 0) -> bytes:
    """Returns the whole order on the wire. (Fields of one message may be serialized apart and put together.)"""
    return body + bytes(agent_pb2.Order(number=number, heard=heard).SerializeToString())


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
    form: _Form = _form(type(message))  # type: ignore[arg-type]
    fields = dict(zip(form.plain, form.plain_of(message), strict=True))
    for name, encoded, _ in form.others:
        if (value := getattr(message, name)) is not None:
            fields[name] = encoded(value)
    return form.wire(**fields)


def decode(wire: Message) -> Any:
    """Returns the dataclass of the same name with the protobuf message's values."""
    form = _form_of(wire.DESCRIPTOR)
    if not form.others:
        return form.ours(*form.plain_of(wire))
    fields = dict(zip(form.plain, form.plain_of(wire), strict=True))
    for name, _, decoded in form.others:
        fields[name] = decoded(wire, name)
    return form.ours(**fields)


def to_plain(message: Any) -> Any:
    """Returns the dataclass as dicts, lists and numbers, for JSON."""
    return dataclasses.asdict(message)


def status_as_plain(status: status_messages.JobStatus) -> dict[str, Any]:
    """Returns the status as `deadpool status --json`, the page and the summary file spell it: a recovery's class is "class"."""
    plain: dict[str, Any] = to_plain(status)
    plain["recoveries"] = [
        {("class" if key == "failure_class" else key): value for key, value in each.items()} for each in plain["recoveries"]
    ]
    return plain


def _decode_body(wire: Any) -> object:
    body = wire.WhichOneof("body")
    if body is None:
        raise ProtocolError(f"{wire.DESCRIPTOR.name} without a body: sent by another version of deadpool?")
    return decode(getattr(wire, body))


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """How one class of message is read and made. `plain`: fields that are the same on both sides, `plain_of` reads them all.

    `others`: (name, ours to wire, (wire message, name) to ours).
    """

    ours: Any
    wire: Any
    plain: tuple[str, ...]
    plain_of: Callable[[Any], tuple[Any, ...]]
    others: tuple[tuple[str, Callable[[Any], Any], Callable[[Any, str], Any]], ...]


@cache
def _form(cls: Any) -> _Form:
    """Returns the form of a message class of ours; made once for each."""
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    plain = tuple(name for name in names if name in _JSON or hints[name] in _PLAIN)
    others = tuple((name, _encoder(hints[name]), _decoder(hints[name])) for name in names if name not in plain)
    return _Form(cls, _wire_class(cls.__name__), plain, _reader(plain), others)


@cache
def _form_of(descriptor: Any) -> _Form:
    module = status_messages if descriptor.file is status_pb2.DESCRIPTOR else messages
    return _form(getattr(module, descriptor.name))


def _reader(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Returns what reads these attributes, as a tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda message: tuple(getattr(message, name) for name in names)


def _encoder(hint: Any) -> Callable[[Any], Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (each for each in arguments if each is not types.NoneType)
        return _encoder(inner)
    if origin is tuple and dataclasses.is_dataclass(arguments[0]):
        return _encoder_of_many(arguments[0])
    if origin is tuple:
        each = _encoder(arguments[0])
        return lambda values: [each(value) for value in values]
    if origin is dict:
        return lambda texts: {name: printable(text) for name, text in texts.items()}
    if dataclasses.is_dataclass(hint):
        return encode
    return printable if issubclass(hint, str) else lambda value: value


def _decoder(hint: Any) -> Callable[[Any, str], Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return lambda wire, name: decode(getattr(wire, name)) if wire.HasField(name) else None
    if origin is tuple and dataclasses.is_dataclass(arguments[0]):
        return _decoder_of_many(arguments[0])
    if origin in (tuple, dict):
        return lambda wire, name: origin(getattr(wire, name))
    if dataclasses.is_dataclass(hint):
        return lambda wire, name: decode(getattr(wire, name))
    return lambda wire, name: hint(getattr(wire, name))


def _encoder_of_many(cls: Any) -> Callable[[Any], Any]:
    """A status has many ranks: as `_decoder_of_many`."""

    def encoded(values: Any) -> Any:
        form = _form(cls)
        if form.others:
            return [encode(each) for each in values]
        wire, plain, plain_of = form.wire, form.plain, form.plain_of
        return [wire(**dict(zip(plain, plain_of(each), strict=True))) for each in values]

    return encoded


def _decoder_of_many(cls: Any) -> Callable[[Any, str], Any]:
    """Heartbeats have many ranks, and come by the thousand: of fields that are the same on both sides nothing is looked up."""

    def decoded(wire: Any, name: str) -> Any:
        form = _form(cls)
        if form.others:
            return tuple(map(decode, getattr(wire, name)))
        ours, plain_of = form.ours, form.plain_of
        return tuple([ours(*plain_of(each)) for each in getattr(wire, name)])

    return decoded


@cache
def _wire_class(name: str) -> Any:
    return next(getattr(module, name) for module in _MODULES if hasattr(module, name))


@cache
def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
