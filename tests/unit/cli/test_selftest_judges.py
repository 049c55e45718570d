"""Judgements of `egpu selftest` on a busy machine, and with the memory of a context."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from egpu.adapters.executors import libraries
from egpu.cli.findings import Finding, State, show_findings
from egpu.cli.output import Format
from egpu.cli.selfchecks import CHECKS
from egpu.cli.trial import MEMORY_MIB, Trial


def judged(check: str, *, sliced: list[dict[str, Any]], bare: list[dict[str, Any]], simulated: bool = True) -> Finding:
    """Judge a check with programs that print these results, one after the other."""
    said = SimpleNamespace(
        bare=lambda *_: bare.pop(0), sliced=lambda *_, core: sliced.pop(0), card=SimpleNamespace(uuid="GPU-1"),
        machine=SimpleNamespace(simulated="machine" if simulated else None),
    )  # fmt: skip
    found = CHECKS[check](cast("Trial", said))
    assert (sliced, bare) == ([], [])
    return found


def spun(*percents: float) -> list[dict[str, Any]]:
    return [{"kernels": 10 * percent, "kernel_us": 1000.0, "seconds": 1.0} for percent in percents]


@pytest.mark.parametrize(
    ("sliced", "bare", "state"),
    [
        ((30, 30, 30), (100, 100, 100), State.OK),
        ((30, 12, 20), (40, 100, 60), State.OK),
        ((100, 100, 100), (100, 100, 100), State.WRONG),
        ((30, 90, 25), (100, 100, 100), State.WRONG),
        ((25, 25, 80), (100, 80, 100), State.WRONG),
        ((36, 36, 36), (100, 100, 100), State.WRONG),
        ((10, 10, 10), (100, 100, 100), State.WRONG),
    ],
)
def test_the_best_of_several_rates_counts(sliced: tuple[float, ...], bare: tuple[float, ...], state: State) -> None:
    """Check that a slice without limits fails, even if a busy machine slowed it down to its share once."""
    assert judged("compute limit", sliced=spun(*sliced), bare=spun(*bare)).state is state


@pytest.mark.parametrize(
    ("given_mib", "context_mib", "simulated", "state"),
    [
        (MEMORY_MIB, 0, True, State.OK),
        (MEMORY_MIB, 447, True, State.OK),
        (MEMORY_MIB - 447, 447, True, State.OK),
        (MEMORY_MIB - 448, 447, True, State.WRONG),
        (MEMORY_MIB - 1, 0, True, State.WRONG),
        (MEMORY_MIB + 1, 447, True, State.WRONG),
        (MEMORY_MIB - 447 - 64, 447, False, State.OK),
        (MEMORY_MIB - 447 - 65, 447, False, State.WRONG),
        (MEMORY_MIB + 1, 447, False, State.WRONG),
    ],
)
def test_the_memory_of_a_context_may_be_missing(
    given_mib: int, context_mib: int, state: State, *, simulated: bool
) -> None:
    """A real driver has two figures of it, which differ."""
    said = {"given_bytes": given_mib << 20, "error": "CUDA_ERROR_OUT_OF_MEMORY"}
    found = judged("memory limit", sliced=[said], bare=[{"bytes": context_mib << 20}], simulated=simulated)
    assert found.state is state


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_findings_in_a_pipe_fit_its_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("egpu.cli.output.console", Console())
    words = "libnvidia-ml.so.1 is missing or does not start"
    assert not show_findings({"driver": Finding(State.WRONG, f"{words}, " * 9, words)}, Format.TABLE)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0].split()[:3] == ["CHECK", "STATE", "FOUND"]


def test_the_programs_of_simulated_cards_are_those_of_the_documents() -> None:
    found = CHECKS["runtime library"](cast("Trial", SimpleNamespace(machine=SimpleNamespace(simulated=True)))).found
    runs, not_there = found.split("; ")
    assert {"numba", "JAX", "Triton"} <= set(re.findall(r"\w+", runs))
    assert {"CuPy", "PyTorch"} <= set(re.findall(r"\w+", not_there))


def test_libraries_of_a_real_card_are_named_with_their_versions_and_so_is_what_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place := tmp_path / "nvidia/cudnn/lib").mkdir(parents=True)
    (place / "libcudnn.so.9").touch()
    (tmp_path / "nvidia_cudnn_cu13-9.19.0.56.dist-info").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setattr(libraries, "TOOLKIT", tmp_path / "toolkit")
    monkeypatch.setattr(libraries, "_loaders", dict[str, Path])
    found = judged("libraries", sliced=[], bare=[], simulated=False)
    assert found.state is State.LIMITED
    assert "executors find cudnn 9.19.0.56. Programs on a lease cannot use" in found.found
    assert "nccl" in found.found
    assert "--library-path" in found.mend
