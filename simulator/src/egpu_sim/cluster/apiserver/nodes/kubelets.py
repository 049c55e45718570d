"""Access to the kubelets of this machine, by the socket in their node's annotation."""

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

from egpu_base.errors import Unavailable
from egpu_sim.cluster.apiserver.status import refused
from egpu_sim.cluster.apiserver.storage.store import Store
from egpu_sim.cluster.streams import ANNOTATION, Answer, Connection, Question, connect
from egpu_sim.cluster.trees import Json, at


@contextlib.asynccontextmanager
async def ask(store: Store, node: str, question: Question) -> AsyncGenerator[tuple[Connection, Answer], None]:
    """Ask the kubelet of a node. Raises RequestRefused (503) without an answer."""
    item = store.get("nodes", ("", node))
    path = at(Json() if item is None else item.obj, "metadata", "annotations", ANNOTATION)
    if not path:
        raise refused(503, "ServiceUnavailable", f"node {node} has no kubelet of the simulated cluster")
    async with contextlib.AsyncExitStack() as stack:
        try:
            asked = await stack.enter_async_context(connect(Path(str(path)), question))
        except Unavailable as error:
            raise refused(503, "ServiceUnavailable", f"node {node}: {error}") from error
        yield asked
