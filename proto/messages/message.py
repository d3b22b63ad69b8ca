"""How a message is declared. None is ever changed: mypy sees to that, for a class that did so itself would take ten times as long
to make, and a supervisor of thousands of nodes makes a hundred thousand of them in a recovery."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(cls: type[_T]) -> type[_T]:
    """Makes a dataclass of the class: with slots, a hash, frozen, all fields by their names (as far as types are checked)."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
