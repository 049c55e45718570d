"""The state of the hardware of cards, by NVML, for nodes without DCGM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from egpu.adapters.cards import nvml as adapter
from egpu.adapters.cards.nvml import NvmlInventory, quiet


@dataclass(frozen=True, kw_only=True)
class CardHardware:
    """A card's present state; None where NVML does not say. `busy_ratio`: the part of its last sampling period in which
    any kernel ran, 0 to 1."""

    temperature_celsius: float | None
    power_watts: float | None
    busy_ratio: float | None
    memory_used_bytes: int | None


def read_hardware(inventory: NvmlInventory) -> dict[str, CardHardware]:
    """Return each card of the last reading, by UUID. Raises NativeMissing, Unavailable."""
    return inventory.ask(_hardware)


def _hardware(handle: Any) -> CardHardware:
    """Convert NVML's milliwatts and percent."""
    nvml = adapter.nvml
    power = quiet(nvml.nvmlDeviceGetPowerUsage, handle)
    rates = quiet(nvml.nvmlDeviceGetUtilizationRates, handle)
    memory = quiet(nvml.nvmlDeviceGetMemoryInfo, handle)
    return CardHardware(
        temperature_celsius=quiet(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        power_watts=None if power is None else int(power) / 1000,
        busy_ratio=None if rates is None else int(rates.gpu) / 100,
        memory_used_bytes=None if memory is None else int(memory.used),
    )
