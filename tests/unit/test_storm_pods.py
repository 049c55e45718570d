"""The storm's own pods: each can run on one of its nodes, so that a long storm does not wait for one in vain."""

from support.storm import CARDS_PER_NODE, manifests, most_cards


def test_each_pod_of_a_storm_fits_on_one_node() -> None:
    pods = [pod for seed in range(300) for pod in manifests(seed, 12)]
    assert max(most_cards(pod["spec"]["containers"]) for pod in pods) == CARDS_PER_NODE
