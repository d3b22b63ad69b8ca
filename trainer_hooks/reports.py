"""The numbers that a script reports of its training: shown by `deadpool status`, the page and the metrics."""

from collections.abc import Callable, Mapping
from typing import SupportsFloat

from deadpool.host.errors import ConfigError
from deadpool.proto.call_record import MAX_NUMBER_NAME, TOKENS


class Reports:
    """What is reported within a step counts once the step is complete; what is reported between two steps, immediately.

    `write(name, value)`: into the call record; ValueError when there is no room for another name. Tokens are summed.
    """

    def __init__(self, write: Callable[[str, float], None]) -> None:
        self._write = write
        self._of_step: list[dict[str, float]] | None = None
        self._tokens = 0.0

    def step_begins(self) -> None:
        self._of_step = []

    def step_ends(self, *, completed: bool) -> None:
        said, self._of_step = self._of_step or [], None
        for numbers in said if completed else ():
            self._publish(numbers)

    def add(self, numbers: Mapping[str, SupportsFloat | None]) -> None:
        """ConfigError: one of them is no number, or has too long a name, or there are too many."""
        checked = checked_numbers(numbers)
        if self._of_step is None:
            self._publish(checked)
        else:
            self._of_step.append(checked)

    def _publish(self, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            if name == TOKENS:
                self._tokens += value
            try:
                self._write(name, self._tokens if name == TOKENS else value)
            except ValueError as error:
                raise ConfigError(f"guard.report(): {error}") from error


def checked_numbers(numbers: Mapping[str, SupportsFloat | None]) -> dict[str, float]:
    """Returns those that are given, as floats. ConfigError: one is no number, or its name is too long."""
    checked = {}
    for name, value in numbers.items():
        if value is None:
            continue
        if len(name.encode()) > MAX_NUMBER_NAME:
            raise ConfigError(f"guard.report(): {name}: use a name of {MAX_NUMBER_NAME} bytes at most")
        try:
            checked[name] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"guard.report(): {name} is no number: {error}") from error
    return checked
