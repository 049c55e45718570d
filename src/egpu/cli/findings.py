"""Results of checks: a table for people, records for scripts."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from egpu.cli.output import Format, Table, show


class State(StrEnum):
    """The result of a check. Unseen: not checked. Limited: works with fewer features than on other machines."""

    OK = "ok"
    WRONG = "wrong"
    UNSEEN = "unseen"
    LIMITED = "limited"


@dataclass(frozen=True)
class Finding:
    """The result of a check. `mend` says how to fix a fault, and `see` where to read on."""

    state: State
    found: str
    mend: str = ""
    see: str = ""


def show_findings(findings: Mapping[str, Finding], output: Format) -> bool:
    """Print the findings. Return whether no check failed."""
    table = Table(("check", "state", "found", "to fix"), sentences=True)
    for name, one in findings.items():
        record = {"check": name, "state": one.state.value, "found": one.found, "mend": one.mend, "see": one.see}
        mend = f"{one.mend}. See {one.see}" if one.see else one.mend
        table.add((name, one.state.value, one.found, mend or "-"), record)
    show(table, output)
    return all(one.state is not State.WRONG for one in findings.values())
