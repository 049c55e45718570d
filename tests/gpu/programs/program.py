"""What every program of this folder does at its ends: it says what it lacks, or that its answer is right.

One JSON line on stdout: {"ok": …}, or {"skip": the reason, by name}. An answer that is wrong, or an error, is a
traceback and a status that is not 0.
"""

import json
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn


def needed(*modules: str) -> Any:
    """The first of these modules, all imported; ends the program, by name, where one is not there."""
    for name in modules:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            skip(f"no module {error.name}")
    return sys.modules[modules[0]]


def skip(reason: str) -> NoReturn:
    print(json.dumps({"skip": reason}), flush=True)
    sys.exit(0)


def right(answer: bool, package: str) -> None:
    """The last thing that a program says. `package`: what it tried, as installed."""
    try:
        tried = f"{package} {version(package)}"
    except PackageNotFoundError:
        tried = package
    print(json.dumps({"ok": bool(answer), "tried": tried}), flush=True)
    sys.exit(0 if answer else "a wrong answer")
