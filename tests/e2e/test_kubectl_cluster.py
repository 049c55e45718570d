"""Unmodified kubectl against `egpu up`: Debian's 1.20 and the machine's own; and how the cluster ends."""

import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from egpu.api import names
from integration.kubectl import Kubectl, debian_kubectl
from support.commands import Place, up
from support.long import or_long
from support.ports import free_port
from support.waiting import DEADLINE_SECONDS, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
OURS = "egpu,egpuc,egpuclass"
OWN = shutil.which("kubectl", path="/usr/local/bin:/usr/bin:/bin")
TOOLS = or_long(["own" if OWN else "1.20"], ["1.20", "own"])
"""`test_apiserver_kubectl` always has both at the API server."""


class Tool(Kubectl):
    """kubectl with `egpu` as a plugin on its path."""

    @property
    def path(self) -> str:
        return f"{self.home}/bin:{super().path}"

    def json(self, *arguments: str) -> dict[str, Any]:
        return json.loads(self(*arguments, "-o", "json"))

    def apply(self, *documents: dict[str, Any]) -> str:
        return self("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))

    def until(self, what: str, condition: Callable[[], Any]) -> Any:
        return wait_until(condition, lambda: f"{what}\n{self.run('get', f'pods,{OURS}', '-o', 'wide').stdout}")

    def phase(self, kind: str, name: str) -> str:
        return self("get", kind, name, "-o", "jsonpath={.status.phase}")


@pytest.fixture(scope="module")
def kubeconfig() -> Iterator[Path]:
    """One cluster for all of this file, started as a user starts it. Ctrl-C ends it, and nothing is left."""
    with tempfile.TemporaryDirectory(prefix="egpu-test-", dir="/tmp") as root:
        place = Place(Path(root))
        with up(place, "--nodes", "2", "--gpus", "2") as (process, facts):
            yield Path(facts["kubeconfig"])
            start_stubborn(place, facts)
            assert process.poll() is None, place.stderr()
        assert process.returncode == 0, place.stderr()
        assert place.left_behind() == []
        assert "Traceback" not in place.stderr()


@pytest.fixture(params=TOOLS)
def kubectl(request: pytest.FixtureRequest, kubeconfig: Path, tmp_path: Path) -> Iterator[Tool]:
    """One kubectl; what its test made is removed."""
    if request.param == "own" and OWN is None:
        pytest.skip("this machine has no kubectl of its own")
    plugin = tmp_path / "bin" / "kubectl-egpu"
    plugin.parent.mkdir()
    plugin.write_text(f'#!/bin/sh\nexec {sys.executable} -m egpu "$@"\n')
    plugin.chmod(0o755)
    tool = Tool(debian_kubectl() if request.param == "1.20" else Path(str(OWN)), kubeconfig, tmp_path)
    yield tool
    tool("delete", "pods,egpuc,egpuclass", "--all", "--grace-period=0", "--force")
    slices = [one["metadata"]["name"] for one in tool.json("get", "egpu")["items"] if "claimRef" in one["spec"]]
    if slices:
        tool("delete", "egpu", *slices, "--ignore-not-found")


def a_class(name: str, policy: str, mode: str) -> dict[str, Any]:
    return {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "ElasticGPUClass",
        "metadata": {"name": name},
        "provisioner": names.VCUDA,
        "reclaimPolicy": policy,
        "eGPUBindingMode": mode,
    }


def a_claim(name: str, of: str) -> dict[str, Any]:
    return {
        "apiVersion": "elasticgpu.io/v1alpha",
        "kind": "ElasticGPUClaim",
        "metadata": {"name": name},
        "spec": {
            "elasticGPUClassName": of,
            "resources": {"requests": {names.GPU_CORE: 20, names.GPU_MEMORY: "2Gi"}},
        },
    }


def a_pod(name: str, script: str, *, claim: str = "", limits: dict[str, int] | None = None) -> dict[str, Any]:
    annotations = {names.CLAIM_PREFIXES[0] + "app": claim} if claim else {}
    container: dict[str, Any] = {"name": "app", "image": "any", "command": ["sh", "-c", script]}
    if limits:
        container["resources"] = {"limits": limits}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }


