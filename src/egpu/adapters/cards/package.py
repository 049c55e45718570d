"""NVIDIA's own Python package for NVML (nvidia-ml-py). It has no types, so our modules convert its values."""

from typing import Any, cast

import pynvml as _pynvml  # pyright: ignore[reportMissingTypeStubs] - the package ships none

nvml: Any = cast(Any, _pynvml)
