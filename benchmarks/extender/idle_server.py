"""The floor: our own HTTP server answering the same bytes and doing nothing, `python -m benchmarks.extender.idle_server
FOLDER`. The answer to `/VERB` is the file `FOLDER/VERB.answer`."""

import sys
from collections.abc import Mapping
from pathlib import Path

import uvloop
from starlette.requests import Request
from starlette.responses import Response

from egpu.adapters.listening import Listen, bound, open_socket
from egpu.adapters.posts import Posts
from egpu.adapters.web import TLS, body_within, serve
from egpu.apps.extender.server import MAX_BODY_BYTES


async def _serve(folder: Path, answers: Mapping[str, bytes]) -> None:
    async def answer(request: Request) -> Response:
        await body_within(request, MAX_BODY_BYTES)
        return Response(answers[request.scope["path"]], media_type="application/json")

    tls = TLS(client_ca=folder / "ca.crt")
    tls.load_files(folder / "tls.crt", folder / "tls.key")
    sock = open_socket(Listen("127.0.0.1", 0))
    print(bound(sock).port, flush=True)
    await serve(Posts(dict.fromkeys(answers, answer)), [sock], tls=tls)


if __name__ == "__main__":
    told = Path(sys.argv[1])
    uvloop.run(_serve(told, {f"/{path.stem}": path.read_bytes() for path in told.glob("*.answer")}))