def test_the_articles_manifests_apply_unchanged_and_twice(kubectl: Tool):
    seeds = sorted(EXAMPLES.glob("seed-*.yaml"))
    assert len(seeds) == 4
    made = "".join(kubectl("apply", "-f", str(seed)) for seed in seeds)
    assert [line for line in made.splitlines() if not line.endswith(" created")] == []
    before = {one["metadata"]["name"]: one["spec"] for one in kubectl.json("get", "pods")["items"]}
    again = "".join(kubectl("apply", "-f", str(seed)) for seed in seeds)
    # kubectl compares `nvidia.com/gpu: 1` with the server's "1" as text and then sends a patch that changes nothing.
    assert {line.rpartition(" ")[2] for line in again.splitlines()} <= {"unchanged", "configured"}
    after = {one["metadata"]["name"]: one["spec"] for one in kubectl.json("get", "pods")["items"]}
    assert [name for name in before if before[name]["containers"] != after[name]["containers"]] == []
    kubectl.until("the whole card's pod", lambda: kubectl.phase("pod", "cuda-vector-add") == "Succeeded")
    assert "0 wrong: ok" in kubectl("logs", "cuda-vector-add")
    kubectl.until("the gpushare claim", lambda: kubectl.phase("egpuc", "gpushare-egpuc-1") == "Bound")
    kubectl.until("the qGPU claim", lambda: kubectl.phase("egpuc", "qgpu-egpuc") == "Bound")
    kubectl.until("the qGPU pod", lambda: kubectl.phase("pod", "qgpu-pod") == "Running")
    kubectl.until("the qGPU pod's answer", lambda: "0 wrong: ok" in kubectl("logs", "qgpu-pod"))


def test_looking_at_things(kubectl: Tool) -> None:
    kubectl.apply(
        a_class("look", "Delete", "Immediate"),
        a_claim("seen", "look"),
        a_pod("steady", "echo hello; sleep 1000", claim="seen"),
    )
    assert "condition met" in kubectl("wait", "--for=condition=Ready", "pod/steady", "--timeout=90s")
    assert kubectl("logs", "steady") == "hello\n"
    for kind, columns in (
        ("egpu", "NAME NODE CARD SLICE-OF MODEL CORE ALLOCATED MEMORY-MIB ALLOCATED-MIB HELD-BY CLAIM PHASE AGE"),
        ("egpuc", "NAME PHASE CLASS NODE CARD MODEL CORE MEMORY-MIB QOS USED-BY AGE"),
        ("egpuclass", "NAME PROVISIONER RECLAIM-POLICY BINDING-MODE AGE"),
    ):
        header, *rows = kubectl("get", kind).splitlines()
        assert header.split() == columns.split()
        assert rows
    (seen,) = kubectl("get", "egpuc", "seen", "--no-headers").splitlines()
    share = kubectl.json("get", "egpuc", "seen")["status"]["allocation"]
    (card,) = share["container"]["cards"]
    what = [str(card["index"]), *card["model"].split(), str(card["core"]), str(card["memoryMiB"])]
    assert seen.split()[:-1] == ["seen", "Bound", "look", share["node"], *what, "Guaranteed", "steady/app"]
    (held,) = (row for row in kubectl("get", "egpu", "--no-headers").splitlines() if " seen " in row)
    assert held.split()[1:5] == [share["node"], str(card["index"]), str(card["core"]), str(card["memoryMiB"])]

    def shown() -> bool:
        (row,) = (
            row
            for row in kubectl("get", "egpu", "--no-headers").splitlines()
            if row.split()[1:3] == [share["node"], str(card["index"])] and card["model"] in row
        )
        return " Bound " in row and "claim default/seen" in row

    kubectl.until("the card shows who has it", shown)
    described = kubectl("describe", "egpuc", "seen")
    assert "Bound" in described
    described = kubectl("describe", "pod", "steady")
    events = described[described.index("Events:") :]
    assert any(line.split()[:2] == ["Normal", "Scheduled"] for line in events.splitlines()), events
    cards = kubectl("egpu", "get", "gpus")
    assert cards.splitlines()[0].split()[:4] == ["NODE", "CARD", "MODEL", "MODE"]
    assert "claim default/seen (steady/app)" in cards
    placed = kubectl("egpu", "explain", "pod", "steady")
    assert "default/seen" in placed or "seen" in placed
    kubectl("delete", "pod", "steady")
    assert "NotFound" in kubectl.run("get", "pod", "steady").stderr


