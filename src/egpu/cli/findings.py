"""What a command that examines something found, check by check: a table for people, records for scripts, and whether
anything is wrong."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from egpu.cli.output import Format, Table, show


class State(StrEnum):
    """What a check came to. Limited: it works, and not all that there is elsewhere."""

    OK = "ok"
    WRONG = "wrong"
    UNSEEN = "unseen"
    LIMITED = "limited"


@dataclass(frozen=True)
class Finding:
    """What a check found; `mend` says what to do where that is wrong."""

    state: State
    found: str
    mend: str = ""


def show_findings(findings: Mapping[str, Finding], output: Format) -> bool:
    """Print them; whether nothing is wrong."""
    table = Table(("check", "state", "found", "to mend"))
    for name, one in findings.items():
        record = {"check": name, "state": one.state.value, "found": one.found, "mend": one.mend}
        table.add((name, one.state.value, one.found, one.mend or "-"), record)
    show(table, output)
    return all(one.state is not State.WRONG for one in findings.values())
