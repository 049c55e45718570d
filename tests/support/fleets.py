"""What a place in a fleet must have, said once more beside the policies that choose places."""

from egpu.core.policies.fleet import Fleet, Placement
from egpu.core.policies.shapes import Shape


def place_fits(fleet: Fleet, shape: Shape, place: Placement) -> bool:
    """Whether exactly this place can take the pod now."""
    row, cards = place
    return (
        len(cards) == len(set(cards)) == shape.cards
        and bool(fleet.cpu[row] >= shape.cpu_milli and fleet.ram[row] >= shape.ram_mib)
        and all(c < fleet.count[row] for c in cards)
        and all(fleet.core[row, c] >= shape.core_milli for c in cards)
        and all(fleet.card_memory[row, c] >= fleet.memory_asked(shape, row) for c in cards)
    )