def test_a_claim_in_use_waits_for_its_pod(kubectl: Tool):
    kubectl.apply(
        a_class("use", "Delete", "Immediate"), a_claim("used", "use"), a_pod("user", "sleep 1000", claim="used")
    )
    kubectl("wait", "--for=condition=Ready", "pod/user", "--timeout=90s")
    kubectl("delete", "egpuc", "used", "--wait=false")
    leaving = kubectl.json("get", "egpuc", "used")
    assert leaving["metadata"]["deletionTimestamp"]
    assert leaving["status"]["phase"] == "Bound"
    assert kubectl.phase("pod", "user") == "Running"
    kubectl("delete", "pod", "user")
    kubectl.until("the end of the claim", lambda: "NotFound" in kubectl.run("get", "egpuc", "used").stderr)
    kubectl.until("the end of its slice", lambda: not slices_of(kubectl, "used"))


def test_retain_and_delete(kubectl: Tool):
    kubectl.apply(
        a_class("kept", "Retain", "Immediate"),
        a_class("dropped", "Delete", "Immediate"),
        a_claim("keep", "kept"),
        a_claim("drop", "dropped"),
    )
    for claim in ("keep", "drop"):
        kubectl.until(f"binding of {claim}", lambda claim=claim: kubectl.phase("egpuc", claim) == "Bound")
        kubectl.until(f"a slice of {claim}", lambda claim=claim: slices_of(kubectl, claim))
    (retained,) = slices_of(kubectl, "keep")
    kubectl("delete", "egpuc", "keep", "drop")
    kubectl.until("Released", lambda: kubectl.phase("egpu", retained) == "Released")
    kubectl.until("the end of the other slice", lambda: not slices_of(kubectl, "drop"))
    assert f"retained {retained}" in kubectl("egpu", "get", "gpus"), "what is retained still holds its card"
    kubectl("delete", "egpu", retained)
    kubectl.until("the card to be free", lambda: retained not in kubectl("egpu", "get", "gpus"))


def test_wait_for_first_consumer(kubectl: Tool):
    kubectl.apply(a_class("late", "Delete", "WaitForFirstConsumer"), a_claim("patient", "late"))
    # Something that is bound after it shows that its turn came and it was left alone.
    kubectl.apply(a_class("soon", "Delete", "Immediate"), a_claim("eager", "soon"))
    kubectl.until("the other claim", lambda: kubectl.phase("egpuc", "eager") == "Bound")
    assert kubectl.phase("egpuc", "patient") in ("Pending", "")
    kubectl.apply(a_pod("consumer", "sleep 1000", claim="patient"))
    kubectl("wait", "--for=condition=Ready", "pod/consumer", "--timeout=90s")
    kubectl.until("the claim to be bound", lambda: kubectl.phase("egpuc", "patient") == "Bound")


def slices_of(kubectl: Tool, claim: str) -> list[str]:
    return [
        one["metadata"]["name"]
        for one in kubectl.json("get", "egpu")["items"]
        if one["spec"].get("claimRef", {}).get("name") == claim
    ]


def start_stubborn(place: Place, facts: Mapping[str, Any]) -> None:
    """Start a container that ignores SIGTERM. It ends with the cluster too."""
    stubborn = "trap '' TERM; echo up; while :; do sleep 0.5; done"
    tool = Tool(Path(OWN) if OWN else debian_kubectl(), Path(facts["kubeconfig"]), place.root)
    tool.apply(a_pod("stubborn", stubborn, limits={names.GPU_CORE: 10, names.GPU_MEMORY: 512}))
    tool.until("the container's word", lambda: tool.run("logs", "stubborn").stdout == "up\n")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_however_the_cluster_ends_nothing_is_left(place: Place, how: signal.Signals):
    """The cluster of the other tests ends by SIGINT."""
    with up(place, "--nodes", "1", "--gpus", "1") as (process, facts):
        start_stubborn(place, facts)
        assert {path.is_dir() for path in place.shared} == {True, False}, "runs of containers, and a simulated machine"
        process.send_signal(how)
        assert process.wait(DEADLINE_SECONDS) == (-how if how is signal.SIGKILL else 0)
        if how is signal.SIGKILL:
            place.until_nothing_is_left()
        assert place.left_behind() == []
    assert "Traceback" not in place.stderr()


def test_two_clusters_at_once_and_a_directory_used_again(place: Place):
    directory = place.root / "state"
    arguments = ("--nodes", "1", "--gpus", "1", "--state-dir", str(directory))
    with up(place, *arguments) as (process, facts):
        refused = place.run("up", *arguments)
        assert refused.returncode == 2
        assert "another cluster runs in" in refused.stderr
        port = facts["server"].rpartition(":")[2]
        taken = place.run("up", "--port", port)
        assert taken.returncode == 1
        assert f":{port}" in taken.stderr
        assert "Traceback" not in refused.stderr + taken.stderr
        process.kill()
        process.wait()
        # At once, while the janitor is still at work.
        with up(place, *arguments) as (_, again):
            assert again["stateDir"] == str(directory)
    assert (directory / "logs").is_dir(), "what was asked to be kept is kept"
    place.until_nothing_is_left()


