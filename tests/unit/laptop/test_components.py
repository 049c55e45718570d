"""The product's components on the embedded cluster."""

from pathlib import Path

from egpu.api import names
from egpu.laptop.cluster import WEBHOOK_SERVICE, ClusterConfig, Product
from egpu_sim.cluster.ports import ports


def test_an_existing_scheduler_finds_the_extender(tmp_path: Path) -> None:
    product = Product(ClusterConfig(scheduler="existing"))
    with ports() as taken:
        product.prepare(tmp_path, taken)
    configuration = product.scheduler_config("/some/kubeconfig")
    (extender,) = configuration["extenders"]
    assert extender["urlPrefix"] == product.extender_url
    assert [one["name"] for one in extender["managedResources"]] == [names.SLOT]
    assert configuration["clientConnection"]["kubeconfig"] == "/some/kubeconfig"
    assert product.own_scheduler() is None


def test_beside_our_own_scheduler_the_clusters_asks_nobody(tmp_path: Path) -> None:
    product = Product(ClusterConfig())
    with ports() as taken:
        product.prepare(tmp_path, taken)
    assert "extenders" not in product.scheduler_config("/some/kubeconfig")
    own = product.own_scheduler()
    assert own is not None
    assert own.user in product.users(), "it has the extender's account, as in deploy/"


def test_agents_alone_are_bound_to_their_node() -> None:
    product = Product(ClusterConfig())
    assert set(product.users()) == {"webhook", "extender", "controller", "dashboard", "viewer"}
    assert set(product.node_users("node-1")) == {"agent-node-1"}
    assert product.resolve_service("any", WEBHOOK_SERVICE, 1234) == ("127.0.0.1", 1234)
    assert product.resolve_service("any", "another", 1234) is None
