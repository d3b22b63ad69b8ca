"""NVML's answers as readings, with a fake of the module pynvml."""

from types import SimpleNamespace
from typing import Any

from launching import until

from deadpool.agent.health.gpus import Gpus, Nvml, worst
from deadpool.proto.messages import Reading


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class FakeNvml:
    """Two devices; `lost` names those that have fallen off the bus, `xids` come one after the other."""

    NVMLError = NVMLError
    NVML_ERROR_GPU_IS_LOST, NVML_ERROR_TIMEOUT, NVML_ERROR_NOT_SUPPORTED = 15, 10, 3
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, NVML_TEMPERATURE_GPU = 1, 0, 0
    NVML_NVLINK_MAX_LINKS, NVML_NVLINK_ERROR_DL_RECOVERY = 18, 1
    nvmlClocksThrottleReasonHwThermalSlowdown, nvmlEventTypeXidCriticalError = 0x40, 8

    def __init__(self) -> None:
        self.lost: set[int] = set()
        self.xids: list[int] = []
        self.ecc = [0, 0]
        self.reasons = [0, 0x4]

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlDeviceRegisterEvents(self, handle: int, kind: int, events: str) -> None:
        assert (kind, events) == (8, "events")

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:
        assert timeout_ms == 0
        if not self.xids:
            raise NVMLError(self.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(eventData=self.xids.pop(0))

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        self._answer(handle)
        return self.ecc[handle]

    def nvmlDeviceGetRemappedRows(self, handle: int) -> tuple[int, int, bool, bool]:
        self._answer(handle)
        return (1, 2, handle == 1, False)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        self._answer(handle)
        return 60 + handle

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return self.reasons[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=30 * (1 + handle), total=120)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=75 + handle)

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: int, link: int, counter: int) -> int:
        if link > 1:
            raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return 3

    def _answer(self, handle: int) -> None:
        if handle in self.lost:
            raise NVMLError(self.NVML_ERROR_GPU_IS_LOST)


def _read(fake: FakeNvml) -> dict[str, float]:
    return {each.name: each.value for each in worst(Nvml(fake).read())}


def test_the_worst_device_speaks_for_the_node() -> None:
    fake = FakeNvml()
    fake.ecc[1], fake.reasons[0] = 4, 0x40
    assert _read(fake) == {
        "gpu_busy_share": 0.76,
        "gpu_ecc_uncorrected": 4.0,
        "gpu_lost": 0.0,
        "gpu_memory_share": 0.5,
        "gpu_nvlink_errors": 6.0,
        "gpu_remap_failed": 0.0,
        "gpu_remap_pending": 1.0,
        "gpu_rows_remapped": 3.0,
        "gpu_temperature_c": 61.0,
        "gpu_thermal_slowdown": 1.0,
        "gpu_xid": 0.0,
    }


def test_a_lost_device_is_said_to_be_lost_and_nothing_else() -> None:
    fake = FakeNvml()
    fake.lost = {0, 1}
    assert _read(fake) == {"gpu_lost": 1.0, "gpu_xid": 0.0}


def test_the_newest_xid_is_kept() -> None:
    fake = FakeNvml()
    nvml = Nvml(fake)
    fake.xids = [31, 79]
    assert nvml.read()[0]["gpu_xid"] == 79.0
    assert nvml.read()[0]["gpu_xid"] == 79.0


def test_they_are_read_beside_the_heartbeats() -> None:
    gpus = Gpus(Nvml(FakeNvml()))
    gpus.start()
    until(lambda: Reading(name="gpu_temperature_c", value=61.0) in gpus.readings, 50, "they have been read once")
    gpus.close()


def test_without_nvml_there_are_none() -> None:
    gpus = Gpus(None)
    gpus.start()
    assert gpus.readings == ()
