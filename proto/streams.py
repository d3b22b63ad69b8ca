"""torchrun's way to name output streams: `3` (every rank), or `0:3,1:1` by local rank; 0 none, 1 stdout, 2 stderr, 3 both."""

import re

from deadpool.host.errors import ConfigError

STDOUT = 1
STDERR = 2
_STREAMS = re.compile(r"[0123]|\d+:[0123](,\d+:[0123])*")


def check_streams(option: str, text: str) -> None:
    """Raises ConfigError, naming the option, when the text names no streams."""
    if not _STREAMS.fullmatch(text):
        raise ConfigError(f"{option} {text}: write 0, 1, 2 or 3 (none, stdout, stderr, both), or by local rank as 0:3,1:2")


def streams_of(text: str, local_rank: int) -> int:
    """Returns the streams that `text` names for that local rank: STDOUT | STDERR."""
    if ":" not in text:
        return int(text)
    named = [each.partition(":") for each in text.split(",")]
    return next((int(streams) for number, _, streams in named if int(number) == local_rank), 0)
