"""What kind of failure is it? Pure: the facts in; the class, the rule that said so and its reason out.

The rules are a table, failure_rules.toml, which says what they may contain; rules.py reads it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deadpool.supervisor.model.failure import FailureClass, What


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known of one failure. `earlier`: of the same node, with how many seconds ago."""

    what: What
    exit_code: int = 0
    signal: int = 0
    text: str = ""
    committed: bool = True
    again: bool = False
    everywhere: bool = False
    readings: Mapping[str, float] = field(default_factory=dict)
    earlier: Sequence[tuple[What, float]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table; a condition that is None is not asked for."""

    name: str
    failure_class: FailureClass
    events: frozenset[What]
    exit_codes: frozenset[int] | None = None
    signals: frozenset[int] | None = None
    text: re.Pattern[str] | None = None
    committed: bool | None = None
    again: bool | None = None
    everywhere: bool | None = None
    reading: str | None = None
    at_least: float = 0.0
    failures_on_node: int | None = None
    window_s: float = 3600.0

    def reason(self, facts: Facts) -> str | None:
        """Returns why the rule fits, None when it does not."""
        found = [f"event {facts.what}"]
        if facts.what not in self.events:
            return None
        for name, wanted in (("committed", self.committed), ("again", self.again), ("everywhere", self.everywhere)):
            if wanted is not None and getattr(facts, name) is not wanted:
                return None
            found += [name if wanted else f"not {name}"] if wanted is not None else []
        if self.exit_codes is not None:
            if facts.exit_code not in self.exit_codes:
                return None
            found.append(f"exit code {facts.exit_code}")
        if self.signals is not None:
            if facts.signal not in self.signals:
                return None
            found.append(f"signal {facts.signal}")
        if self.text is not None:
            match = self.text.search(facts.text)
            if match is None:
                return None
            found.append(f"it says {match[0]!r}")
        if self.reading is not None:
            value = facts.readings.get(self.reading)
            if value is None or value < self.at_least:
                return None
            found.append(f"{self.reading} is {value:g}")
        if self.failures_on_node is not None:
            count = sum(what in self.events and ago_s <= self.window_s for what, ago_s in facts.earlier)
            if count < self.failures_on_node:
                return None
            found.append(f"the node has had {count} such failures in {self.window_s:g} s before")
        return ", ".join(found)


def classify(rules: Sequence[Rule], facts: Facts) -> tuple[FailureClass, str, str]:
    """Returns (class, name of the rule that fired, why); without any rule it is transient."""
    for rule in rules:
        why = rule.reason(facts)
        if why is not None:
            return rule.failure_class, rule.name, why
    return FailureClass.TRANSIENT, "", "no rule fits"


def unhealthy(rules: Sequence[Rule], readings: Mapping[str, float]) -> tuple[str, str] | None:
    """Returns (rule, why) when the readings alone say that a node must not get ranks."""
    facts = Facts(what=What.HEALTH, readings=readings)
    failure_class, name, why = classify([rule for rule in rules if What.HEALTH in rule.events], facts)
    return (name, why) if failure_class is FailureClass.PERMANENT else None
