"""Settings in the environment of programs that compile kernels at run time, so that their cards can run these.

A simulated card runs only PTX. Compilers make PTX first, and turn it into machine code inside the program. For
numba-cuda and JAX, plug-ins beside this file stop at PTX. Triton and JAX run a program, `ptxas`; simulated cards have
one of their own (`simulator/native/ptxas`). A third plug-in, for all of Python, keeps packages on the loaded libraries
of CUDA.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

PLUGINS: Final = Path(__file__).parent / "compiler_plugins"
"""The plug-ins' own folder: a command that may lack our packages gets it on its PYTHONPATH."""
NUMBA_MANAGER: Final = "NUMBA_CUDA_MEMORY_MANAGER"
NUMBA_PLUGIN: Final = "egpu_numba"
_AUTOTUNE: Final = "--xla_gpu_autotune_level"


def plugged(present: Mapping[str, str]) -> dict[str, str]:
    """Return what to add to the environment `present` of programs whose cards are in another process or machine."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(PLUGINS), present.get("PYTHONPATH"))))}


def giving_ptx(present: Mapping[str, str], *, assembler: Path, search_path: Callable[[str], str]) -> dict[str, str]:
    """Return what to add to the environment `present` of programs whose cards are simulated.

    `assembler` is the `ptxas` of simulated cards; `search_path` puts its folder before a PATH. Variables already in
    `present` stay. XLA and PyTorch measure kernels to choose among them: on a simulated card that is meaningless, and
    it needs compiled kernels.
    """
    xla = present.get("XLA_FLAGS", "")
    given = {
        "PATH": search_path(present.get("PATH", os.defpath)),
        "TRITON_PTXAS_PATH": str(assembler),
        "TRITON_PTXAS_BLACKWELL_PATH": str(assembler),
        "TORCHINDUCTOR_SHAPE_PADDING": "0",
        NUMBA_MANAGER: NUMBA_PLUGIN,
        "EGPU_GIVE_PTX": "1",
    }
    own = {name: present[name] for name in given if name in present and name != "PATH"}
    flags = xla if _AUTOTUNE in xla else f"{xla} {_AUTOTUNE}=0".strip()
    return plugged(present) | given | own | {"XLA_FLAGS": flags}
