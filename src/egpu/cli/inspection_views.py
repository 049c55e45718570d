"""Tables of slices: an overview, and the limits, use and processes of one.

Each row also has a record with the same values, for scripts.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from egpu.adapters.slices.pages import MEMORY_UNLIMITED, PPM, DevicePolicy, DeviceUsage, Mode
from egpu.cli.inspection import Inspection, Kind, SliceProcess
from egpu.cli.output import Table
from egpu_base.system import proc

MIB: Final = 1024 * 1024


def overview(found: Iterable[Inspection]) -> Table:
    table = Table(
        ("name", "kind", "owner", "gpus", "memory", "processes", "state"),
        right=frozenset({"gpus", "memory"}),
        spare=("owner",),
    )
    for one in found:
        devices = one.policy.devices if one.policy else ()
        used = sum(usage.memory_bytes for usage in one.usage.devices[: len(devices)])
        alive = sum(process.here is not None for process in one.processes)
        row = (
            one.directory.name,
            str(one.kind),
            one.owner[:60],
            str(len(devices)),
            mib(used),
            str(alive),
            _state(one),
        )
        record = {
            "directory": str(one.directory),
            "kind": str(one.kind),
            "owner": one.owner,
            "gpus": len(devices),
            "memoryBytes": used,
            "processes": alive,
            "problems": dict(one.problems),
        }
        table.add(row, record)
    return table


def _state(one: Inspection) -> str:
    """Return the slice's most serious problem in a few words, or `ok`."""
    if one.problems:
        return f"damaged: {', '.join(one.problems)}"
    if one.executor is None:
        return "executor gone" if one.kind is Kind.SLOT and one.policy_file.name.startswith("executor") else "ok"
    if not one.executor.running:
        return "executor gone"
    return f"{one.executor.sessions} sessions" if one.executor.ready else "executor not ready"


def policy_table(one: Inspection) -> Table:
    columns = (
        "gpu",
        "uuid",
        "minor",
        "mode",
        "core",
        "grant",
        "memory",
        "spill",
        "overhead",
        "weight",
        "contention",
        "window",
    )
    table = Table(
        columns, wide=frozenset({"minor", "weight", "contention"}), spare=("window", "overhead", "spill", "uuid")
    )
    for ordinal, line in enumerate(one.policy.devices if one.policy else ()):
        unlimited = line.mode is Mode.UNLIMITED
        row = (
            str(ordinal),
            line.uuid,
            str(line.minor),
            line.mode.name.lower(),
            "-" if unlimited else _percent(line.core_ppm),
            _percent(line.grant_ppm) if line.grant_ppm else "-",
            "all" if line.memory_limit_bytes == MEMORY_UNLIMITED else mib(line.memory_limit_bytes),
            mib(line.spill_limit_bytes) if line.spill_limit_bytes else "-",
            mib(line.overhead_bytes) if line.overhead_bytes else "-",
            str(line.weight),
            _percent(line.contention_ppm),
            _window(line),
        )
        table.add(row, _policy_record(ordinal, line))
    return table


def _window(line: DevicePolicy) -> str:
    if line.window is None:
        return "-"
    start, length, period = (
        each / 1000 for each in (line.window.start_us, line.window.length_us, line.window.period_us)
    )
    return f"{length:g} ms from {start:g} of every {period:g} ms"


def _policy_record(ordinal: int, line: DevicePolicy) -> Mapping[str, Any]:
    window = line.window
    return {
        "gpu": ordinal,
        "uuid": line.uuid,
        "minor": line.minor,
        "mode": line.mode.name.lower(),
        "corePpm": line.core_ppm,
        "grantPpm": line.grant_ppm,
        "memoryLimitBytes": None if line.memory_limit_bytes == MEMORY_UNLIMITED else line.memory_limit_bytes,
        "spillLimitBytes": line.spill_limit_bytes,
        "overheadBytes": line.overhead_bytes,
        "weight": line.weight,
        "contentionPpm": line.contention_ppm,
        "window": window
        and {
            "epochNs": window.epoch_ns,
            "periodUs": window.period_us,
            "startUs": window.start_us,
            "lengthUs": window.length_us,
        },
    }


