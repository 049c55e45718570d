"""kube-scheduler's messages about a pod that fits nowhere, with its formatting. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

MAX_EVENT_CHARACTERS = 1024
_ELLIPSIS = " ..."
_VERB = re.compile(r"%[ #0+-]*[0-9]*(?:\.[0-9]*)?(.?)", re.DOTALL)


def unschedulable(node_count: int, reasons: Mapping[str, Sequence[str]], *, after: str = "") -> str:
    """Return "0/4 nodes are available: 3 Insufficient cpu, 1 node(s) were unschedulable. preemption: …".

    Args:
        reasons: by node.
        after: the result of preemption.
    """
    head = f"0/{node_count} nodes are available:"
    histogram = counted(reasons.values())
    return " ".join(part for part in (head, f"{histogram}." if histogram else "", after) if part)


def counted(reasons: Iterable[Sequence[str]]) -> str:
    """Count the nodes with each reason, sorted as texts, so that 10 comes before 2."""
    counts = Counter(reason for of_node in reasons for reason in of_node)
    return ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))


def event_text(message: str) -> str:
    """Return the message as the event has it. kube-scheduler passes it to Go's Sprintf as a format without arguments,
    which makes `%!a(MISSING)` of "% a". An extender must avoid percent signs."""
    cut = message
    if len(message) > MAX_EVENT_CHARACTERS:
        cut = message[: MAX_EVENT_CHARACTERS - len(_ELLIPSIS)] + _ELLIPSIS
    return _VERB.sub(_formatted, cut)


def _formatted(verb: re.Match[str]) -> str:
    match verb.group(1):
        case "%":
            return "%"
        case "":
            return "%!(NOVERB)"
        case letter:
            return f"%!{letter}(MISSING)"
