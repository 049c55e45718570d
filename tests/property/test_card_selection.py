"""Whatever is asked and whatever is given out already: a container gets cards that it selects, or none."""

from hypothesis import given, settings
from hypothesis import strategies as st

from egpu.api import names
from egpu.core.attributes import PREFERENCES, CardKind, parse_selector, selects
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu.core.policies.registry import Policies
from egpu_base.api.kubernetes import Pod
from support.long import or_long
from support.objects import BINPACK, SPREAD, card, container, pod

MODELS = {"T4": (15360, 8.1), "A100": (81920, 19.5), "H100": (81920, 67.0), "L4": (23034, 30.3)}

term = st.one_of(
    st.lists(st.sampled_from(sorted(MODELS)), min_size=1, max_size=3).map(lambda few: f"model in ({', '.join(few)})"),
    st.sampled_from(sorted(MODELS)).map(lambda one: f"model != {one}"),
    st.tuples(st.sampled_from("<>"), st.sampled_from((8, 16, 40, 80, 81))).map(lambda of: f"memory {of[0]} {of[1]}Gi"),
    st.tuples(st.sampled_from("<>"), st.sampled_from((8, 8.1, 20, 60))).map(lambda of: f"tflops {of[0]} {of[1]}"),
    st.sampled_from(("numa", "!numa", "tflops.fp16", "linkDomain")),
)
selector = st.lists(term, min_size=1, max_size=3).map(", ".join)


@st.composite
def asking(draw: st.DrawFn, name: str) -> Pod:
    """One or two containers, the second perhaps an init container, that share a selector, or none."""
    said = {names.CARD_SELECTOR: draw(selector)} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        said[names.CARD_PREFERENCE] = draw(st.sampled_from(PREFERENCES))
    core = st.sampled_from((10, 40, 70))
    few: dict[str, int | str] = {names.GPU: draw(st.sampled_from((1, 1, 2))), names.GPU_CORE: draw(core)}
    whole: dict[str, int | str] = {names.NVIDIA_GPU: draw(st.sampled_from((1, 2)))}
    words = [few | {names.GPU_MEMORY: 1024}, whole, {names.GPU_CORE: draw(core), names.GPU_MEMORY: 4096}]
    first, second = (container(which, draw(st.sampled_from(words))) for which in ("app", "other"))
    beside = draw(st.sampled_from(("no", "yes", "before")))
    containers = (first, second) if beside == "yes" else (first,)
    return pod(name, *containers, init=(second,) if beside == "before" else (), annotations=said)


nodes = st.lists(st.lists(st.sampled_from(sorted(MODELS)), min_size=1, max_size=4), min_size=1, max_size=4)


def cluster_of(models: list[list[str]]) -> SchedulerCache:
    return rebuild(
        [
            card(f"n{at}", index, model=f"NVIDIA {model}", memory_mib=MODELS[model][0], tflops=MODELS[model][1])
            for at, node in enumerate(models)
            for index, model in enumerate(node)
        ],
        [],
        [],
    )


@settings(max_examples=or_long(50, 150), deadline=None)
@given(models=nodes, data=st.data(), policies=st.sampled_from((BINPACK, SPREAD)))
def test_nothing_is_ever_given_that_was_not_selected(
    models: list[list[str]], data: st.DataObject, policies: Policies
) -> None:
    cache = cluster_of(models)
    everywhere = [f"n{at}" for at in range(len(models))]
    for number in range(data.draw(st.integers(1, 5))):
        what = data.draw(asking(f"p{number}"))
        request = cache.request(what)
        fits = cache.filter(request, everywhere).fits
        scores = cache.ranking.scores(request, everywhere, policies)
        assert {node for node, score in scores.items() if score > 0} <= set(fits)
        for node in fits:
            given_cards = cache.ranking.choose(request, node, policies)
            text = what.annotations.get(names.CARD_SELECTOR)
            wanted = parse_selector(text, "f") if text else ()
            for allocation in given_cards.containers.values():
                for share in allocation.cards:
                    model = share.model.removeprefix("NVIDIA ")
                    kind = CardKind(share.model, share.card_memory_mib, tflops=(("fp32", MODELS[model][1]),))
                    assert selects(wanted, kind), (text, kind)
        if fits:
            best = max(fits, key=lambda node: scores[node])
            cache.assume_pod(what, cache.ranking.choose(request, best, policies))


@settings(max_examples=or_long(50, 150), deadline=None)
@given(models=nodes, prefer=st.sampled_from(PREFERENCES), text=st.none() | selector)
def test_of_an_empty_cluster_the_strongest_or_weakest_is_taken(
    models: list[list[str]], prefer: str, text: str | None
) -> None:
    cache = cluster_of(models)
    said = {names.CARD_PREFERENCE: prefer} | ({names.CARD_SELECTOR: text} if text else {})
    what = pod("p", container("app", {names.GPU_CORE: 10, names.GPU_MEMORY: 100}), annotations=said)
    request = cache.request(what)
    everywhere = [f"n{at}" for at in range(len(models))]
    scores = cache.ranking.scores(request, everywhere, BINPACK)
    best = max(everywhere, key=lambda node: scores[node])
    wanted = parse_selector(text, "f") if text else ()
    kinds = {
        model: CardKind(f"NVIDIA {model}", MODELS[model][0], "", (("fp32", MODELS[model][1]),)) for model in MODELS
    }
    suiting = [kinds[model].strength for node in models for model in node if selects(wanted, kinds[model])]
    if not suiting:
        assert cache.filter(request, everywhere).fits == ()
        return
    (share,) = cache.ranking.choose(request, best, BINPACK).containers["app"].cards
    chosen = kinds[share.model.removeprefix("NVIDIA ")].strength
    assert chosen == (max(suiting) if prefer == "strongest" else min(suiting))
