"""Tables without a cluster, on a terminal of 80 columns: no name is broken, and spare columns are left out first."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from egpu.cli import output
from egpu.cli.findings import Finding, State, show_findings
from egpu.cli.output import Format, Table
from egpu.laptop.machines import Simulated, find_machine
from support.terminal import on_terminal


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    for name in ("console", "errors"):
        monkeypatch.setattr(output, name, Console(file=stream, force_terminal=True, color_system=None, width=80))
    return stream


def table() -> Table:
    made = Table(("name", "note", "owner", "size"), spare=("owner", "size"))
    made.add(("n" * 30, "a few words that may be broken between them", "o" * 30, "s" * 20), {})
    return made


def test_spare_columns_are_left_out_until_the_rest_fits(small: io.StringIO) -> None:
    output.show(table())
    lines = small.getvalue().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert "n" * 30 in small.getvalue()
    assert "s" * 20 in small.getvalue(), "one was enough"
    assert "o" * 30 not in small.getvalue()
    assert lines[-1] == "terminal too narrow for owner. Use -o wide to show all"


def test_wide_and_roomy_terminals_show_all(small: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    output.show(table(), Format.WIDE)
    assert "o" * 30 in small.getvalue()
    monkeypatch.setattr(output, "console", Console(file=small, force_terminal=True, color_system=None, width=200))
    small.truncate(0)
    output.show(table())
    assert "o" * 30 in small.getvalue()
    assert "too narrow" not in small.getvalue()


def test_rows_with_long_names_become_blocks(small: io.StringIO) -> None:
    """Check names such as those of pods of Deployments, which are longer than the columns."""
    made = table()
    made.add(("l" * 63, "more words, " * 9, "it", "big"), {})
    made.add(("e" * 90, "short", "it", "big"), {})
    output.show(made)
    first, second, third = small.getvalue().split("\n\n")
    assert first.splitlines()[0] == f"NAME   {'n' * 30}"
    assert [line[:7] for line in second.splitlines()] == ["NAME   ", "NOTE   ", "       ", "OWNER  ", "SIZE   "]
    assert max(map(len, second.splitlines())) <= 80
    assert third.splitlines() == [f"NAME   {'e' * 90}", "NOTE   short", "OWNER  it", "SIZE   big"]
    small.truncate(small.seek(0))
    output.show(made, Format.WIDE)
    assert small.getvalue().startswith("NAME" + " " * 86), "-o wide is for who scrolls sideways, or has a file"


def test_findings(small: io.StringIO) -> None:
    found = Finding(
        State.WRONG, "no DaemonSet elastic-gpu-agent in namespace elastic-gpu-system", "kubectl apply -k deploy"
    )
    assert not show_findings({"the agent's DaemonSet": found}, Format.TABLE)
    assert max(len(line.rstrip()) for line in small.getvalue().splitlines()) <= 80
    assert "elastic-gpu-agent" in small.getvalue()


def test_simulated_machines(tmp_path: Path) -> None:
    machine = find_machine("RTX-4090", root=tmp_path / "state").simulated
    assert isinstance(machine, Simulated)
    try:
        lines = on_terminal("sim", "list", environment=os.environ)
        assert max(map(len, lines)) <= 80
        assert machine.machine.state.name.removeprefix("egpu-sim-") in " ".join(lines).split()
    finally:
        machine.destroy()


def test_a_simulation(tmp_path: Path) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,96000,786432,8,A100\n")
    pods.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,"
        "scheduled_time\np0,1000,1024,1,500,,LS,Running,0,10,0\n"
    )
    lines = on_terminal(
        "simulate", "--nodes", str(nodes), "--pods", str(pods), "--policy", "fgd,best-fit", environment=os.environ
    )
    assert any("best-fit" in line.split() for line in lines), lines
    assert max(len(line) for line in lines if "simulating" not in line) <= 80
