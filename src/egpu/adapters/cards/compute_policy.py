"""A card's compute policy, set by `nvidia-smi compute-policy`: NVML has no public function for it.

On a simulated machine the program is our own small nvidia-smi, over the simulated NVML.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from egpu.core.provisioners.timeslice import LENGTHS
from egpu_base.errors import NotSupported

PROGRAM = "nvidia-smi"
TIMEOUT_SECONDS = 30.0


def set_time_slice(uuid: str, length: str, nvml_library: Path | None = None) -> None:
    """Set how long a program keeps the card `uuid` while others wait; `length` is one of LENGTHS. Blocks.

    With `nvml_library` the program is the one beside it, as simulated machines have it.

    Raises:
        NotSupported: nvidia-smi is missing, or refuses: the card is too old, or we may not.
    """
    environment = dict(os.environ)
    program = shutil.which(PROGRAM, path=None if nvml_library is None else str(nvml_library.parent))
    if nvml_library is not None:
        environment["LD_LIBRARY_PATH"] = str(nvml_library.parent)
    if program is None:
        raise NotSupported(f"time slices need {PROGRAM}, which this node does not have: install NVIDIA's driver")
    command = [program, "compute-policy", "-i", uuid, f"--set-timeslice={LENGTHS.index(length)}"]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotSupported(f"{PROGRAM} cannot set time slices of {uuid}: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NotSupported(f"{PROGRAM} cannot set time slices of {uuid}: {said[-1] if said else done.returncode}")
