"""What new nodes would change for a waiting pod: the answer, as values. `egpu.core.new_nodes` finds it."""

from dataclasses import dataclass

from egpu_base.api.quantities import format_mib


@dataclass(frozen=True)
class Help:
    """`count` new nodes like `like` would let the pod start, with the waiting members of its gang."""

    like: str
    count: int
    cards: tuple[tuple[str, int], ...]
    """Model and MiB of each card."""

    def text(self) -> str:
        """Say it for people."""
        models = dict.fromkeys(self.cards)
        cards = ", ".join(f"{self.cards.count(one)} × {one[0]} with {format_mib(one[1])}" for one in models)
        return f"{self.count} more node{'s' if self.count > 1 else ''} like {self.like} ({cards})"


@dataclass(frozen=True)
class Growth:
    """What new nodes would change for a waiting pod. `room_by_sums`: nodes for whose sake autoscalers add none."""

    helps: tuple[Help, ...]
    room_by_sums: tuple[str, ...]

    def lines(self) -> list[str]:
        """Say it for people."""
        text = [f"would help: {one.text()}" for one in self.helps]
        text = text or ["would help: no further node of a kind that this cluster has"]
        if not self.room_by_sums:
            return text
        first, *rest = self.room_by_sums
        more = f" and {len(rest)} more" if rest else ""
        return [*text, f"autoscalers add no node for it: by the sums of their pods, node {first}{more} has room"]
