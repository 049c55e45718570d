"""Where a card is in its machine, and by which driver it runs: facts for whoever chooses between devices."""

import re
from pathlib import Path
from typing import Final

from egpu.adapters.cards.nvml import quiet
from egpu.adapters.cards.package import nvml

SYSFS: Final = Path("/sys/bus/pci/devices")
_ROOT: Final = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")


def pcie_root(bus_id: str, *, sysfs: Path = SYSFS) -> str:
    """Return the root complex of a PCI address as NVML has it (00000000:3B:00.0), such as pci0000:3a; empty if the
    kernel does not know the device."""
    domain, colon, rest = bus_id.lower().partition(":")
    place = (sysfs / f"{domain[-4:]}{colon}{rest}").resolve()
    return next((part for part in place.parts if _ROOT.fullmatch(part)), "")


def driver_version() -> str:
    """Return the version of NVIDIA's driver; empty before NVML is loaded."""
    found = quiet(nvml.nvmlSystemGetDriverVersion)
    return found.decode() if isinstance(found, bytes) else str(found or "")