def a_template(script: str, *, restart: str = "Always", limits: dict[str, int] | None = None) -> dict[str, Any]:
    spec = a_pod("unnamed", script, limits=limits)["spec"]
    return {"metadata": {"labels": {"app": "crew"}}, "spec": {**spec, "restartPolicy": restart}}


def test_a_deployment_of_slices_rolls_from_one_template_to_the_next(kubectl: Tool) -> None:
    limits = {names.GPU_CORE: 20, names.GPU_MEMORY: 1024}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "crew"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "crew"}},
            "template": a_template("sleep 1000", limits=limits),
        },
    }
    kubectl.apply(deployment)
    assert "successfully rolled out" in kubectl("rollout", "status", "deployment/crew", "--timeout=90s")
    kubectl("set", "env", "deployment/crew", "GREETING=hello")
    assert "successfully rolled out" in kubectl("rollout", "status", "deployment/crew", "--timeout=90s")
    kubectl.until("the old pods are gone", lambda: len(kubectl.json("get", "pods", "-l", "app=crew")["items"]) == 2)
    for pod in kubectl.json("get", "pods", "-l", "app=crew")["items"]:
        assert names.ALLOCATION in pod["metadata"]["annotations"]
        assert {"name": "GREETING", "value": "hello"} in pod["spec"]["containers"][0]["env"]
    kubectl("rollout", "undo", "deployment/crew")
    assert "successfully rolled out" in kubectl("rollout", "status", "deployment/crew", "--timeout=90s")
    kubectl("delete", "deployment", "crew")
    kubectl.until("nothing is left of it", lambda: not kubectl.json("get", "pods,rs", "-l", "app=crew")["items"])


def test_a_job_on_a_slice_runs_to_its_end(kubectl: Tool) -> None:
    template = a_template("echo done", restart="Never", limits={names.GPU_CORE: 20, names.GPU_MEMORY: 1024})
    spec = {"completions": 2, "parallelism": 2, "template": template}
    kubectl.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once"}, "spec": spec})
    assert "condition met" in kubectl("wait", "--for=condition=complete", "job/once", "--timeout=90s")
    assert kubectl("logs", "job/once") == "done\n"
    kubectl("delete", "job", "once")
    kubectl.until("its pods are gone", lambda: not kubectl.json("get", "pods", "-l", "job-name=once")["items"])


STREAMS_BY_WEBSOCKET = (1, 31)


@pytest.fixture
def streaming(kubectl: Tool) -> Tool:
    """A kubectl that speaks WebSockets."""
    said = json.loads(kubectl("version", "--client", "-o", "json"))["clientVersion"]
    if (int(said["major"]), int(said["minor"].rstrip("+"))) < STREAMS_BY_WEBSOCKET:
        pytest.skip(f"kubectl {said['gitVersion']} streams by SPDY alone")
    return kubectl


SLICE = {names.GPU_CORE: 20, names.GPU_MEMORY: 1024}


