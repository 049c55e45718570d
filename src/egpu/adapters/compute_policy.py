"""A card's compute policy, set by `nvidia-smi compute-policy`: NVML has no public function for it.

On a simulated machine the program is our own small nvidia-smi, over the simulated NVML.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from egpu.adapters import native
from egpu.core.provisioners.timeslice import LENGTHS
from egpu.errors import NotSupported

PROGRAM = "nvidia-smi"
TIMEOUT_SECONDS = 30.0


def set_time_slice(uuid: str, length: str, nvml_library: Path | None = None) -> None:
    """How long a program keeps the card `uuid` while others wait for it; `length` is one of LENGTHS. Blocks.

    `nvml_library` is the simulated machine's, if it is one.

    Raises:
        NotSupported: there is no nvidia-smi, or it refuses: the card is too old, or this process may not.
    """
    environment = dict(os.environ)
    if nvml_library is None:
        program = shutil.which(PROGRAM)
    else:
        program = str(native.path(f"tools/{PROGRAM}"))
        environment["LD_LIBRARY_PATH"] = str(nvml_library.parent)
    if program is None:
        raise NotSupported(f"time slices are set by {PROGRAM}, which this node has not: it comes with NVIDIA's driver")
    command = [program, "compute-policy", "-i", uuid, f"--set-timeslice={LENGTHS.index(length)}"]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotSupported(f"{PROGRAM} does not set time slices of {uuid}: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NotSupported(f"{PROGRAM} does not set time slices of {uuid}: {said[-1] if said else done.returncode}")
