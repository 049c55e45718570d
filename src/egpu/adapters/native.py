"""The product's native libraries and programs."""

from typing import Final

from egpu_base.native import Artefacts

_ARTEFACTS: Final = Artefacts("egpu", sources="native", build="build/native")
directories = _ARTEFACTS.directories
search_path = _ARTEFACTS.search_path
path = _ARTEFACTS.path
