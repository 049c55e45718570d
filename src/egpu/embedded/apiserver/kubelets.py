"""The kubelets of this machine, as the API server reaches them: by the socket that their node names."""

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

from egpu.embedded.apiserver.objects import Json, at
from egpu.embedded.apiserver.status import refused
from egpu.embedded.apiserver.store import Store
from egpu.embedded.streams import ANNOTATION, Answer, Connection, Question, connect
from egpu.errors import Unavailable


@contextlib.asynccontextmanager
async def ask(store: Store, node: str, question: Question) -> AsyncGenerator[tuple[Connection, Answer], None]:
    """Ask the kubelet of a node. Raises RequestRefused (503) where none answers."""
    item = store.get("nodes", ("", node))
    path = at(Json() if item is None else item.obj, "metadata", "annotations", ANNOTATION)
    if not path:
        raise refused(503, "ServiceUnavailable", f"node {node} has no kubelet of the embedded cluster")
    async with contextlib.AsyncExitStack() as stack:
        try:
            asked = await stack.enter_async_context(connect(Path(str(path)), question))
        except Unavailable as error:
            raise refused(503, "ServiceUnavailable", f"node {node}: {error}") from error
        yield asked
