"""Try Elastic GPU on a real card, step by step: trial.py [--budget SECONDS] [STEP…]

--list lists the steps. Without a step, the main run is done. trial.sh sets up what the steps need, and starts this.
Each step is independent and has its own time limit. When it ends, in whatever way, it writes one JSON line to
$OUT/results.jsonl: {"step", "status": ok | fail | timeout | skipped | error, "seconds", and the findings}.
$OUT/log.txt has the output of all programs. The budget covers all steps; those that no longer fit are skipped.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
REPO = Path(os.environ.get("TRIAL_REPO", HERE.parent))
SOURCES = [str(REPO / each) for each in ("base/src", "simulator/src", "src")]
OUT = Path(os.environ.get("OUT") or tempfile.mkdtemp(prefix="egpu-trial-"))
SITE = os.environ.get("TRIAL_SITE", "/tmp/egpu-trial/site")
BIN = Path(os.environ.get("TRIAL_BIN", HERE / "bin"))
PYTHON = os.environ.get("TRIAL_PYTHON", sys.executable)  # of programs that use a GPU: the one that has PyTorch
WORK = Path(os.environ.get("TRIAL_WORK", "/tmp/egpu-trial"))
HOME = WORK / "home"
STATES = f"egpu-{zlib.crc32(bytes(WORK)):08x}-"  # of our folders in /tmp: sockets need short paths
os.environ["TRIAL_OF"] = str(WORK)  # all that we start inherits it
BENCH = str(BIN / "bench")
SAMPLES = ("vectoradd", "saxpy", "reduce", "matmul")
GIB = 1 << 30
ENDS = 0.0
BEGAN = time.monotonic()  # as the kernel's log counts
LAST, RESERVED = "kernel-log", 8.0  # it is told in any case what the kernel had to say


class TimedOut(Exception):
    pass


# ---- running programs ----

_deadline = 0.0
_running: set[subprocess.Popen] = set()


def left(seconds: float) -> float:
    return max(1.0, min(seconds, _deadline - time.monotonic()))


def log(text: str) -> None:
    with (OUT / "log.txt").open("a") as file:
        file.write(text.rstrip() + "\n")


def egpu(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "egpu", *map(str, arguments)]


def in_slice(core: int, memory: str, *command: object) -> list[str]:
    """A command in a slice of the card; its own Python finds none of our packages."""
    return egpu("run", "--core", core, "--memory", memory, "-o", "json", "--", "env", "-u", "PYTHONPATH", *command)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


BROKER = f"127.0.0.1:{free_port()}"
KEEP_PLUGINS = (
    'PYTHONPATH="${PYTHONPATH%%:*}" exec "$@"'  # egpu run puts the folder of its plug-ins first; what follows is ours
)
FAR = """
import egpu.adapters.pool.bridge as bridge
bridge._connectable = lambda path: False  # as on another machine
from egpu.cli import main
main()
"""


def in_pool(core: int, memory: str, *command: object, far: bool = False) -> list[str]:
    """A command on a lease of the pool; `far`: through TCP."""
    options = [
        "run",
        "--pool",
        BROKER,
        "--core",
        core,
        "--memory",
        memory,
        "--wait",
        10,
        "--",
        "sh",
        "-c",
        KEEP_PLUGINS,
        "sh",
        *command,
    ]
    return [sys.executable, "-c", FAR, *map(str, options)] if far else egpu(*options)


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(p for p in (SITE, *SOURCES, os.environ.get("PYTHONPATH", "")) if p)
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "HOME": str(HOME), **more}


def plain(**more: str) -> dict[str, str]:
    """For a program that is not ours, outside a slice."""
    return {
        **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        "PYTHONUNBUFFERED": "1",
        "HOME": str(HOME),
        **more,
    }


def start(command: list[str], env: dict[str, str] | None = None) -> subprocess.Popen:
    process = subprocess.Popen(
        list(map(str, command)),
        env=env or environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        cwd=str(WORK),
    )
    _running.add(process)
    return process


def kill(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def finish(process: subprocess.Popen, seconds: float, *, raises: bool = True) -> dict:
    """Wait; {"rc", "out", "err", "said": the last JSON line of stdout, "summary": that of stderr, "seconds"}."""
    began, late = time.monotonic(), False
    try:
        out, err = process.communicate(timeout=left(seconds))
    except subprocess.TimeoutExpired:
        late = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            process.send_signal(signal.SIGTERM)  # `egpu run` gives its slice or lease back
        try:
            out, err = process.communicate(timeout=2)
        except subprocess.TimeoutExpired:
            kill(process)
            try:
                out, err = process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                out, err = "", "killed, and its pipes stayed open"
    kill(process)  # what it left in its group
    _running.discard(process)
    command = " ".join(map(str, process.args))
    log(
        f"$ {command[-400:]}\n"
        f"[rc {process.returncode}{', timed out' if late else ''}, {time.monotonic() - began:.1f} s]\n"
        f"{out[-6000:]}\n{err[-5000:]}"
    )
    if late and raises:
        raise TimedOut(f"{command[-160:]}: {(out[-300:] + err[-300:]).strip()}")
    return {
        "rc": process.returncode,
        "out": out,
        "err": err,
        "said": last_json(out),
        "summary": last_json(err),
        "seconds": round(time.monotonic() - began, 2),
        "late": late,
    }


def run(command: list[str], seconds: float = 60, env: dict[str, str] | None = None, *, raises: bool = True) -> dict:
    return finish(start(command, env), seconds, raises=raises)


def together(commands: dict[str, list[str]], seconds: float, env: dict[str, str] | None = None) -> dict[str, dict]:
    """All at once; one that hangs is told as an error of its own."""
    running = {name: start(command, env) for name, command in commands.items()}
    until, found = time.monotonic() + seconds, {}
    for name, process in running.items():
        done = finish(process, max(1.0, until - time.monotonic()), raises=False)
        found[name] = (
            {
                **done,
                "said": done["said"]
                or {"ok": False, "error": f"hangs: {(done['out'][-300:] + done['err'][-500:]).strip()}"},
            }
            if done["late"]
            else done
        )
    return found


def first_line(process: subprocess.Popen, seconds: float = 15) -> str:
    """Return its first line, or "" if there is none in time."""
    ready, _, _ = select.select([process.stdout], [], [], left(seconds))
    return process.stdout.readline() if ready else ""


def last_json(text: str) -> dict:
    for line in reversed(text.strip().splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    return found
    return {}


def brief(done: dict) -> dict:
    """Return its last JSON line, or how it ended."""
    err = "\n".join(
        line for line in done["err"].splitlines() if not line.startswith('{"gpu": ')
    )  # the summary of egpu run
    if done["said"]:
        return done["said"] if done["rc"] == 0 else {**done["said"], "rc": done["rc"], "stderr": ends(err, 700)}
    return {"ok": False, "rc": done["rc"], "out": done["out"].strip()[-400:], "stderr": ends(err, 1600)}


def ends(text: str, most: int) -> str:
    """Return its beginning, which has the cause, and its end."""
    text = text.strip()
    return text if len(text) <= most else f"{text[: most // 2]} […] {text[-most // 2 :]}"


def good(*found: object) -> bool:
    return bool(found) and all(isinstance(one, dict) and one.get("ok") is True for one in found)


def program(name: str, *arguments: object) -> list[str]:
    return [PYTHON, str(PROGRAMS / name), *map(str, arguments)]


def have(module: str) -> bool:
    return (
        run(
            [PYTHON, "-c", f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"],
            30,
            plain(),
        )["rc"]
        == 0
    )


def native(name: str) -> str:
    return str(REPO / "build" / "native" / name)


def site_folders() -> list[str]:
    """Return the folders of NVIDIA's libraries in Python's packages, of the Python that has PyTorch."""
    if "folders" not in _known:
        done = run(
            [
                PYTHON,
                "-c",
                "import glob, json, site; folders = site.getsitepackages(); "
                "print(json.dumps({'f': sorted(p for b in folders for p in glob.glob(b + '/nvidia/*/lib'))}))",
            ],
            20,
            plain(),
        )
        _known["folders"] = done["said"].get("f", [])
    return _known["folders"]


_known: dict[str, Any] = {}

# ---- steps ----

STEPS: dict[str, tuple[str, float, Callable[[], dict]]] = {}


def step(group: str, seconds: float) -> Callable:
    """`group`: main, or more: what only the second command runs, by name."""

    def register(function: Callable[[], dict]) -> Callable[[], dict]:
        STEPS[function.__name__.replace("_", "-")] = (group, seconds, function)
        return function

    return register


@step("main", 20)
def facts() -> dict:
    """The machine: driver, kernel, libraries, versions, and what it allows."""
    done = run(program("probe.py"), 18, plain())
    found = done["said"] or brief(done)
    _known["facts"] = found
    return {"status": "ok" if good(found) else "fail", **found}


@step("main", 75)
def selftest() -> dict:
    """The result of `egpu selftest -o json`."""
    done = run(egpu("selftest", "-o", "json"), 73, raises=False)
    try:
        checks = {one["check"]: one for one in json.loads(done["out"])}
    except ValueError:
        checks = {}
    wrong = [name for name, one in checks.items() if one["state"] in ("wrong", "unseen")]
    return {
        "status": "ok" if checks and not wrong and done["rc"] == 0 else "fail",
        "rc": done["rc"],
        "wrong": wrong,
        "checks": {name: [one["state"], one["found"]] for name, one in checks.items()},
        "stderr": "" if checks else done["err"][-600:],
        "took_s": done["seconds"],
    }


@step("main", 25)
def session_calls() -> dict:
    """System calls of driver, cuBLAS and cuDNN that an executor's session refuses, by number, and whether they go on.

    clone3 does not count, because the C library then uses clone.
    """
    folders = [*site_folders(), "/usr/local/cuda/lib64"]
    paths = [
        next((f"{folder}/{name}" for folder in folders if os.path.exists(f"{folder}/{name}")), "")
        for name in ("libcublas.so.13", "libcudnn.so.9")
    ]
    more = os.pathsep.join([*folders, os.environ.get("LD_LIBRARY_PATH", "")]).strip(os.pathsep)
    done = run([str(BIN / "session_calls"), *[path for path in paths if path]], 23, plain(LD_LIBRARY_PATH=more))
    steps = done["said"].get("steps", [])
    return {
        "status": "ok" if good(done["said"]) else "fail",
        "libraries": paths,
        "refused": {
            one["call"]: rest for one in steps if (rest := {k: v for k, v in one["refused"].items() if k != "435"})
        },
        "failed": {one["call"]: one["result"] for one in steps if one["result"]},
        "said": None if steps else brief(done),
    }


@step("main", 45)
def limits() -> dict:
    """The driver's allocators in slices of 2 GiB, with NVML and nvidia-smi there.

    They must never give more than 2 GiB, and less by a context at the most; pools also by the step in which they grow.
    """
    kinds = ("plain", "async", "vmm", "array")
    done = together({kind: in_slice(20, "2GiB", BENCH, "limit", kind, 64) for kind in kinds}, 30)
    found = {kind: brief(one) for kind, one in done.items()}
    bare = brief(run(program("nvml_view.py"), 12, plain(PYTHONPATH=SITE), raises=False))
    view = brief(
        run(egpu("run", "--core", 20, "--memory", "2GiB", "--", *program("nvml_view.py", 100, 2)), 15, raises=False)
    )
    context = next(
        (
            one["bytes"] - (100 << 20)
            for one in bare.get("compute", [])
            if isinstance(one, dict) and one.get("pid") == bare.get("pid") and one.get("bytes")
        ),
        0,
    )
    short = {kind: round((2 * GIB - one.get("given", 0)) / (1 << 20), 1) for kind, one in found.items()}
    exact = all(
        good(one) and 0 <= 2 * GIB - one["given"] <= context + (64 << 20) and one.get("again") == "CUDA_SUCCESS"
        for one in found.values()
    )
    memory = view.get("memory")
    shown = (
        isinstance(memory, dict)
        and memory["total"] == 2 * GIB
        and memory["used"] >= 100 << 20
        and [p["pid"] for p in view.get("compute", [])] == [view.get("pid")]
    )
    smi = (
        run(
            in_slice(20, "2GiB", "nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader"),
            12,
            raises=False,
        )["out"].strip()
        if shutil.which("nvidia-smi")
        else None
    )
    return {
        "status": "ok" if exact and shown else "fail",
        "short_by_mib": short,
        "context_mib": context >> 20,
        "nvml_slice": view,
        "nvml_bare": bare,
        "nvidia_smi": smi,
        "limits": {kind: {k: v for k, v in one.items() if k not in ("mode", "kind")} for kind, one in found.items()},
    }


# ---- PyTorch, the same steps in every place


def torch_steps(
    wrap: Callable[..., list[str]],
    seconds: float,
    *arguments: object,
    env: dict[str, str] | None = None,
    each: float = 25,
) -> dict[str, dict]:
    """The steps of torch_steps.py, by name.

    After a crash, a hang or an error from which the card does not recover, a new process does the rest.
    """
    found: dict[str, dict] = {}
    until, after = time.monotonic() + seconds, ""
    for _attempt in range(5):
        room = min(until, _deadline) - time.monotonic()
        if room < 4:
            found.setdefault("(rest)", {"ok": False, "error": f"no time left after {after or 'the start'}"})
            break
        done = run(
            wrap(*program("torch_steps.py", "--each", each, *arguments, *(["--after", after] if after else []))),
            room,
            env,
            raises=False,
        )
        begun = ""
        for line in done["out"].splitlines():
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                begun = said.get("begins", begun)
                if "step" in said:
                    found[said.pop("step")] = said
                    begun = ""
        if begun:  # it died, or was ended, in that one
            found[begun] = {
                "ok": False,
                "error": f"{'hangs' if done['rc'] == 1 or done['late'] else 'the process ended'}: status {done['rc']}",
                "stderr": ends(done["err"], 2400),
            }
        if done["rc"] == 0 or done["late"] or not (begun or done["rc"] == 3):
            if done["rc"] != 0 and not found:
                found["(start)"] = {"ok": False, "error": f"status {done['rc']}", "stderr": done["err"].strip()[-1500:]}
            break
        if not found.get("start", {"ok": True}).get("ok"):
            break  # there is no card at all
        after = begun or [name for name in found if not name.startswith("after ")][-1]
    return found


def compared(bare: dict[str, dict], other: dict[str, dict]) -> dict:
    """Return the differences from bare: bits, losses, speed in percent, and the seconds of each step."""
    found: dict[str, object] = {}
    speeds, same, differ, took = {}, [], {}, {}
    for name, one in other.items():
        base = bare.get(name, {})
        for key, value in one.items():
            if key.endswith(("_per_s", "_gb_s")) and base.get(key):
                speeds[key] = round(100 * value / base[key], 1)
        for key in ("digest", "losses"):
            if key in one and key in base:
                if one[key] == base[key]:
                    same.append(f"{name}")
                elif key == "losses":
                    pairs = [(float.fromhex(a), float.fromhex(b)) for a, b in zip(base[key], one[key], strict=False)]
                    differ[name] = {
                        "first_at": next(i for i, (a, b) in enumerate(pairs) if a != b),
                        "most": max(abs(a - b) / max(abs(a), 1e-30) for a, b in pairs),
                    }
                else:
                    differ[name] = "other bits"
        if base.get("ok") and one.get("ok"):
            took[name] = [base.get("s"), one.get("s")]
    found |= {"percent_of_bare": speeds, "same_bits": same, "differ": differ, "seconds_bare_and_here": took}
    return found


def told(found: dict[str, dict]) -> dict:
    failed = {
        name: {k: v for k, v in one.items() if k in ("error", "at", "stderr", "s")}
        for name, one in found.items()
        if not one.get("ok")
    }
    return {
        "passed": sum(1 for one in found.values() if one.get("ok")),
        "failed": failed,
        "steps": {
            name: {k: v for k, v in one.items() if k not in ("ok", "losses", "s")}
            for name, one in found.items()
            if one.get("ok")
        },
    }


def bare_torch(seconds: float) -> dict[str, dict]:
    if "bare" not in _known:
        with contextlib.suppress(Exception):
            if WARM is not None:
                WARM.wait(left(25))
        _known["bare"] = torch_steps(lambda *c: list(c), seconds, "--seconds", 0.7, env=plain())
    return _known["bare"]


WARM: subprocess.Popen | None = None


def begin_warming() -> None:
    """Everything that PyTorch will read is read once, beside the first steps: a fresh machine's disk is cold."""
    global WARM
    code = (
        "import glob, site; "
        "folders = [f'{b}/{q}/lib' for b in site.getsitepackages() for q in ('nvidia/*', 'torch')]; "
        "[open(p, 'rb').read() for f in folders for p in glob.glob(f'{f}/*.so*')]; "
        "import torch"
    )
    with contextlib.suppress(OSError):
        WARM = subprocess.Popen(
            [PYTHON, "-c", code],
            env=plain(CUDA_VISIBLE_DEVICES=""),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


KEEPER: subprocess.Popen | None = None


def begin_keeping() -> None:
    """Keep the card's device open all the time, by NVML alone: it takes no context and no memory.

    Without persistence mode, which is left as it is, the driver would otherwise start the card anew for each program.
    """
    global KEEPER
    with contextlib.suppress(OSError):
        KEEPER = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import pynvml, time; pynvml.nvmlInit(); pynvml.nvmlDeviceGetHandleByIndex(0); time.sleep(600)",
            ],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


