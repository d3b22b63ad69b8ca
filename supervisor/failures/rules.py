"""The table of failure rules: the user's TOML and the shipped one in, rules out; ConfigError says in one line what is wrong."""

import re
import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

from deadpool.host.errors import ConfigError
from deadpool.supervisor.failures.classify import Rule
from deadpool.supervisor.model.failure import FailureClass, What

_CLASSES = (FailureClass.TRANSIENT, FailureClass.PERMANENT, FailureClass.FATAL)


@cache
def rules_of(text: str) -> tuple[Rule, ...]:
    """Returns the user's rules, given as TOML, and behind them the shipped ones; one with a shipped name takes its place."""
    own = {rule.name: rule for rule in parse_rules(text, "--failure-rules")}
    shipped = {rule.name: rule for rule in _shipped()}
    first = [rule for name, rule in own.items() if name not in shipped]
    return (*first, *(own.get(name, rule) for name, rule in shipped.items()))


@cache
def _shipped() -> tuple[Rule, ...]:
    return parse_rules(files("deadpool.supervisor.failures").joinpath("failure_rules.toml").read_text(), "failure_rules.toml")


def parse_rules(text: str, origin: str) -> tuple[Rule, ...]:
    """Returns the rules in their order; ConfigError, in one line that begins with `origin`, names what is wrong."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: not TOML: {error}") from error
    rows = table.pop("rule", [])
    if table or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        unknown = f"unknown {', '.join(table)}; " if table else ""
        raise ConfigError(f"{origin}: {unknown}each rule is a table [[rule]]")
    rules = tuple(_rule(row, f"{origin}: rule {row.get('name', number)!r}") for number, row in enumerate(rows, 1))
    twice = {rule.name for rule in rules if sum(other.name == rule.name for other in rules) > 1}
    if twice:
        raise ConfigError(f"{origin}: two rules are named {min(twice)!r}")
    return rules


def _rule(row: dict[str, Any], origin: str) -> Rule:
    unknown = row.keys() - _READERS.keys()
    if unknown:
        raise ConfigError(f"{origin}: unknown key {min(unknown)!r}; known: {', '.join(_READERS)}")
    missing = {"name", "class", "event"} - row.keys()
    if missing:
        raise ConfigError(f"{origin}: {min(missing)!r} is missing")
    fields: dict[str, Any] = {}
    for key, value in row.items():
        field_name, read = _READERS[key]
        try:
            fields[field_name] = read(value)
        except (ValueError, TypeError, re.error) as error:
            raise ConfigError(f"{origin}: {key} = {value!r}: {error}") from error
    rule = Rule(**fields)
    if ("reading" in row) != ("at_least" in row):
        raise ConfigError(f"{origin}: 'reading' and 'at_least' go together")
    if What.HEALTH in rule.events and (rule.reading is None or rule.failure_class is not FailureClass.PERMANENT):
        raise ConfigError(f"{origin}: a rule for event 'health' needs a reading and class 'permanent'")
    return rule


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("expected text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("expected true or false")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise TypeError("expected a number, not below 0")
    return value


def _numbers(value: Any) -> frozenset[int]:
    if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
        raise TypeError("expected a list of whole numbers")
    return frozenset(value)


def _choice(value: Any) -> FailureClass:
    if value not in _CLASSES:
        raise ValueError(f"expected one of {', '.join(_CLASSES)}")
    return FailureClass(value)


def _events(value: Any) -> frozenset[What]:
    each = value if isinstance(value, list) else [value]
    if not each or not all(one in list(What) for one in each):
        raise ValueError(f"expected one or more of {', '.join(What)}")
    return frozenset(What(one) for one in each)


_READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "name": ("name", _text),
    "class": ("failure_class", _choice),
    "event": ("events", _events),
    "exit_codes": ("exit_codes", _numbers),
    "signals": ("signals", _numbers),
    "text": ("text", lambda value: re.compile(_text(value))),
    "committed": ("committed", _flag),
    "again": ("again", _flag),
    "everywhere": ("everywhere", _flag),
    "reading": ("reading", _text),
    "at_least": ("at_least", _number),
    "failures_on_node": ("failures_on_node", _number),
    "window_s": ("window_s", _number),
}
