"""Steps of a program, each told as a JSON line when it begins and when it ends."""

import json
from collections.abc import Callable


def step(name: str, work: Callable[[], object]) -> bool:
    """Do it and tell of it; return whether it raised nothing."""
    print(json.dumps({"begins": name}), flush=True)
    said: dict[str, object] = {"step": name, "ok": True}
    try:
        work()
    except Exception as error:
        said |= {"ok": False, "error": f"{type(error).__name__}: {error}"}
    print(json.dumps(said), flush=True)
    return bool(said["ok"])
