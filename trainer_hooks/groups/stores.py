"""The store that torch.distributed keeps: one object for the life of the process, over whatever store the generation has.

c10d remembers the store of init_process_group and uses it for every group made later. A generation's TCPStore dies with the
generation, so c10d is given this one, which passes each call on to the current client. While there is no client (a joiner's
construction, or between two generations) it answers so that nobody waits: waits pass, keys that were never set are empty.
"""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist

from deadpool.trainer_hooks.torch_internals import Store

_PAUSE_S, _PAUSE_S_MAX = 0.002, 0.05  # a client is locked while it waits, and its wait cannot be given up: ask again and again
_DEFAULT_TIMEOUT = timedelta(minutes=5)


class GenerationStore(Store):
    """Passes every call to the current client; without one it is a dictionary in which nobody waits.

    Called by Python and, through PrefixStore, by C++ (hence the two spellings of some names). Thread-safe.
    """

    def __init__(self, on_muted: Callable[[], None] = lambda: None) -> None:
        """`on_muted()` is called before an answer is made up because the generation has broken; it may not return."""
        super().__init__()
        self._on_muted = on_muted
        self._client: Store | None = None
        self._broken: Callable[[], bool] = lambda: False
        self._alone: dict[str, bytes] = {}
        self._timeout = _DEFAULT_TIMEOUT

    def attach(self, client: Store, broken: Callable[[], bool]) -> None:
        """Uses `client` from now on; `broken` tells when its generation has ended, so that waits in it end too."""
        self._client, self._broken = client, broken
        self._alone = {}

    def detach(self) -> None:
        self._client = None

    def _live(self) -> Store | None:
        if not self._broken():
            return self._client
        self._on_muted()
        return None

    def set(self, key: str, value: str | bytes) -> None:
        client = self._live()
        if client is not None:
            client.set(key, value)  # type: ignore[arg-type]
        else:
            self._alone[key] = _bytes(value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        client = self._live()
        return client.get(key) if client is not None else self._alone.get(key, b"")

    def add(self, key: str, value: int) -> int:
        client = self._live()
        if client is not None:
            return client.add(key, value)
        total = int(self._alone.get(key, b"0")) + value
        self._alone[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        client = self._live()
        if client is not None:
            return client.compare_set(key, expected_value, desired_value)  # type: ignore[arg-type]
        if self._alone.get(key, b"") == _bytes(expected_value):
            self._alone[key] = _bytes(desired_value)
        return self._alone.get(key, b"")

    def check(self, keys: Sequence[str]) -> bool:
        client = self._live()
        return client.check(list(keys)) if client is not None else True

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Returns when all keys are there, or as soon as the generation has broken; DistStoreError after `timeout`."""
        limit = self._timeout if timeout is None else timeout
        deadline_s = time.monotonic() + limit.total_seconds()
        pause_s = _PAUSE_S
        while (client := self._live()) is not None and not client.check(list(keys)):
            if time.monotonic() > deadline_s:
                raise dist.DistStoreError(f"wait timeout after {limit.total_seconds():.1f} s, keys: {', '.join(keys)}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def delete_key(self, key: str) -> bool:
        client = self._live()
        return client.delete_key(key) if client is not None else self._alone.pop(key, None) is not None

    def num_keys(self) -> int:
        client = self._live()
        return client.num_keys() if client is not None else len(self._alone)

    def append(self, key: str, value: str | bytes) -> None:
        client = self._live()
        if client is not None:
            client.append(key, value)  # type: ignore[attr-defined]
        else:
            self._alone[key] = self._alone.get(key, b"") + _bytes(value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def has_extended_api(self) -> bool:
        return True

    # How C++ spells two of the above.
    deleteKey = delete_key
    getNumKeys = num_keys


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