@step("main", 110)
def torch_slice() -> dict:
    """PyTorch bare, then in a slice of 100 %: right answers, the same losses, speed, its own error at the limit."""
    if not have("torch"):
        return {"status": "skipped", "why": "no torch"}
    bare = bare_torch(50)
    here = torch_steps(lambda *c: in_slice(100, "16GiB", *c), 55, "--seconds", 0.7, "--limit", 16384)
    beside = compared(bare, here)
    slow = {k: v for k, v in beside["percent_of_bare"].items() if v < 97}
    fine = all(one.get("ok") for one in here.values()) and len(here) >= len(bare) and not beside["differ"] and not slow
    return {
        "status": "ok" if fine else "fail",
        "slower_than_97_percent": slow,
        **beside,
        "slice": told(here),
        "bare": told(bare),
    }


# ---- the pool


class Pool:
    """A broker and a server with this machine's cards, on loopback. It keeps executors' logs, which end with leases."""

    def __init__(self, *more: str) -> None:
        self.more = more

    def __enter__(self) -> Pool:
        self.state = Path(tempfile.mkdtemp(prefix=STATES, dir="/tmp"))
        self.files = [(self.state / name).open("w") for name in ("broker", "serve")]
        self.processes, self.logs, self.ending = [], {}, threading.Event()
        for command, file in zip(
            (
                egpu("broker", "--listen", BROKER),
                egpu("serve", "--broker", BROKER, "--name", "here", "--state-dir", str(self.state / "s"), *self.more),
            ),
            self.files,
            strict=False,
        ):
            self.processes.append(
                subprocess.Popen(
                    command,
                    env=environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                    cwd=str(WORK),
                )
            )
            time.sleep(1)
        threading.Thread(target=self._follow, daemon=True).start()
        self.connected = False
        for _ in range(60):
            if "connected to the broker" in (self.state / "serve").read_text():
                self.connected = True
                break
            if self.processes[1].poll() is not None:
                break
            time.sleep(0.25)
        return self

    def _follow(self) -> None:
        while not self.ending.wait(0.1):
            for path in (self.state / "s" / "leases").glob("*/log"):
                with contextlib.suppress(OSError):
                    if text := path.read_text(errors="replace").strip():
                        self.logs[path.parent.name] = text

    def executors_said(self) -> list[str]:
        """Return each line that executors wrote since the last call."""
        said: dict[str, None] = {}
        for text in self.logs.values():
            said |= dict.fromkeys(line[:300] for line in text.splitlines())
        self.logs = {}
        return list(said)[-25:]

    def serve_said(self) -> list[str]:
        return (self.state / "serve").read_text().strip().splitlines()

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(4)
            kill(process)
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if f"{self.state}/" in path.read_text():
                    os.kill(int(path.parent.name), signal.SIGKILL)
        for name in ("broker", "serve"):
            log(f"--- {name}\n" + (self.state / name).read_text()[-6000:])
        for name, text in self.logs.items():
            log(f"--- executor {name}\n{text[-3000:]}")
        shutil.rmtree(self.state, ignore_errors=True)


