"""`make screenshots`: the dashboard's pages as people see them, of a cluster that is filled for it."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from egpu.core.view.records import SETTLED_SECONDS
from egpu.laptop import manifests
from egpu_base.kubernetes import Client
from support.browser import Page, browser
from support.repository import ROOT

WIDTHS: Final = (360, 1280, 2560)
HEIGHTS: Final = {360: 800, 1280: 860, 2560: 1200}
SHOWN: Final = ("overview-1280-light.png", "card-1280-dark.png", "overview-360-dark.png")
"""Those that documents show."""
SPINS: Final = ["egpu-sample-spin", "--seconds", "3600"]
WAITS: Final = ["sleep", "3600"]
PODS: Final[list[tuple[str, str, list[str], dict[str, int]]]] = [
    ("research", "train", SPINS, {"elasticgpu.io/gpu-core": 60, "elasticgpu.io/gpu-memory": 30000}),
    ("research", "evaluate", SPINS, {"elasticgpu.io/gpu-core": 25, "elasticgpu.io/gpu-memory": 10000}),
    ("team-a", "notebook", WAITS, {"elasticgpu.io/gpu-core": 30, "elasticgpu.io/gpu-memory": 20000}),
    ("team-a", "too-large", WAITS, {"nvidia.com/gpu": 8}),
    ("team-b", "serving-1", SPINS, {"elasticgpu.io/gpu-core": 25, "elasticgpu.io/gpu-memory": 4000}),
    ("team-b", "serving-2", SPINS, {"elasticgpu.io/gpu-core": 25, "elasticgpu.io/gpu-memory": 4000}),
    ("team-b", "whole", WAITS, {"nvidia.com/gpu": 1}),
    ("team-c", "shared", WAITS, {"aliyun.com/gpu-mem": 6}),
    ("team-c", "batch", SPINS, {"elasticgpu.io/gpu-core": 40, "elasticgpu.io/gpu-memory": 8000}),
]


def _pod(namespace: str, name: str, command: list[str], limits: dict[str, int]) -> dict[str, Any]:
    container = {"name": "app", "image": "any", "command": command, "resources": {"limits": limits}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


async def _fill(kubeconfig: str) -> None:
    async with Client.from_kubeconfig(kubeconfig) as client:
        for namespace in sorted({one[0] for one in PODS}):
            await client.raw("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
        await manifests.create(client, [_pod(*one) for one in PODS])


def _take(page: Page, url: str, folder: Path) -> None:
    card = str(page.run("document.querySelector('.cards a').getAttribute('href')")).removeprefix(".")
    pages = {
        "overview": "/",
        "workloads": "/workloads",
        "bill": "/bill",
        "card": card,
        "pod": "/pod?namespace=team-a&name=too-large",
        "fit": "/fit?kind=vcuda&core=50&memory=60000",
        "policy": "/policy",
    }
    for name, path in pages.items():
        for width in WIDTHS:
            for theme in ("light", "dark"):
                page.look(width=width, height=HEIGHTS[width], dark=theme == "dark")
                page.open(url + path)
                if name == "card":
                    page.until("document.querySelector('#chart canvas') !== null")
                page.picture(folder / f"{name}-{width}-{theme}.png")


def main() -> None:
    """Into build/pictures, and SHOWN into docs/pictures."""
    folder = ROOT / "build" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "egpu", "up", "--nodes", "4", "--gpus", "3", "-o", "json"]
    command += ["--profile", "A100-80G", "--profile", "T4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cluster:
        assert cluster.stdout is not None
        try:
            lines = ""
            while not lines.rstrip().endswith("\n}"):
                lines += cluster.stdout.readline()
            facts = json.loads(lines)
            asyncio.run(_fill(facts["kubeconfig"]))
            time.sleep(SETTLED_SECONDS + 15)  # what is hatched has had its time
            with tempfile.TemporaryDirectory() as home, browser(Path(home)) as tab:
                page = tab()
                page.open(facts["dashboard"])
                page.until("document.querySelector('.cards a') !== null")
                address = urlsplit(facts["dashboard"])
                _take(page, f"{address.scheme}://{address.netloc}", folder)
        finally:
            cluster.send_signal(2)
    shown = ROOT / "docs" / "pictures"
    shown.mkdir(exist_ok=True)
    for name in SHOWN:
        shutil.copy(folder / name, shown / name)
    sys.stdout.write(f"{len(os.listdir(folder))} pictures in {folder}\n")


if __name__ == "__main__":
    main()
