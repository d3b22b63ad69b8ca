"""Health readings of this machine's NVIDIA GPUs through NVML (the extra `nvml`); the worst device speaks for the node.

They are read in a thread of their own: a sick driver may keep a call for minutes, and the heartbeats must not wait for it.
"""

import contextlib
import importlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from deadpool.proto.messages import Reading

_PERIOD_S = 5.0


class GpuSource(Protocol):
    """Where readings come from."""

    def read(self) -> list[Mapping[str, float]]:
        """Returns name -> value for each device; what a device does not know is left out. Blocks."""


class Gpus:
    """`readings` are as old as the last round at most; empty without a source."""

    def __init__(self, source: GpuSource | None) -> None:
        self.readings: tuple[Reading, ...] = ()
        self._source = source
        self._closed = threading.Event()

    def start(self) -> None:
        if self._source is not None:
            threading.Thread(target=self._watch, args=(self._source,), name="deadpool-gpus", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _watch(self, source: GpuSource) -> None:
        while not self._closed.is_set():
            self.readings = worst(source.read())
            self._closed.wait(_PERIOD_S)


def worst(devices: list[Mapping[str, float]]) -> tuple[Reading, ...]:
    """Returns, for each reading, the highest value of all devices: every one of them is the worse the higher it is."""
    names = sorted({name for device in devices for name in device})
    return tuple(Reading(name=name, value=max(device[name] for device in devices if name in device)) for name in names)


def open_nvml() -> "Nvml | None":
    """Returns the source, None where the extra or the driver is missing."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        return Nvml(nvml)
    except nvml.NVMLError:
        return None


class Nvml:
    """`nvml`: the module pynvml, or what looks like it."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        self._xid = 0.0  # the newest critical one of any device
        self._events: Any = None
        with contextlib.suppress(nvml.NVMLError):
            events = nvml.nvmlEventSetCreate()
            for handle in self._handles:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            self._events = events

    def read(self) -> list[Mapping[str, float]]:
        self._hear_xids()
        return [{"gpu_xid": self._xid, "gpu_lost": 0.0, **self._device(handle)} for handle in self._handles]

    def _hear_xids(self) -> None:
        nvml = self._nvml
        with contextlib.suppress(nvml.NVMLError):  # among them the timeout: there is none
            while self._events is not None:
                self._xid = float(nvml.nvmlEventSetWait_v2(self._events, 0).eventData)

    def _device(self, handle: Any) -> dict[str, float]:
        """Asks one thing after the other; a device that is lost answers nothing else."""
        found: dict[str, float] = {}
        for ask in (self._ecc, self._rows, self._heat, self._links, self._use):
            try:
                found.update(ask(handle))
            except self._nvml.NVMLError as error:
                if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                    return {"gpu_lost": 1.0}
        return found

    def _ecc(self, handle: Any) -> Iterator[tuple[str, float]]:
        nvml = self._nvml
        count = nvml.nvmlDeviceGetTotalEccErrors(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        yield "gpu_ecc_uncorrected", float(count)

    def _rows(self, handle: Any) -> Iterator[tuple[str, float]]:
        correctable, uncorrectable, pending, failed = self._nvml.nvmlDeviceGetRemappedRows(handle)
        yield "gpu_rows_remapped", float(correctable + uncorrectable)
        yield "gpu_remap_pending", float(pending)
        yield "gpu_remap_failed", float(failed)

    def _heat(self, handle: Any) -> Iterator[tuple[str, float]]:
        nvml = self._nvml
        yield "gpu_temperature_c", float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        yield "gpu_thermal_slowdown", float(bool(reasons & nvml.nvmlClocksThrottleReasonHwThermalSlowdown))

    def _links(self, handle: Any) -> Iterator[tuple[str, float]]:
        nvml, errors, links = self._nvml, 0, 0
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            with contextlib.suppress(nvml.NVMLError):  # no such link
                errors += nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, nvml.NVML_NVLINK_ERROR_DL_RECOVERY)
                links += 1
        if links:
            yield "gpu_nvlink_errors", float(errors)

    def _use(self, handle: Any) -> Iterator[tuple[str, float]]:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        yield "gpu_memory_share", memory.used / memory.total
        yield "gpu_busy_share", self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