def driver_folder() -> Path | None:
    """The folder of the libcuda.so.1 that is found here."""
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and (Path(folder) / "libcuda.so.1").exists():
            return Path(folder)
    code = (
        "import ctypes, json; ctypes.CDLL('libcuda.so.1'); "
        "print(json.dumps({'p': next(l.split()[-1] for l in open('/proc/self/maps') if 'libcuda.so' in l)}))"
    )
    path = run([sys.executable, "-c", code], 15, plain())["said"].get("p")
    return Path(path).parent if path else None


_pool: Pool | None = None


def the_pool() -> Pool:
    """One for all steps that use it."""
    global _pool
    if _pool is None:
        _pool = Pool().__enter__()
        if not _pool.connected:
            log("the pool does not start: " + "\n".join(_pool.serve_said()[-5:]))
    return _pool


def close_pool() -> None:
    global _pool
    if _pool is not None:
        _pool.__exit__()
        _pool = None


def unless_ok(fine: bool, **found: object) -> dict:
    return {} if fine else found


@step("main", 40)
def pool_as_it_is() -> dict:
    """A broker and a server as documented: one sample, a session's confinement, and the libraries that are found."""
    close_pool()
    with Pool() as pool:
        done = run(in_pool(50, "2GiB", native("samples/egpu-sample-vectoradd"), "--json"), 20, raises=False)
        holder = start(in_pool(50, "2GiB", BENCH, "hold", 64, 6))
        first_line(holder, 10)
        held = {}
        for path in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                text = path.read_text()
                if (
                    text.startswith("Name:\tegpu-session")
                    or "egpu-session" in (path.parent / "cmdline").read_text()[:40]
                ):
                    held = {
                        key: value.strip()
                        for key, value in re.findall(
                            r"^(Uid|Groups|NoNewPrivs|Seccomp|CapBnd|CapEff|Threads|VmRSS):(.*)$", text, re.M
                        )
                    }
                    held["root"] = sorted(os.listdir(path.parent / "root"))[:20]
                    held["cgroup"] = (path.parent / "cgroup").read_text().strip().splitlines()[-1:]
        servers = run(egpu("get", "servers", "--pool", BROKER, "-o", "json"), 10, raises=False)
        kill(holder)
        finish(holder, 3, raises=False)
        said, executors = pool.serve_said(), pool.executors_said()
    fine = good(done["said"])
    return {
        "status": "ok" if fine else "fail",
        "session": held,
        "servers": servers["out"].strip()[-1500:],
        "executors": executors,
        **unless_ok(fine, said=brief(done), serve=said[-4:]),
    }


