"""Measure scheduling, for docs/internals/scheduling-measured.md: `python -m benchmarks.scheduling [STAGE…]`.

Stages: published, churn, mixes, speed. Each keeps its figures in `results/STAGE.json`; tables and plots are drawn from
these, so that one stage can run again by itself. All of them take about an hour on one core. An interrupted stage
continues from `results/STAGE.part.json`; delete that after changing its measurements.
"""

import json
import sys
from functools import partial
from pathlib import Path

from benchmarks.scheduling import stages
from benchmarks.scheduling.report import write_report

RESULTS = Path(__file__).parent / "results"
STAGES = {
    "published": stages.published,
    "churn": stages.churn_gate,
    "mixes": stages.mixes,
    "speed": stages.speed,
}


def _keep(path: Path, found: list[stages.Found]) -> None:
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main(names: list[str]) -> None:
    """Run the named stages (all without names), then draw everything again."""
    unknown = [name for name in names if name not in (*STAGES, "report")]
    if unknown:
        sys.exit(f"unknown stage {', '.join(unknown)}; use one of {', '.join(STAGES)}, report")
    RESULTS.mkdir(exist_ok=True)
    for name in names or STAGES:
        if name in STAGES:
            part = RESULTS / f"{name}.part.json"
            found: list[stages.Found] = json.loads(part.read_text(encoding="utf-8")) if part.exists() else []
            STAGES[name](found, partial(_keep, part))
            part.replace(RESULTS / f"{name}.json")
    write_report(RESULTS)


if __name__ == "__main__":
    main(sys.argv[1:])
