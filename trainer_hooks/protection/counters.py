"""What protection has done so far in this process, and what it has made the training wait for."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Counters:
    """Seconds are wall time of the protect thread, stalls of the main thread."""

    copied_bytes: int = 0
    copy_s: float = 0.0
    replicated_bytes: int = 0
    replicate_s: float = 0.0
    commits: int = 0
    exposed_stall_s: float = 0.0