@step("main", 60)
def pool_samples() -> dict:
    """On a lease: samples, the limit, launches and copies beside bare; the cap."""
    pool = the_pool()
    found = {
        name: brief(run(in_pool(50, "2GiB", native(f"samples/egpu-sample-{name}"), "--json"), 15, raises=False))
        for name in (*SAMPLES, "info")
    }
    found["limit"] = brief(run(in_pool(50, "2GiB", BENCH, "limit", "plain", 64), 15, raises=False))
    speeds = {}
    for mode in (("launch",), ("copy", 256)):
        bare, here = (
            brief(run([BENCH, *mode], 15, plain(), raises=False)),
            brief(run(in_pool(100, "4GiB", BENCH, *mode), 20, raises=False)),
        )
        found[mode[0]] = here
        speeds[mode[0]] = {
            key: [value, here.get(key)]
            for key, value in bare.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "mib"
        }
    bare = baseline("rate", 200, 1.5, "eager")
    capped = run(in_pool(30, "2GiB", BENCH, "rate", 200, 1.5, "eager", bare.get("loops", 0)), 15, raises=False)
    fine = good(*found.values()) and 0 <= 2 * GIB - found["limit"].get("given", 0) < 1 * GIB
    return {
        "status": "ok" if fine else "fail",
        "bare_and_pool": speeds,
        "share_at_30": share_of(bare, capped["said"]),
        "short_by_mib": (2 * GIB - found["limit"].get("given", 0)) >> 20,
        "info": found.pop("info"),
        "executors": pool.executors_said(),
        **unless_ok(fine, said=found, serve=pool.serve_said()[-4:]),
    }


