"""`egpu bill` on a terminal, in a pipe and for a spreadsheet: the same figures."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import encode
from egpu.cli import bill as command
from egpu.cli.snapshot import Snapshot
from support.objects import cluster, place, placed, slice_pod

PAGE = """\
elasticgpu_container_age_seconds{namespace="default",pod="idle",container="app",device_uuid="GPU-n0-0"} 7200
elasticgpu_container_idle_seconds{namespace="default",pod="idle",container="app",device_uuid="GPU-n0-0"} 7200
"""


@pytest.fixture(autouse=True)
def two_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster with an idle pod that has half of the card, and a waiting pod whose team name is a formula."""
    cache = cluster()
    idle = slice_pod("idle", core=60)
    idle = placed(idle, place(cache, idle))
    late = slice_pod("late", core=50)
    stamp = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    metadata = replace(
        late.metadata,
        annotations={names.DEMAND: encode(cache.request(late).demand)},
        creation_timestamp=stamp,
        labels={"team": "=1+1"},
    )
    late = replace(late, metadata=metadata)
    cache.pod_changed(late)
    snapshot = Snapshot(nodes=(), gpus=(), classes=(), claims=(), pods=(idle, late), cache=cache)
    monkeypatch.setattr(command, "load_from", lambda *_, **__: snapshot)


def test_json_has_every_line_with_its_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page").write_text(PAGE)
    command.bill(usage=[str(tmp_path / "page")], output=command.BillFormat.JSON)
    idle, late = json.loads(capsys.readouterr().out)
    assert (idle["name"], idle["cause"], idle["gpuHoursLost"], idle["gpuHoursLostPerDay"]) == (
        "idle",
        "idle",
        1.2,
        14.4,
    )
    assert (late["name"], late["cause"], late["gpuHoursLostPerDay"]) == ("late", "pending", 12.0)
    assert (late["remedy"], late["remedyText"]) == (
        "end",
        "end pod default/idle, which is idle; the pod then fits on n0",
    )


def test_csv_has_the_same_figures_and_no_formulas(capsys: pytest.CaptureFixture[str]) -> None:
    command.bill(output=command.BillFormat.CSV)
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["name"], row["gpuHoursLostPerDay"]) == ("late", "12.0")
    command.bill(by="team", output=command.BillFormat.CSV)
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["team"], row["lines"]) == ("'=1+1", "1")


def test_the_table_says_that_usage_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    command.bill(by="namespace")
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].split() == ["NAMESPACE", "LINES", "LOST", "PER", "DAY"]
    command.bill(namespace="nobody")
    assert "Give --usage" in captured.err
