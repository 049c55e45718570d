"""The floor: our own HTTP server answering the same bytes and doing nothing, `python -m benchmarks.extender.idle_server
FOLDER`. The answer to `/VERB` is the file `FOLDER/VERB.answer`."""

import sys
from collections.abc import Mapping
from pathlib import Path

import uvloop

from egpu.apps.extender.server import MAX_BODY_BYTES, MAX_HELD_BYTES
from egpu_base.http.listening import Listen, bound, open_socket
from egpu_base.http.post_server import Answer, AtOnce, Post, Posts
from egpu_base.http.web import TLS, serve


def _saying(answer: bytes) -> Post:
    return Post(AtOnce(lambda _: Answer(answer)), MAX_BODY_BYTES)


async def _serve(folder: Path, answers: Mapping[str, bytes]) -> None:
    tls = TLS(client_ca=folder / "ca.crt")
    tls.load_files(folder / "tls.crt", folder / "tls.key")
    sock = open_socket(Listen("127.0.0.1", 0))
    print(bound(sock).port, flush=True)
    paths = {path: _saying(answer) for path, answer in answers.items()}
    await serve(Posts(paths, at_most_bytes=MAX_HELD_BYTES), [sock], tls=tls)


if __name__ == "__main__":
    told = Path(sys.argv[1])
    uvloop.run(_serve(told, {f"/{path.stem}": path.read_bytes() for path in told.glob("*.answer")}))