def pooled_torch(far: bool, seconds: float, *arguments: object) -> dict:
    if not have("torch"):
        return {"status": "skipped", "why": "no torch"}
    bare, pool = bare_torch(45), the_pool()
    here = torch_steps(
        lambda *c: in_pool(50, "16GiB", *c, far=far), seconds, "--seconds", 0.7, "--limit", 16384, *arguments
    )
    said = told(here)
    return {
        "status": "ok" if here and not said["failed"] else "fail",
        **compared(bare, here),
        "pool": said,
        "executors": pool.executors_said(),
        "serve": [line for line in pool.serve_said() if '"error"' in line or '"warning"' in line][-4:],
    }


@step("main", 110)
def pool_torch() -> dict:
    """PyTorch on a lease, through shared memory: each step by itself, beside bare."""
    return pooled_torch(False, 100)


@step("main", 70)
def pool_torch_tcp() -> dict:
    """PyTorch on a lease through TCP: eleven of the steps."""
    return pooled_torch(
        True,
        60,
        "--only",
        "start,copies,kernels,cublas,cudnn,train_mlp,train_cnn,graph,speed_products,speed_small,speed_copies",
    )


LIBRARIES = ("cupy", "jax", "numba", "core", "transformers", "onnx")


def programs_of(wrap: Callable[..., list[str]], seconds: float) -> dict[str, dict]:
    commands = {name: wrap(12, "9GiB", *program("smoke.py", name)) for name in LIBRARIES}
    for name, path in (("runtime, static", BIN / "features-static"), ("runtime, shared", BIN / "features-shared")):
        if path.exists():
            commands[name] = wrap(12, "2GiB", "env", f"LD_LIBRARY_PATH={runtime_folders()}", path)
    found = {}
    for name, done in together(commands, seconds).items():
        if name.startswith("runtime"):
            lines = [json.loads(line) for line in done["out"].splitlines() if line.startswith("{")]
            failed = {one["feature"]: one["error"] for one in lines if one.get("error")}
            passed = sum(1 for one in lines if one.get("error") == "")
            found[name] = {
                "ok": passed > 0 and not failed and done["rc"] == 0,
                "passed": passed,
                "failed": failed,
                "rc": done["rc"],
                "s": done["seconds"],
                "stderr": done["err"].strip()[-300:],
            }
        else:
            found[name] = brief(done)
        if "ModuleNotFoundError" in str(found[name]):
            found[name] = {"ok": True, "skipped": str(found[name].get("error"))[:120]}
    return found