def test_a_shell_beside_a_pod_has_its_slice(streaming: Tool, tmp_path: Path) -> None:
    streaming.apply(a_pod("steady", "echo hello; sleep 1000", limits=SLICE))
    streaming("wait", "--for=condition=Ready", "pod/steady", "--timeout=90s")
    query = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    assert streaming("exec", "steady", "--", *query) == "1024\n"
    assert streaming("exec", "-i", "steady", "--", "cat", stdin="in and out\n") == "in and out\n"
    failed = streaming.run("exec", "steady", "--", "sh", "-c", "echo why >&2; exit 5")
    assert (failed.returncode, failed.stderr.splitlines()[0]) == (5, "why")
    (tmp_path / "there").write_bytes(bytes(range(256)) * 4096)
    streaming("cp", str(tmp_path / "there"), f"steady:{tmp_path}/copied")
    streaming("cp", f"steady:{tmp_path}/copied", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (tmp_path / "there").read_bytes()


def test_what_pods_say_and_use(streaming: Tool) -> None:
    streaming.apply(a_pod("talks", "for i in 1 2 3; do echo $i; sleep 1; done; sleep 1000"))
    streaming.until("it has said all", lambda: streaming.run("logs", "talks").stdout == "1\n2\n3\n")
    times = [line.split()[0] for line in streaming("logs", "talks", "--timestamps").splitlines()]
    assert streaming("logs", "talks", f"--since-time={times[2]}") == "3\n"
    assert streaming("top", "pod", "talks", "--containers").split()[:2] == ["POD", "NAME"]
    assert "node-1" in streaming("top", "node")


RUN = ("run", "typed", "--image=any", "--restart=Never", "--rm")


def test_what_is_piped_into_a_new_pod_is_its_input(streaming: Tool) -> None:
    done = streaming.run(*RUN, "-i", "--command", "--", "sh", stdin="echo one\nexit 7\n")
    assert (done.returncode, done.stdout.splitlines()[0]) == (7, "one"), done.stderr
    assert "not found" in streaming.run("get", "pod", "typed").stderr


def test_a_new_pod_has_the_terminal_of_who_runs_it(streaming: Tool) -> None:
    """Its size, its keys, and how it ends; who attaches later has it as well."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 31, 99, 0, 0))
    command = [str(streaming.binary), *RUN, "-it", "--command", "--", "sh", "-c", "sleep 1; exec sh -i"]
    process = subprocess.Popen(
        command, env=streaming.environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    shown = b""

    def shows(text: bytes) -> bool:
        nonlocal shown
        with contextlib.suppress(BlockingIOError):
            shown += os.read(ours, 65536)
        return text in shown

    def typed(line: bytes, answer: bytes) -> None:
        os.write(ours, line + b"\r")
        wait_until(lambda: shows(answer), lambda: f"no {answer!r} in {shown!r}")

    try:
        wait_until(lambda: shows(b"see a command prompt"), lambda: f"not attached: {shown!r}")
        typed(b"stty size; tty", b"31 99\r\n/dev/pts/")
        typed(b"python3 -c 'import time; print(6 * 7, flush=True); time.sleep(1000)'", b"42\r\n")
        typed(b"\x03echo $((600 + 66))", b"666\r\n")
        second = streaming.run("attach", "-i", "typed", stdin="exit 5\n")
        assert second.returncode == 0, second.stderr
        assert process.wait(DEADLINE_SECONDS) == 5, shown
    finally:
        process.kill()
        os.close(ours)


def test_what_is_not_there_says_what_to_do(kubectl: Tool) -> None:
    kubectl.apply(a_pod("steady", "sleep 1000"))
    kubectl("wait", "--for=condition=Ready", "pod/steady", "--timeout=90s")
    if kubectl.run("debug", "--help").returncode != 0:
        pytest.skip("this kubectl has no `debug`")
    done = kubectl.run("debug", "steady", "--image=busybox")
    assert done.returncode == 1
    assert "is not in the simulated cluster" in done.stderr
    assert "kubectl exec -it steady" in done.stderr
    assert "panic" not in done.stderr


ECHO = """import socketserver as s
s.TCPServer.allow_reuse_address = True
class H(s.StreamRequestHandler):
    def handle(self): self.wfile.write(self.rfile.read())
"""


def test_a_port_of_a_pod_is_reached_through_the_api(streaming: Tool) -> None:
    port, local = free_port(), free_port()
    serve = f"s.ThreadingTCPServer(('127.0.0.1', {port}), H).serve_forever()"
    pod = a_pod("echoes", 'exec python3 -c "$PROGRAM"')
    pod["spec"]["containers"][0]["env"] = [{"name": "PROGRAM", "value": ECHO + serve}]
    streaming.apply(pod)
    streaming("wait", "--for=condition=Ready", "pod/echoes", "--timeout=90s")
    streaming.until("it listens", lambda: reachable(port))
    command = [str(streaming.binary), "port-forward", "echoes", f"{local}:{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=streaming.environment, text=True) as forwarding:
        assert forwarding.stdout is not None
        try:
            assert f"127.0.0.1:{local} -> {port}" in forwarding.stdout.readline()
            for text in (b"once", b"again", bytes(range(256)) * 8192):
                assert echoed(local, text) == text
        finally:
            forwarding.terminate()


def echoed(port: int, text: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS) as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answer:
            return answer.read()


def reachable(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_all_examples_are_made_and_removed_at_once(kubectl: Tool) -> None:
    kubectl("apply", "-f", str(EXAMPLES))
    kubectl("delete", "-f", str(EXAMPLES), "--wait=false")
