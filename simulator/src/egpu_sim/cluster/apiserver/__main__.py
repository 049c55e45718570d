"""`python -m egpu_sim.cluster.apiserver`: the server alone, until SIGINT or SIGTERM."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from egpu_base.errors import ElasticGPUError
from egpu_sim.cluster.apiserver.serve import Config, serve


async def _run(config: Config) -> None:
    async with serve(config) as server:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.stop)
        sys.stdout.write(f"{server.kubeconfig}\n")
        sys.stdout.flush()
        await server.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m egpu_sim.cluster.apiserver", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="where the kubeconfig files go")
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free port (default: %(default)s)")
    options = parser.parse_args()
    try:
        asyncio.run(_run(Config(options.directory, host=options.host, port=options.port)))
    except ElasticGPUError as error:
        sys.stderr.write(f"egpu apiserver: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