def runtime_folders() -> str:
    """Behind what egpu run has there: where libcudart.so.13 is, for a program that is linked with it."""
    return (
        os.pathsep.join(
            filter(
                None,
                (
                    "$LD_LIBRARY_PATH",
                    *[folder for folder in site_folders() if os.path.exists(f"{folder}/libcudart.so.13")],
                    "/usr/local/cuda/lib64",
                ),
            )
        )
        .replace("$LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))
        .strip(os.pathsep)
    )


@step("main", 60)
def pool_programs() -> dict:
    """CuPy, JAX, numba, cuda.core, transformers, programs of the runtime, all at once, each on a lease of its own."""
    pool = the_pool()
    found = programs_of(in_pool, 55)
    failed = {name: one for name, one in found.items() if not good(one)}
    return {
        "status": "ok" if not failed else "fail",
        "failed": failed,
        "passed": {name: one for name, one in found.items() if good(one)},
        "executors": pool.executors_said(),
    }


@step("main", 60)
def programs() -> dict:
    """The programs of pool-programs in slices of the card, all at once; a failed one bare as well."""
    close_pool()
    found = programs_of(in_slice, 45)
    failed = {name: one for name, one in found.items() if not good(one)}
    bare = (
        {
            name: brief(done)
            for name, done in together(
                {name: program("smoke.py", name) for name in failed if name in LIBRARIES}, 14, plain()
            ).items()
        }
        if failed
        else {}
    )
    return {
        "status": "ok" if not failed else "fail",
        "failed": failed,
        "bare_where_it_failed": bare,
        "passed": {name: one for name, one in found.items() if good(one)},
    }


# ---- time


def share_of(baseline: dict, done: dict) -> float | None:
    one, other = baseline.get("per_second"), done.get("per_second")
    return round(100 * other / one, 2) if one and other else None


_baselines: dict[tuple, dict] = {}


def baseline(*mode: object) -> dict:
    """Of a mode of bench, bare; its kernel is then used everywhere."""
    if mode not in _baselines:
        _baselines[mode] = brief(run([BENCH, *map(str, mode), "0"], 20, plain(), raises=False))
    return _baselines[mode]


@step("main", 50)
def caps() -> dict:
    """Measured shares of 20 us and 1 ms kernels: alone with a cap of 30 %, and two of 30 and 70 % at once."""
    found, worst = {}, 0.0
    for us in (20, 1000):
        bare = baseline("rate", us, 1.5, "eager")
        loops = bare.get("loops", 0)
        done = run(in_slice(30, "2GiB", BENCH, "rate", us, 2, "eager", loops), 15, raises=False)
        alone = share_of(bare, done["said"])
        both = together(
            {str(core): in_slice(core, "2GiB", BENCH, "rate", us, 3, "eager", loops) for core in (30, 70)}, 15
        )
        shares = [share_of(bare, both[core]["said"]) for core in ("30", "70")]
        found[f"{us} us"] = {
            "alone_at_30": alone,
            "together_at_30_and_70": shares,
            "kernel_us": bare.get("kernel_us"),
            **unless_ok(None not in (alone, *shares), said=[brief(done), *map(brief, both.values())]),
        }
        worst = max(
            worst, *(abs((share or 0) - core) for share, core in zip((alone, *shares), (30, 30, 70), strict=False))
        )
    return {"status": "ok" if worst <= 3 else "fail", "worst_error_points": round(worst, 2), **found}


@step("main", 60)
def torch_caps() -> dict:
    """PyTorch's matrix products: bare, at 30 %, and two at once with 30 and 70 %."""
    if not have("torch"):
        return {"status": "skipped", "why": "no torch"}
    work = ("torch_rate.py", "matmul-4096", 1.5)
    bare = brief(run(program(*work), 20, plain(), raises=False))
    alone = brief(run(in_slice(30, "8GiB", *program(*work)), 20, raises=False))
    when = time.time() + 12  # both have started by then
    both = together(
        {str(core): in_slice(core, "8GiB", *program("torch_rate.py", "matmul-4096", 3, when)) for core in (30, 70)}, 28
    )
    shares = [share_of(bare, one) for one in (alone, both["30"]["said"], both["70"]["said"])]
    fine = None not in shares and abs(shares[0] - 30) <= 4 and abs(shares[1] - 30) <= 4 and abs(shares[2] - 70) <= 4
    return {
        "status": "ok" if fine else "fail",
        "alone_at_30": shares[0],
        "together_at_30_and_70": shares[1:],
        "bare": bare,
        **unless_ok(None not in shares, said=[alone, *map(brief, both.values())]),
    }


@step("main", 45)
def call_costs() -> dict:
    """Launches, allocations and copies: bare, in an uncapped slice, in one of 30 % of the time."""
    places = (
        ("bare", lambda *m: [BENCH, *map(str, m)], plain()),
        ("100", lambda *m: in_slice(100, "4GiB", BENCH, *m), None),
        ("30", lambda *m: in_slice(30, "4GiB", BENCH, *m), None),
    )
    found = {
        where: {
            mode[0]: brief(run(wrap(*mode), 15, env, raises=False)) for mode in (("launch",), ("alloc",), ("copy", 256))
        }
        for where, wrap, env in places
    }
    added = {}
    with contextlib.suppress(KeyError, TypeError):
        added = {
            f"{where}: {key}": round(found[where][mode][key] - found["bare"][mode][key], 2)
            for where in ("100", "30")
            for mode, key in (
                ("launch", "launch_ns"),
                ("launch", "round_trip_us"),
                ("alloc", "ns_4k"),
                ("alloc", "ns_64m"),
            )
        }
    return {"status": "ok" if added else "fail", "added": added, **found}


# ---- processes


@step("main", 45)
def processes() -> dict:
    """Two processes of one slice; memory of a killed one is free again; two slices fit, and a third is refused."""
    commands = {what: in_slice(20, "2GiB", *program("procs.py", what, BENCH, 2048)) for what in ("together", "kill9")}
    found = {name: brief(done) for name, done in together(commands, 38).items()}
    card = run([BENCH, "info"], 10, plain(), raises=False)["said"]
    part = int(card.get("total", 0) * 0.4) >> 20
    one = start(in_slice(20, f"{part}MiB", BENCH, "hold", part - 1024, 12))  # beside a context
    said = first_line(one)
    other = run(in_slice(20, f"{part}MiB", BENCH, "limit", "plain", 1024), 15, raises=False)
    third = run(in_slice(20, f"{2 * part}MiB", "true"), 8, raises=False)
    kill(one)
    finish(one, 5, raises=False)
    short = part - (other["said"].get("given", 0) >> 20)
    fine = good(*found.values()) and 0 <= short <= 1024 and third["rc"] == 125
    return {
        "status": "ok" if fine else "fail",
        **found,
        "part_mib": part,
        "one": said.strip()[:200],
        "other_short_by_mib": short,
        "third": [third["rc"], third["err"].strip()[-300:]],
    }


@step("main", 30)
def full_card() -> dict:
    """A slice with all of the card's memory: how much of it one program can allocate."""
    done = run(
        egpu("run", "--core", 100, "-o", "json", "--", "env", "-u", "PYTHONPATH", BENCH, "limit", "plain", 1024),
        28,
        raises=False,
    )
    slice_mib, given = done["summary"].get("memoryMiB", 0), done["said"].get("given", 0) >> 20
    return {
        "status": "ok" if slice_mib and 0 <= slice_mib - given <= 1024 else "fail",
        "slice_mib": slice_mib,
        "given_mib": given,
        "short_by_mib": slice_mib - given,
        "said": brief(done),
    }


@step("main", 45)
def torch_processes() -> dict:
    """PyTorch's data loader, CUDA IPC, NCCL, threads with graphs, all at once in slices; a failed one bare as well."""
    if not have("torch"):
        return {"status": "skipped", "why": "no torch"}
    whats = ("loader", "spawn", "nccl", "threads")
    found = {
        what: brief(done)
        for what, done in together(
            {what: in_slice(20, "8GiB", *program("torch_many.py", what)) for what in whats}, 28
        ).items()
    }
    failed = [what for what, one in found.items() if not good(one)]
    bare = (
        {
            what: brief(done)
            for what, done in together({what: program("torch_many.py", what) for what in failed}, 15, plain()).items()
        }
        if failed
        else {}
    )
    return {"status": "ok" if not failed else "fail", **found, "bare_where_it_failed": bare}


@step("main", 12)
def kernel_log() -> dict:
    """The kernel's log: XIDs, refusals by seccomp and Landlock; processes that are left."""
    close_pool()
    text = run(["dmesg"], 8, plain(), raises=False)["out"]
    lines = [
        line[:240]
        for line in text.splitlines()
        if not is_older(line)
        and re.search(r"xid|nvrm|seccomp|landlock|audit|segfault|out of memory|oom-kill|uvm", line, re.I)
        and not re.search(r"initializ|running|LSM", line)
    ]
    time.sleep(1)
    kept = [one.pid for one in (WARM, KEEPER) if one is not None]
    rest = [command for pid, command in leftovers().items() if pid not in kept]
    return {
        "status": "ok" if not rest and not any(re.search(r"xid|segfault", line, re.I) for line in lines) else "fail",
        "lines": lines[-25:],
        "left_running": rest[:10],
    }


def is_older(line: str) -> bool:
    """Return whether a line of the kernel's log is from before this trial."""
    seconds = re.match(r"\[ *([0-9.]+)\]", line)
    return seconds is not None and float(seconds[1]) < BEGAN


def leftovers() -> dict[int, str]:
    """Processes of this trial, by pid, that are neither we nor those that started us. Others of the same programs, from
    the same folder, may be another trial's, or a test's."""
    above, pid = set(), os.getpid()
    while pid > 1:
        above.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if int(path.name) in above:
                continue
            command = (path / "cmdline").read_bytes()
            inherited = f"TRIAL_OF={WORK}\0".encode() in (path / "environ").read_bytes()
            if inherited or f"/tmp/{STATES}".encode() in command:  # executors have an environment of their own
                found[int(path.name)] = command[:120].decode(errors="replace").replace("\0", " ")
    return found


def end_leftovers() -> None:
    for pid in leftovers():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


# ---- by name only


@step("more", 60)
def pool_collectives() -> dict:
    """NCCL on the pool: a server with --collectives, one rank."""
    close_pool()
    with Pool("--collectives") as pool:
        done = run(in_pool(50, "8GiB", *program("torch_many.py", "nccl")), 45, raises=False)
        executors = pool.executors_said()
    return {"status": "ok" if good(done["said"]) else "fail", "said": brief(done), "executors": executors}


@step("more", 110)
def executor_alone() -> dict:
    """PyTorch's first steps on an executor without pool and confinement.

    The confinement is the reason for a failure on a lease that does not happen here.
    """
    folder = Path(tempfile.mkdtemp(prefix=STATES, dir="/tmp"))
    sys.path[:0] = [SITE, *SOURCES]
    from egpu.core.provisioners.preparation import REMOTE_LIBRARIES

    for name, artefact in REMOTE_LIBRARIES.items():
        (folder / name).symlink_to(native(artefact))
    driver = driver_folder() or Path("/nowhere")
    server = start(
        [native("egpu-executor"), "--driver", str(driver / "libcuda.so.1"), "--listen", str(folder / "lease0.sock")],
        plain(LD_LIBRARY_PATH=os.pathsep.join(map(str, [driver, *site_folders()]))),
    )
    for _ in range(60):
        if (folder / "lease0.sock").exists() or server.poll() is not None:
            break
        time.sleep(0.05)
    env = plain(
        LD_LIBRARY_PATH=os.pathsep.join(filter(None, (str(folder), os.environ.get("LD_LIBRARY_PATH", "")))),
        LD_PRELOAD=":".join(str(folder / name) for name in REMOTE_LIBRARIES),
    )
    sample = brief(run([native("samples/egpu-sample-vectoradd"), "--json"], 15, env, raises=False))
    found = (
        torch_steps(
            lambda *c: list(c),
            80,
            "--only",
            "start,copies,kernels,cublas,cublaslt,cudnn,train_mlp,train_cnn,graph,fft,solvers",
            env=env,
        )
        if have("torch")
        else {}
    )
    server.terminate()
    done = finish(server, 5, raises=False)
    shutil.rmtree(folder, ignore_errors=True)
    said = told(found)
    return {
        "status": "ok" if good(sample) and not said["failed"] else "fail",
        "sample": sample,
        "torch": said,
        "executor": (done["out"] + done["err"]).strip().splitlines()[-10:],
    }


@step("more", 60)
def gpu_tests() -> dict:
    """The samples of tests/gpu, run by pytest."""
    done = run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--noconftest",  # it needs hypothesis
            "--rootdir",
            str(REPO),
            "-o",
            "addopts=",
            "-o",
            f"pythonpath={REPO}/tests",
            str(REPO / "tests/gpu/test_real_gpu.py"),
        ],
        55,
        raises=False,
    )
    return {
        "status": "ok" if done["rc"] == 0 and " passed" in done["out"] else "fail",
        "rc": done["rc"],
        "said": (done["out"] + done["err"]).strip().splitlines()[-12:],
    }


