"""Tables and plots of docs/internals/scheduling-measured.md, from the kept results."""

import csv
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.scheduling.stages import BOUNDS, CHURN_POLICIES
from egpu.cli.plots import Line, write_plot
from egpu.core.replay.summary import interval, paired

DOCS = Path("docs/internals/scheduling-measured.md")
PLOT = Path("docs/internals/scheduling-allocation.svg")
CHURN_PLOT = Path("docs/internals/scheduling-churn.svg")
NAMES = {"default": "**price** (learning)", "price-known": "price, mix known", "best-fit": "best-fit"}
THEIRS = {
    "fgd": "06-FGD",
    "best-fit": "05-BestFit",
    "gpu-packing": "04-GpuPacking",
    "dot-product": "02-DotProd",
    "random": "01-Random",
}
Found = dict[str, Any]


def write_report(results: Path) -> None:
    """Replace every table between its markers; keep the table of a stage that was never run."""
    text = DOCS.read_text(encoding="utf-8")
    for name, make in {"published": _published, "churn": _churn, "mixes": _mixes, "speed": _speed}.items():
        path = results / f"{name}.json"
        if path.exists():
            start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
            head, rest = text.split(start)
            text = (
                head
                + start
                + "\n".join(make(json.loads(path.read_text(encoding="utf-8"))))
                + "\n"
                + rest[rest.index(end) :]
            )
    DOCS.write_text(text, encoding="utf-8")


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _table(header: list[str], rows: Iterable[Iterable[object]]) -> list[str]:
    return [_row(header), _row("---" for _ in header), *(_row(row) for row in rows)]


def _of(found: list[Found], **wanted: Any) -> list[Found]:
    return [one for one in found if all(one[key] == value for key, value in wanted.items())]


def _published(found: list[Found]) -> list[str]:
    with Path("data/openb/published.csv").open(encoding="utf-8") as file:
        theirs = [row for row in csv.DictReader(file) if row["workload"] == "openb_pod_list_default"]
    rows = []
    for policy in dict.fromkeys(one["policy"] for one in found):
        own = _of(found, policy=policy)
        means = [interval([one["alloc"][load] for one in own]) for load in ("100", "110", "120", "130")]
        known = [row for row in theirs if row["policy"] == THEIRS.get(policy)]
        published = (
            [statistics.fmean(float(row[f"alloc_{load}"]) for row in known) for load in (100, 130)] if known else []
        )
        rows.append([NAMES.get(policy, policy), *means, *([f"{mean:.2f}" for mean in published] or ["–", "–"])])
    with_curve = [one for one in found if one["curve"]]
    panels = []
    for title, column in (("Allocated GPU, % of capacity", 1), ("Fragmented, % of free GPU", 2)):
        lines = []
        for policy in dict.fromkeys(one["policy"] for one in with_curve):
            curves = [one["curve"] for one in _of(with_curve, policy=policy)]
            length = min(len(curve) for curve in curves)
            points = range(60, length) if column == 1 else range(length)
            lines.append(
                Line(
                    policy,
                    [curves[0][at][0] for at in points],
                    [statistics.fmean(curve[at][column] for curve in curves) for at in points],
                )
            )
        panels.append((title, lines))
    write_plot(PLOT, panels, x_title="Arrived GPU, % of capacity")
    header = ["policy", "@100 %", "@110 %", "@120 %", "@130 %", "published @100", "published @130"]
    return _table(header, rows)


def _churn(found: list[Found]) -> list[str]:
    rows = []
    panels = []
    for lifetime in dict.fromkeys(one["lifetime"] for one in found):
        lines: dict[str, list[float]] = {}
        loads = list(dict.fromkeys(one["load"] for one in _of(found, lifetime=lifetime)))
        for load in loads:
            by_seed: dict[int, dict[str, float]] = {}
            for one in _of(found, lifetime=lifetime, load=load):
                by_seed.setdefault(one["seed"], {})[one["policy"]] = one["refused_gpu_percent"]
            whole = [policies for policies in by_seed.values() if len(policies) == len(CHURN_POLICIES)]
            if not whole:
                continue
            refused = {policy: [policies[policy] for policies in whole] for policy in CHURN_POLICIES}
            best = min(("fgd", "best-fit"), key=lambda policy: statistics.fmean(refused[policy]))
            difference = paired(refused["default"], refused[best])
            cells = [f"{statistics.fmean(values):.2f}" for values in refused.values()]
            rows.append(
                [
                    lifetime.split(":")[0],
                    load,
                    len(whole),
                    *cells,
                    f"{difference.mean:+.2f} ± {difference.half:.2f} ({best})",
                ]
            )
            for policy, values in refused.items():
                lines.setdefault(policy, []).append(statistics.fmean(values))
        title = f"Refused GPU, %, {'exponential' if lifetime.startswith('exp') else 'Pareto'} lifetimes"
        panels.append((title, [Line(policy, loads, values) for policy, values in lines.items()]))
    write_plot(CHURN_PLOT, panels, x_title="Offered load")
    header = ["lifetimes", "load", "seeds", "price", "FGD", "best-fit", "difference to the better (95 %)"]
    return [*_table(header, rows), "", f"![Refused GPU against offered load]({CHURN_PLOT.name})"]


def _mixes(found: list[Found]) -> list[str]:
    rows, gains = [], []
    for mix in dict.fromkeys(one["mix"] for one in found):
        means = {
            policy: [
                statistics.fmean(one["alloc"][load] for one in _of(found, mix=mix, policy=policy))
                for load in ("100", "130")
            ]
            for policy in (*CHURN_POLICIES, *BOUNDS)
        }
        gain = [means["default"][at] - max(means[policy][at] for policy in CHURN_POLICIES[1:]) for at in (0, 1)]
        gains.append(gain)
        cells = [f"{means[policy][at]:.2f}" for at in (0, 1) for policy in (*CHURN_POLICIES, *BOUNDS)]
        rows.append([mix, *cells, f"{gain[0]:+.2f}", f"{gain[1]:+.2f}"])
    medians = [f"{statistics.median(gain[at] for gain in gains):+.2f}" for at in (0, 1)]
    rows.append(["**median**", *[""] * 2 * (len(CHURN_POLICIES) + len(BOUNDS)), *medians])
    columns = ("FGD", "best-fit", *BOUNDS)
    header = ["mix", "price @100", *columns, "price @130", *columns, "gain @100", "gain @130"]
    return _table(header, rows)


def _speed(found: list[Found]) -> list[str]:
    rows = []
    for one in found:
        (base,) = _of(found, nodes=one["nodes"], policy="best-fit")
        cells = [f"{one['per_second_clock']:,}", f"{one['per_second_cpu']:,}"]
        cells += [f"{one['per_second_cpu'] / base['per_second_cpu']:.2f}"]
        cells += [f"{one['p99_milliseconds_clock']:.2f}", f"{one['p99_milliseconds_cpu']:.2f}", one["memory_mib"]]
        rows.append([f"{one['nodes']:,}", NAMES.get(one["policy"], one["policy"]), *cells])
    header = ["decisions/s", "of CPU time", "of best-fit", "p99, ms", "CPU time, ms", "peak memory, MiB"]
    return _table(["nodes", "policy", *header], rows)