def usage_table(one: Inspection) -> Table:
    """Return a row for each device of the policy. The usage file has room for more, which stays unused."""
    columns = (
        "gpu",
        "used",
        "peak",
        "spilled",
        "refusals",
        "gpu time",
        "throttled",
        "launches",
        "bucket",
        "last launch",
    )
    table = Table(columns, right=frozenset({"refusals", "launches"}), spare=("last launch", "bucket"))
    devices = one.usage.devices[: len(one.policy.devices)] if one.policy else one.usage.devices
    for ordinal, usage in enumerate(devices):
        row = (
            str(ordinal),
            mib(usage.memory_bytes),
            mib(usage.peak_bytes),
            mib(usage.spill_bytes) if usage.spill_bytes else "-",
            str(usage.refusals),
            _seconds(usage.gpu_ns),
            _seconds(usage.throttled_ns),
            str(usage.launches),
            f"{usage.bucket_ns / 1e6:+.2f} ms",
            _ago(usage.refilled_ns),
        )
        table.add(row, _usage_record(ordinal, usage))
    return table


def _usage_record(ordinal: int, usage: DeviceUsage) -> Mapping[str, Any]:
    return {
        "gpu": ordinal,
        "memoryBytes": usage.memory_bytes,
        "peakBytes": usage.peak_bytes,
        "spillBytes": usage.spill_bytes,
        "reapedBytes": usage.reaped_bytes,
        "refusals": usage.refusals,
        "gpuSeconds": usage.gpu_ns / 1e9,
        "heldBackSeconds": usage.throttled_ns / 1e9,
        "launches": usage.launches,
        "bucketNs": usage.bucket_ns,
    }


def process_table(one: Inspection) -> Table:
    columns = (
        "pid",
        "here",
        "program",
        "gpu",
        "memory",
        "by kind",
        "parked",
        "gpu time",
        "throttled",
        "launches",
        "heartbeat",
    )
    table = Table(
        columns, right=frozenset({"launches"}), spare=("program", "heartbeat", "throttled", "by kind", "parked")
    )
    for process in one.processes:
        usage, classes = process.usage, _classes(process)
        program = _program(process.here) if process.here is not None else ""
        row = (
            str(usage.pid),
            "gone" if process.here is None else str(process.here),
            program[:40] or "-",
            str(usage.device),
            mib(usage.memory_bytes),
            ", ".join(f"{name} {mib(size)}" for name, size in classes.items() if size) or "-",
            mib(usage.parking.parked_bytes) if usage.parking.parked_bytes else "-",
            _seconds(usage.gpu_ns),
            _seconds(usage.throttled_ns),
            str(usage.launches),
            _ago(usage.heartbeat_ns),
        )
        record = {
            "pid": usage.pid,
            "pidNamespace": usage.pid_namespace,
            "pidHere": process.here,
            "program": program,
            "gpu": usage.device,
            "memoryBytes": usage.memory_bytes,
            "memoryBytesByClass": classes,
            "parkedBytes": usage.parking.parked_bytes,
            "parks": usage.parking.parks,
            "wakes": usage.parking.wakes,
            "wakeWaitSeconds": usage.parking.wait_ns / 1e9,
            "gpuSeconds": usage.gpu_ns / 1e9,
            "heldBackSeconds": usage.throttled_ns / 1e9,
            "launches": usage.launches,
        }
        table.add(row, record)
    return table


def _classes(process: SliceProcess) -> dict[str, int]:
    usage = process.usage
    return {
        "device": usage.device_bytes,
        "managed": usage.managed_bytes,
        "pool": usage.pool_bytes,
        "physical": usage.physical_bytes,
        "array": usage.array_bytes,
        "graph": usage.graph_bytes,
        "module": usage.module_bytes,
        "spill": usage.spill_bytes,
    }


def _program(pid: int) -> str:
    words = proc.command(pid)
    said = b" ".join([words[0].rpartition(b"/")[2], *words[1:]]).decode(errors="replace").rstrip()
    return "".join(each if each.isprintable() else "�" for each in said)


def mib(size: int) -> str:
    """Format a size. Limits are whole numbers of MiB; used memory rarely is."""
    if 0 < size < MIB:
        return f"{size} bytes"
    return f"{size // MIB} MiB" if size % MIB == 0 else f"{size / MIB:.2f} MiB"


def _percent(ppm: int) -> str:
    return f"{100 * ppm / PPM:g} %"


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.3f} s"


def _ago(moment_ns: int) -> str:
    """Format the age of a CLOCK_MONOTONIC time. A process under inspection wrote it, so it may be any number."""
    return "never" if moment_ns == 0 else f"{max(0.0, (time.monotonic_ns() - moment_ns) / 1e9):.1f} s ago"