@step("more", 30)
def linked() -> dict:
    """A library that needs libcuda.so.1 by name, loaded as an extension module; a driver that is opened again.

    Nothing else in that process has asked for the driver before.
    """
    bare, sliced = (
        run(program("linked.py", BIN / "linked.so"), 12, plain(), raises=False),
        run(in_slice(20, "2GiB", *program("linked.py", BIN / "linked.so")), 12, raises=False),
    )
    again = [
        brief(run([str(BIN / "reload")], 8, plain(), raises=False)),
        brief(run(in_slice(20, "2GiB", BIN / "reload"), 8, raises=False)),
    ]
    return {
        "status": "ok"
        if good(bare["said"], sliced["said"], *again) and sliced["said"].get("total") == 2 * GIB
        else "fail",
        "linked": [brief(bare), brief(sliced)],
        "reloaded": again,
    }


@step("more", 60)
def light_load() -> dict:
    """Programs below their cap must keep their speed: kernels with pauses, copies, streams that wait."""
    found, worst = {}, 100.0
    for mode in (("paced", 20, 100, 1.5), ("copymix", 64, 200, 1.5), ("waits", 200, 1.5)):
        bare = baseline(*mode)
        used = (bare.get("per_second") or 0) * (bare.get("kernel_us") or 0) / 1e4
        done = run(in_slice(50, "2GiB", BENCH, *mode, bare.get("loops", 0)), 15, raises=False)
        share, free = share_of(bare, done["said"]), done["summary"]
        found[" ".join(map(str, mode))] = {
            "kernels_take_percent": round(used, 1),
            "speed_in_50_percent": share if share is not None else brief(done),
            "charged_us_each": round(1e6 * free["gpuSeconds"] / free["launches"], 1) if free.get("launches") else None,
            "throttled_s": free.get("throttledSeconds"),
        }
        if used < 45:
            worst = min(worst, share or 0)
    return {"status": "ok" if worst >= 95 else "fail", "slowest_percent_of_bare": worst, **found}


