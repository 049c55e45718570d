"""NVIDIA's own Python package for NVML (nvidia-ml-py), which has no types: what leaves our modules is converted."""

from typing import Any, cast

import pynvml as _pynvml  # pyright: ignore[reportMissingTypeStubs] - the package ships none

nvml: Any = cast(Any, _pynvml)
