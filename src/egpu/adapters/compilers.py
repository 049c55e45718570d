"""What programs that compile kernels while they run find in their environment, so that their cards can run them.

A simulated card runs PTX alone. These compilers make PTX first, and machine code of it in the program: numba-cuda and
JAX have plug-ins of ours beside this file, and Triton and JAX run a program, `ptxas`, in whose place there is another
for simulated cards (`native/ptxas`).
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from egpu.adapters import native

PLUGINS: Final = Path(__file__).parent / "compiler_plugins"
"""Alone in their folder, which a command that need not have our packages gets on its PYTHONPATH."""
NUMBA_MANAGER: Final = "NUMBA_CUDA_MEMORY_MANAGER"
NUMBA_PLUGIN: Final = "egpu_numba"
_AUTOTUNE: Final = "--xla_gpu_autotune_level"


def plugged(present: Mapping[str, str]) -> dict[str, str]:
    """What is added to the environment `present` of programs whose cards are in another process or machine."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(PLUGINS), present.get("PYTHONPATH"))))}


def giving_ptx(present: Mapping[str, str]) -> dict[str, str]:
    """What is added to the environment `present` where the cards are simulated. What it says already is left as it is.

    XLA and PyTorch measure kernels to choose among them, which means nothing on a simulated card and needs compiled
    ones.

    Raises:
        NativeMissing: `ptxas` was not built.
    """
    assembler = str(native.path("tools/ptxas"))
    xla = present.get("XLA_FLAGS", "")
    given = {
        "PATH": native.search_path(present.get("PATH", os.defpath)),
        "TRITON_PTXAS_PATH": assembler,
        "TRITON_PTXAS_BLACKWELL_PATH": assembler,
        "TORCHINDUCTOR_SHAPE_PADDING": "0",
        NUMBA_MANAGER: NUMBA_PLUGIN,
        "EGPU_GIVE_PTX": "1",
    }
    own = {name: present[name] for name in given if name in present and name != "PATH"}
    flags = xla if _AUTOTUNE in xla else f"{xla} {_AUTOTUNE}=0".strip()
    return plugged(present) | given | own | {"XLA_FLAGS": flags}
