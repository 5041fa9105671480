"""Waits until dead workers' GPU memory is free, and reads load, memory and temperature of GPUs, by
the driver's library alone.

``torch.cuda`` would cost half a gigabyte on every device. The numbers are those of whole devices,
because the driver does not show a container the processes of other namespaces.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping

from launcher.contract.clock import Clock
from launcher.contract.reports.vitals import GpuVitals
from launcher.contract.waits import POLL_S

DRIVERS_BYTES = 256 << 20
"""Memory in use, beyond that before the first workers, which the driver keeps for itself."""


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


UsedBytes = Callable[[], Mapping[str, int]]


def open_devices(visible: str | None) -> UsedBytes | None:
    """A function that reads the used bytes of this node's devices; None without device or driver.

    ``visible`` is CUDA_VISIBLE_DEVICES: indices or UUIDs. If it is not set, all devices that the
    driver shows are the node's: a container sees only its own, numbered from 0.
    """
    if (opened := _open(visible)) is None:
        return None
    nvml, handles = opened
    return lambda: {name: _memory(nvml, handle).used for name, handle in handles.items()}


def open_gauges(visible: str | None) -> Callable[[], tuple[GpuVitals, ...]]:
    """A function that reads this node's devices, if any; ``visible`` as for ``open_devices``."""
    if (opened := _open(visible)) is None:
        return tuple
    nvml, handles = opened
    return lambda: tuple(_gauge(nvml, name, handle) for name, handle in handles.items())


def _open(visible: str | None) -> tuple[ctypes.CDLL, dict[str, ctypes.c_void_p]] | None:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    count = ctypes.c_uint()
    if visible is None:
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        visible = ",".join(map(str, range(count.value)))
    names = visible.replace(" ", "").split(",")
    handles = {name: handle for name in names if name and (handle := _handle(nvml, name))}
    return (nvml, handles) if handles else None


def _handle(nvml: ctypes.CDLL, name: str) -> ctypes.c_void_p | None:
    handle = ctypes.c_void_p()
    if name.isdigit():
        failed = nvml.nvmlDeviceGetHandleByIndex_v2(int(name), ctypes.byref(handle))
    else:
        failed = nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
    return None if failed else handle


def _memory(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> _Memory:
    """All zeros if the driver does not say."""
    memory = _Memory()
    nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    return memory


def _gauge(nvml: ctypes.CDLL, name: str, handle: ctypes.c_void_p) -> GpuVitals:
    busy, temperature, memory = _Utilization(), ctypes.c_uint(), _memory(nvml, handle)
    model = ctypes.create_string_buffer(96)  # NVML_DEVICE_NAME_V2_BUFFER_SIZE
    nvml.nvmlDeviceGetName(handle, model, len(model))
    nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy))
    nvml.nvmlDeviceGetTemperature(handle, 0, ctypes.byref(temperature))  # 0: of the chip
    return GpuVitals(
        name=name,
        model=model.value.decode(errors="replace"),
        share=busy.gpu / 100,
        memory_bytes=int(memory.used),
        memory_limit_bytes=int(memory.total),
        temperature_c=int(temperature.value),
    )


class GpuGate:
    """Remembers the memory in use before the first workers, and waits until no more is in use."""

    def __init__(self, used_bytes: UsedBytes | None, limit_s: float, clock: Clock) -> None:
        self._used_bytes, self._limit_s, self._clock = used_bytes, limit_s, clock
        self._before = used_bytes() if used_bytes else {}

    def wait(self) -> float:
        """Blocks until the memory is free; returns the seconds. Raises GpuBusyError."""
        if self._used_bytes is None:
            return 0.0
        start = self._clock.monotonic()
        while busy := find_busy(self._before, self._used_bytes()):
            if self._clock.monotonic() - start > self._limit_s:
                devices = ", ".join(
                    f"device {name}: {used >> 20} MiB" for name, used in busy.items()
                )
                raise GpuBusyError(
                    f"GPU memory is still in use {self._limit_s:.0f} s after the workers ended "
                    f"({devices}); see nvidia-smi for what holds it"
                )
            self._clock.sleep(POLL_S)
        return self._clock.monotonic() - start


class GpuBusyError(Exception):
    """GPU memory did not become free in time; ``str`` says how much on which device."""


def find_busy(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Devices with more memory in use than before, and how many bytes more."""
    more = {name: used - before.get(name, 0) for name, used in now.items()}
    return {name: extra for name, extra in more.items() if extra > DRIVERS_BYTES}
