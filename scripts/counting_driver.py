"""A CUDA driver that counts the calls of each of its functions, and makes them in another driver.

`make(real, folder)` compiles it. Each process that loads it with CALLS_FOLDER in its environment writes a file there,
which `read(folder)` adds up. Counts are in the file from the first call on, so they stay when a process is killed.
"""

import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Final

FOLDER_VARIABLE: Final = "CALLS_FOLDER"
NAME: Final = "libcuda.so.1"
KERNELS: Final = "kernels"
"""The entry of different kernels that were launched or loaded, beside the functions."""
_SOURCE: Final = Path(__file__).with_suffix(".c")
_NAMES: Final = "names.txt"
_BY_HAND: Final = (
    "cuGetProcAddress", "cuGetProcAddress_v2", "cuKernelGetFunction", "cuLaunchKernel", "cuLaunchKernel_ptsz",
    "cuLaunchKernelEx", "cuLaunchKernelEx_ptsz",
)  # fmt: skip
"""Functions that return other functions (the counting ones, here), and those that load or launch a kernel."""

# Arguments stay where they are: in registers and on the stack.
_FUNCTION: Final = (
    '".globl {name}\\n.type {name}, @function\\n{name}:\\n'
    'movq counts(%rip), %r11\\nlock incq {offset}(%r11)\\njmp *real+{offset}(%rip)\\n"\n'
)


def make(real: Path, folder: Path) -> Path:
    """Compile it into `folder`; return its path. `real`: the driver that makes the calls."""
    done = subprocess.run(["nm", "-D", "--defined-only", real], capture_output=True, text=True, check=True)
    symbols = [line.split() for line in done.stdout.splitlines()]
    offsets = {name.partition("@")[0]: int(value, 16) for value, kind, name in symbols if kind in "TW"}
    names = sorted(offsets)
    functions = [_FUNCTION.format(name=name, offset=8 * i) for i, name in enumerate(names) if name not in _BY_HAND]
    header = [
        f"#define COUNT {len(names)}",
        *(f"#define AT_{name} {names.index(name)}" for name in _BY_HAND),
        f"#define OFFSETS {', '.join(str(offsets[name]) for name in names)}",
        f"#define FUNCTIONS {', '.join(f'(void *){name}' for name in names)}",
        *(f"extern void {name}(void);" for name in names if name not in _BY_HAND),
        f"__asm__({''.join(functions)});",
    ]
    (folder / "counted.h").write_text("\n".join([*header, ""]))
    (folder / _NAMES).write_text("\n".join(names))
    flags = ["-O1", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-I", folder, f'-DDRIVER="{real}"']
    subprocess.run([os.environ.get("CC", "cc"), *flags, _SOURCE, "-o", folder / NAME, "-ldl"], check=True)
    return folder / NAME


def read(folder: Path, calls: Path) -> Counter[str]:
    """Return the calls by function that processes wrote into `calls`. `folder`: where the driver was made."""
    names = [*(folder / _NAMES).read_text().split(), KERNELS]
    total: Counter[str] = Counter()
    for file in calls.glob("*.calls"):
        data = memoryview(file.read_bytes()).cast("Q")
        total.update({name: count for name, count in zip(names, data, strict=True) if count})
    return total
