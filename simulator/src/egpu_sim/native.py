"""Where the simulator's native libraries and programs are."""

from typing import Final

from egpu_base.native import Artefacts

_ARTEFACTS: Final = Artefacts("egpu_sim", sources="simulator/native", build="build/simulator")
directories = _ARTEFACTS.directories
search_path = _ARTEFACTS.search_path
path = _ARTEFACTS.path
