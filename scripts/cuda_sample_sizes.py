"""Make the problems of NVIDIA's CUDA samples small enough for a card that a processor simulates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

ARGUMENTS: Final[Mapping[str, Sequence[str]]] = {
    "FDTD3d": ("--dimx=32", "--dimy=32", "--dimz=16", "--radius=4", "--timesteps=2"),
    "SobolQRNG": ("--vectors=1000", "--dimensions=10"),
    "UnifiedMemoryPerf": ("-kernel-iterations=1",),
    "eigenvalues": ("--matrix-size=64", "--iters-timing=1"),
    "globalToShmemAsyncCopy": ("wA=64", "hA=64", "wB=64", "hB=64"),
    "matrixMul": ("-wA=64", "-hA=64", "-wB=64", "-hB=64"),
    "matrixMulCUBLAS": ("-sizemult=1",),
    "radixSortThrust": ("--n=4096", "--iterations=2"),
    "reduction": ("--n=4096",),
    "reductionMultiBlockCG": ("--n=65536",),
}
"""Arguments of samples that take the size of their problem."""

TILES: Final = {"M_TILES": 16, "N_TILES": 16, "K_TILES": 16, "CPU_DEBUG": 1}
"""Of matrices for tensor cores. Samples with `CPU_DEBUG` compare their results with the processor's."""

CONSTANTS: Final[Mapping[str, Mapping[str, int]]] = {
    "BlackScholes": {"OPT_N": 40000, "NUM_ITERATIONS": 2},
    "HSOpticalFlow": {"nSolverIters": 5, "nWarpIters": 1},
    "MonteCarloMultiGPU": {"nOptions": 16, "PATH_N": 8192},
    "NV12toBGRandResize": {"TEST_LOOP": 1, "batch": 1},
    "StreamPriorities": {"TOTAL_SIZE": 1 << 20, "EACH_SIZE": 1 << 19},
    "UnifiedMemoryPerf": {"maxSampleSizeInMb": 1},
    "alignedTypes": {"MEM_SIZE": 500000, "NUM_ITERATIONS": 2},
    "bf16TensorCoreGemm": TILES,
    "binomialOptions": {"NUM_STEPS": 256, "MAX_OPTIONS": 32},
    "convolutionFFT2D": {"dataH": 200, "dataW": 200},
    "convolutionSeparable": {"imageW": 384, "imageH": 384, "iterations": 2},
    "convolutionTexture": {"imageW": 384, "imageH": 192, "iterations": 2},
    "cudaTensorCoreGemm": TILES,
    "dmmaTensorCoreGemm": TILES,
    "fastWalshTransform": {"log2Data": 16},
    "histogram": {"byteCount": 1 << 20, "numRuns": 1},
    "immaTensorCoreGemm": TILES,
    "interval": {"NUM_RUNS": 1, "GRID_SIZE": 16},
    "jacobiCudaGraphs": {"N_ROWS": 128},
    "mergeSort": {"N": 65536},
    "quasirandomGenerator": {"N": 16384},
    "reductionMultiBlockCG": {"testIterations": 2},
    "scan": {"N": 262144, "iCycles": 1},
    "simpleMultiCopy": {"N": 1 << 16, "nreps": 4},
    "simplePitchLinearTexture": {"NUM_REPS": 2, "nx": 256, "ny": 256},
    "simpleStreams": {"n": 1 << 18, "nreps": 1},
    "sortingNetworks": {"N": 16384},
    "tf32TensorCoreGemm": TILES,
}
"""Constants of samples that take no size, by name, as they are in our copy."""


def sizes(name: str) -> list[str]:
    """Return how a sample's problem differs from its own, in words of its command line and its source."""
    return [*ARGUMENTS.get(name, ()), *(f"{constant}={value}" for constant, value in CONSTANTS.get(name, {}).items())]


def shrink(sources: Iterable[Path], constants: Mapping[str, int]) -> list[str]:
    """Give constants other values in these files; return the names that none of the files defines."""
    missing = dict(constants)
    for source in sources:
        text = source.read_text(errors="surrogateescape")
        for name, value in constants.items():
            text, count = re.subn(_definition(name), rf"\g<1>{value}", text, flags=re.MULTILINE)
            if count:
                missing.pop(name, None)
        source.write_text(text, errors="surrogateescape")
    return list(missing)


def _definition(name: str) -> str:
    """Return a pattern of what gives a constant its value: a macro, or an assignment of a number."""
    return rf"(^#define +{name} +|\b{name} *= *)\(?\d[^;\n]*?(?=;| *//|$)"
