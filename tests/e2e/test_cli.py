"""`egpu get` and `egpu explain` on a small cluster: for people, for pipes and for scripts."""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from egpu.api import names
from egpu.laptop import manifests
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from egpu_sim.cluster.apiserver import Config, serve
from support.commands import Place, up
from support.terminal import on_terminal
from support.waiting import until


@dataclass
class Shell:
    place: Place
    kubeconfig: str

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Return stdout of `egpu ARGUMENTS`, which is plain text."""
        done = self.place.run(*arguments, KUBECONFIG=self.kubeconfig)
        assert done.returncode == code, done.stdout + done.stderr
        assert "\x1b" not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr


def a_pod(name: str, core: int) -> dict[str, Any]:
    limits = {names.GPU_CORE: core, names.GPU_MEMORY: 1024}
    container = {"name": "app", "image": "any", "command": ["sleep", "1000"], "resources": {"limits": limits}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    """A cluster of one node with one card, a running pod, a waiting pod, and a claim."""
    with tempfile.TemporaryDirectory(prefix="egpu-test-", dir="/tmp") as root:
        place = Place(Path(root))
        with up(place, "--nodes", "1", "--gpus", "1") as (_, facts):
            asyncio.run(_fill(Path(facts["kubeconfig"])))
            yield Shell(place, facts["kubeconfig"])


async def _fill(kubeconfig: Path) -> None:
    async with Client.from_kubeconfig(kubeconfig) as client:
        claim = [one for one in manifests.read(manifests.examples() / "claim.yaml") if one["kind"] != "Pod"]
        await manifests.create(client, [*claim, a_pod("runs", 60)])

        async def running() -> bool:
            return (await client.get(Pod, "runs", namespace="default")).status.phase == "Running"

        await until(running)
        selective = a_pod("selective", 10)
        selective["spec"]["nodeSelector"] = {"zone": "a"}
        await manifests.create(client, [a_pod("waits", 50), selective])

        async def looked_at() -> bool:
            waiting = [await client.get(Pod, name, namespace="default") for name in ("waits", "selective")]
            return all(one.status.conditions for one in waiting)

        await until(looked_at)


def test_tables_in_a_pipe_are_plain_and_aligned(shell: Shell):
    for what, header in (
        ("nodes", "NODE STATUS CARDS"),
        ("gpus", "NODE CARD MODEL MODE"),
        ("claims", "NAMESPACE NAME PHASE CLASS"),
        ("pods", "NAMESPACE POD CONTAINER"),
    ):
        first, *rows = shell("get", what).splitlines()
        assert first.split()[: len(header.split())] == header.split()
        assert rows


@pytest.mark.parametrize("what", ["nodes", "gpus", "claims", "pods"])
def test_on_a_small_terminal_no_table_breaks(shell: Shell, what: str):
    environment = shell.place.environment(KUBECONFIG=shell.kubeconfig)
    lines = on_terminal("get", what, environment=environment)
    assert max(map(len, lines)) <= 80, lines
    records = json.loads(shell("get", what, "-o", "json"))
    shown = " ".join(lines).split()
    name = {"nodes": "node", "gpus": "node", "claims": "name", "pods": "pod"}[what]
    assert {record[name] for record in records} <= set(shown), "names are whole"
    assert "█" not in " ".join(lines), "bars are for wide terminals"


def test_on_a_small_terminal_the_bill_does_not_break(shell: Shell):
    environment = shell.place.environment(KUBECONFIG=shell.kubeconfig)
    title, heading, *lines = on_terminal("bill", environment=environment)
    rows = lines[: next(at for at, line in enumerate(lines) if "GPU-hours are lost" in line)]
    assert (title, heading.split()[:2]) == ("GPU-hours lost", ["NAMESPACE", "NAME"])
    assert max(map(len, rows)) <= 80, rows
    assert "waits" in " ".join(rows).split()


def test_watch_runs_until_ctrl_c(shell: Shell):
    environment = shell.place.environment(KUBECONFIG=shell.kubeconfig)
    lines = on_terminal("get", "pods", "-w", environment=environment, interrupt_at="selective")
    assert max(map(len, lines)) <= 80, lines
    assert any(line.startswith("NAMESPACE") for line in lines), lines
    assert not any("Traceback" in line for line in lines), lines


def test_json_and_yaml_say_the_same_with_units(shell: Shell):
    for what in ("nodes", "gpus", "claims", "pods"):
        records = json.loads(shell("get", what, "-o", "json"))
        assert isinstance(records, list)
        assert records
    (card,) = json.loads(shell("get", "gpus", "-o", "json"))
    assert (card["corePercentGiven"], card["memoryMiBGiven"], card["memoryMiB"]) == (60, 1024, 81156)
    assert yaml.safe_load(shell("get", "gpus", "-o", "yaml")) == [card]


def test_names_and_namespaces(shell: Shell):
    assert shell("get", "gpu") == shell("get", "gpus") == shell("get", "egpu")
    assert shell("get", "claim", "-o", "json") == shell("get", "claims", "-A", "-o", "json")
    assert "runs" in shell("get", "pod", "-n", "default")
    assert "runs" not in shell("get", "po", "-n", "elsewhere")
    assert json.loads(shell("get", "pods", "-n", "elsewhere", "-o", "json")) == []


def test_a_placed_pod_is_explained(shell: Shell):
    text = shell("explain", "pod", "runs")
    assert "node-1" in text
    assert text == shell("explain", "pod", "default/runs")
    assert json.loads(shell("explain", "pod", "runs", "-o", "json"))["state"] == "placed"


def test_a_waiting_pod_is_explained_card_by_card(shell: Shell):
    text = shell("explain", "pod", "waits")
    assert "card 0" in text
    assert "has 40 % of compute free, 50 % needed" in text
    assert json.loads(shell("explain", "pod", "waits", "-o", "json"))["state"] == "waiting"


def test_reasons_of_the_scheduler_are_explained(shell: Shell):
    text = shell("explain", "pod", "selective")
    assert "pod default/selective: waits: 1 of 1 nodes have the cards; the scheduler rejects them" in text
    assert "node node-1: has no label zone, and the pod selects zone=a" in text
    assert "elastic-gpu-scheduler said" in text
    assert "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector." in text


def test_a_shell_completes_the_names_of_pods(shell: Shell):
    for typed, names_ in (
        ("egpu explain pod ", ["runs", "selective", "waits"]),
        ("egpu explain pod se", ["selective"]),
        ("egpu explain pod -n elsewhere ", []),
    ):
        words = str(len(typed.split(" ")) - 1)
        done = shell.place.run(
            KUBECONFIG=shell.kubeconfig, _EGPU_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=words
        )
        assert (done.stdout.split(), done.stderr, done.returncode) == (names_, "", 0)


def test_a_missing_pod(shell: Shell):
    assert "namespace default has no pod nobody" in shell("explain", "pod", "nobody", code=1)


async def test_a_cluster_without_elastic_gpu(tmp_path: Path, place: Place):
    async with serve(Config(directory=tmp_path)) as server:
        done = await asyncio.to_thread(place.run, "get", "gpus", "--kubeconfig", str(server.kubeconfig))
    assert done.returncode == 1
    assert "no Elastic GPU installed" in done.stderr
    assert len(done.stderr.splitlines()) == 1