@step("more", 45)
def captures() -> dict:
    """One thread launches while another captures in global mode; a graph that allocates the same memory many times."""
    found = {
        "race, bare": brief(run([BENCH, "race", "2"], 12, plain(), raises=False)),
        "race": brief(run(in_slice(50, "2GiB", BENCH, "race", 4), 12, raises=False)),
        "graph memory, bare": brief(run([BENCH, "graphmem", "30", "100"], 10, plain(), raises=False)),
        "graph memory": brief(run(in_slice(50, "2GiB", BENCH, "graphmem", 30, 100), 10, raises=False)),
    }
    return {"status": "ok" if good(found["race"], found["graph memory"]) else "fail", **found}


@step("main", 25)
def parking() -> dict:
    """Cost of parking 4 GiB, bare: by the driver's checkpoint, and by mapped memory that is copied out and back."""
    found = last_json(run(program("parking.py", 4), 23, plain())["out"])
    fine = all(part.get("right") for part in found.values())
    return {"status": "ok" if fine else "fail", **found}


MAIN = (
    "facts",
    "selftest",
    "session-calls",
    "limits",
    "torch-slice",
    "pool-as-it-is",
    "pool-samples",
    "pool-torch",
    "caps",
    "pool-torch-tcp",
    "pool-programs",
    "call-costs",
    "torch-caps",
    "processes",
    "programs",
    "full-card",
    "parking",
    "torch-processes",
    "kernel-log",
)

# ---- the runner ----


def write(record: dict) -> None:
    with (OUT / "results.jsonl").open("a") as file:
        file.write(json.dumps(record, default=str) + "\n")


def one(name: str) -> dict:
    _group, seconds, function = STEPS[name]
    began = time.monotonic()
    global _deadline
    _deadline = min(began + seconds, ENDS - (0 if name == LAST else RESERVED))
    log(f"\n==== {name}")
    try:
        found = function()
    except TimedOut as error:
        found = {"status": "timeout", "what": str(error)}
    except Exception as error:
        found = {
            "status": "error",
            "what": f"{type(error).__name__}: {error}",
            "line": error.__traceback__.tb_next.tb_lineno
            if error.__traceback__ and error.__traceback__.tb_next
            else None,
        }
    for process in list(_running):
        kill(process)
        _running.discard(process)
    return {"step": name, "status": found.pop("status"), "seconds": round(time.monotonic() - began, 1), **found}


def main() -> None:
    global ENDS
    arguments = sys.argv[1:]
    budget = 380.0
    if "--list" in arguments:
        for name, (group, seconds, function) in STEPS.items():
            print(f"{group:5} {name:18} at most {seconds:3.0f} s  {(function.__doc__ or '').strip().splitlines()[0]}")
        return
    if "--budget" in arguments:
        at = arguments.index("--budget")
        budget = float(arguments[at + 1])
        del arguments[at : at + 2]
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: what programs leave is ours to see
    wanted = arguments or list(MAIN)
    OUT.mkdir(parents=True, exist_ok=True)
    HOME.mkdir(parents=True, exist_ok=True)
    ENDS = time.monotonic() + budget
    if any(name.startswith(("torch", "pool", "programs", "executor")) for name in wanted):
        begin_warming()
    end_leftovers()  # of an earlier call that was cut short
    begin_keeping()
    table = []
    for name in wanted:
        if name not in STEPS:
            record = {"step": name, "status": "error", "what": "there is no such step"}
        elif ENDS - time.monotonic() < (2 if name == LAST else 6 + RESERVED):
            record = {"step": name, "status": "skipped", "why": "no time left"}
        else:
            record = one(name)
        write(record)
        table.append(record)
        said = json.dumps({k: v for k, v in record.items() if k not in ("step", "status", "seconds")}, default=str)
        print(f"{record['status']:8} {name:18} {record.get('seconds', 0):6.1f} s  {said[:430]}", flush=True)
        (OUT / "summary.txt").write_text(
            "\n".join(f"{r['status']:8} {r['step']:18} {r.get('seconds', 0):6.1f} s" for r in table) + "\n"
        )
    close_pool()
    for process in (WARM, KEEPER):
        if process is not None:
            kill(process)
    end_leftovers()
    print(f"\n{sum(r['status'] == 'ok' for r in table)} of {len(table)} ok; {OUT}/results.jsonl", flush=True)


if __name__ == "__main__":
    main()
