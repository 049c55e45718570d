"""Array types of the core. Shapes are (nodes, cards) unless a docstring says otherwise."""

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
