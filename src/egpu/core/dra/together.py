"""Chooses for the pods of a gang at once: each beside those before it, or none.

The pods that take most come first, each at the policy's best place. For members that ask for the same, this finds a
place for all whenever there is one. A gang of unequal members may have to wait although places exist.
"""

from collections.abc import Callable, Sequence

from egpu.core.dra.choosing import Choice, Wish
from egpu.core.gangs.membership import Gang
from egpu.core.placement.hosts import Room
from egpu.core.preemption.scene import Scene
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import DoesNotFit

WishOf = Callable[[Pod], Wish | None]
"""Returns what a pod waits for now; None if its claims have cards. Raises DoesNotFit."""


def choose_together(
    gang: Gang, wish_of: WishOf, choose: Callable[[Wish], Choice], scene: Scene
) -> list[tuple[Pod, Choice]]:
    """Return a choice for each member that waits for cards. Changes nothing.

    Raises DoesNotFit, with the member that finds no room beside the others.
    """
    cache, made = scene.cache, list[tuple[Pod, Choice]]()
    placed: list[tuple[str, tuple[str, Room] | None]] = []
    with cache.ranking.supposing():
        try:
            for pod in sorted(gang.waiting, key=lambda one: _difficulty(one, wish_of)):
                try:
                    wish = wish_of(pod)  # again: a claim that members share may have got its cards
                    choice = choose(wish) if wish is not None else None
                except DoesNotFit as error:
                    fit = len(gang.bound) + len(made)
                    said = f"gang {gang.terms.name}: all {gang.terms.size} members exist, {fit} fit at once"
                    raise DoesNotFit(f"{said}; {pod.name} has no room beside these: {error}") from error
                if choice is None:
                    continue
                made.append((pod, choice))
                for claim in choice.claims:
                    cache.device_claims.assume(claim)
                placed.append((pod.uid, cache.hosts.placed(pod.uid)))
                cache.hosts.pod_placed(pod, choice.node)
        finally:
            for _, choice in made:
                for claim in choice.claims:
                    cache.device_claims.forget(claim.uid)
            for uid, before in placed:
                cache.hosts.pod_gone(uid)
                if before is not None:
                    cache.hosts.put(uid, *before)
    return made


def _difficulty(pod: Pod, wish_of: WishOf) -> tuple[int, int, str]:
    wish = wish_of(pod)
    demands = [one for asked in wish.waiting for one in asked.demands.values()] if wish is not None else []
    cards = sum(one.cards for one in demands)
    core = sum(one.cards * (100 if one.exclusive else one.core) for one in demands)
    return -cards, -core, pod.name


def objection(gang: Gang, mixed: Sequence[Pod]) -> str:
    """Return why no member can be placed, whatever room there is; "". `mixed`: members that ask in another way."""
    if mixed:
        return f"gang {gang.terms.name}: pod {mixed[0].name} asks for cards by resource names, others by ResourceClaims"
    return gang.problem()
