"""What runs beside or is seen of running containers: exec, attach, their logs' times, what they use."""

import contextlib
import datetime
import os
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from egpu_base.errors import ElasticGPUError, NotFound
from egpu_sim.cluster import streams
from egpu_sim.cluster.apiserver import User, node_user
from support.channels import CLOSE, ERROR, RESIZE, STDERR, STDIN, STDOUT, Refused, channels
from support.local_node import NODE, LocalNode, local_node, shell
from support.process_table import with_command
from support.waiting import until

PODS = "/api/v1/namespaces/default/pods"
SUCCESS = {"metadata": {}, "status": "Success"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncGenerator[LocalNode]:
    """A node with a pod `box` that says a line and waits."""
    with tempfile.TemporaryDirectory(prefix="egr-", dir="/tmp") as directory:
        async with local_node(Path(directory), agent=False) as here:
            env = [{"name": "COLOR", "value": "blue"}]
            script = "echo begun; while :; do sleep 0.1; done"
            volumes = {"volumeMounts": [{"name": "s", "mountPath": "/egpu-test-scratch"}]}
            main = shell("main", script, gpu=False, env=env, workingDir="/usr", **volumes)
            await here.create("box", [main], volumes=[{"name": "s", "emptyDir": {}}])
            await here.phase("box", "Running")
            yield here


pytestmark = pytest.mark.asyncio(loop_scope="module")


def run(node: LocalNode, *command: str, pod: str = "box", **more: Any) -> Any:
    query: dict[str, Any] = {"command": list(command), "stdout": "true", "stderr": "true", **more}
    return channels(node.kubeconfig.read_text(), f"{PODS}/{pod}/exec", **query)


async def done(node: LocalNode, *command: str, **more: Any) -> tuple[dict[str, Any], dict[int, bytes]]:
    async with run(node, *command, **more) as opened:
        return await opened.end(), opened.said


async def test_a_command_runs_in_the_container_s_view(node: LocalNode) -> None:
    status, said = await done(
        node, "sh", "-c", "echo $COLOR; pwd; test -d /egpu-test-scratch && echo there; echo no >&2"
    )
    assert status == SUCCESS
    assert (said[STDOUT], said[STDERR]) == (b"blue\n/usr\nthere\n", b"no\n")
    assert b"egpu-test-scratch" not in os.listdir(b"/"), "it is the container's alone"


@pytest.mark.parametrize(("script", "code"), [("exit 7", "7"), ("kill -9 $$", "137")])
async def test_an_exit_code_is_told_as_kubectl_reads_it(node: LocalNode, script: str, code: str) -> None:
    status, _ = await done(node, "sh", "-c", script)
    assert (status["status"], status["reason"]) == ("Failure", "NonZeroExitCode")
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": code}]


async def test_input_goes_in_and_ends(node: LocalNode) -> None:
    async with run(node, "cat", stdin="true") as opened:
        await opened.send(STDIN, b"one ")
        await opened.hear(STDOUT, b"one ")
        await opened.send(STDIN, b"x" * 500_000)
        await opened.send(CLOSE, bytes([STDIN]))
        assert await opened.end() == SUCCESS
        assert opened.said[STDOUT] == b"one " + b"x" * 500_000


async def test_a_terminal_has_the_caller_s_size(node: LocalNode) -> None:
    async with run(node, "sh", stdin="true", stderr="false", tty="true") as opened:
        await opened.send(RESIZE, b'{"Width":101,"Height":47}')
        await opened.send(STDIN, b"stty size; echo $TERM; exit 3\n")
        status = await opened.end()
    assert status["details"]["causes"][0]["message"] == "3"
    assert b"47 101\r\n" in opened.said[STDOUT]
    assert b"xterm\r\n" in opened.said[STDOUT]


async def test_version_4_of_the_protocol_will_do(node: LocalNode) -> None:
    status, said = await done(node, "echo", "hello", protocol="v4.channel.k8s.io")
    assert (status, said[STDOUT]) == (SUCCESS, b"hello\n")


async def test_nothing_is_left_when_the_caller_goes(node: LocalNode) -> None:
    async with run(node, "sh", "-c", "trap '' TERM HUP; echo up; sleep 543223", stdin="true") as opened:
        await opened.hear(STDOUT, b"up")
        await until(lambda: with_command("sleep 543223"), "it goes on")
    await until(lambda: not with_command("sleep 543223"), "the command has ended")


async def test_nothing_is_left_when_he_goes_while_his_input_waits(node: LocalNode) -> None:
    async with run(node, "sh", "-c", "echo up; sleep 543211", stdin="true") as opened:
        await opened.hear(STDOUT, b"up")
        for _ in range(20):
            await opened.send(STDIN, b"x" * 100_000)
    await until(lambda: not with_command("sleep 543211"), "the command has ended")


async def test_it_ends_with_its_container(node: LocalNode) -> None:
    await node.create("short", [shell("main", "sleep 543212", gpu=False)])
    await node.phase("short", "Running")
    async with run(node, "sh", "-c", "echo up; sleep 543213", pod="short") as opened:
        await opened.hear(STDOUT, b"up")
        pod = await node.read("short")
        await node.client.delete(type(pod), "short", namespace="default")
        assert (await opened.end())["status"] == "Failure"
    await until(lambda: not with_command("sleep 543213"), "the command has ended")


async def refusal(node: LocalNode, path: str, **query: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        async with channels(node.kubeconfig.read_text(), path, **query):
            pass
    return refused.value


@pytest.mark.parametrize(
    ("name", "query", "code", "said"),
    [
        ("none", {}, 404, 'pods "none" not found'),
        ("box", {"container": "other"}, 400, "container other is not valid for pod box"),
        ("box", {"command": []}, 400, "at least 1 command"),
        ("box", {"stdout": "false"}, 400, "at least 1 of stdin, stdout, stderr"),
        ("box", {"tty": "true", "stderr": "true"}, 400, "tty and stderr cannot both be true"),
        ("box", {"protocol": "v9.channel.k8s.io"}, 400, "none of the protocols"),
    ],
)
async def test_what_cannot_be_run_is_refused_first(
    node: LocalNode, name: str, query: dict[str, Any], code: int, said: str
) -> None:
    found = await refusal(node, f"{PODS}/{name}/exec", **({"command": ["true"], "stdout": "true"} | query))
    assert (found.code, found.status["kind"]) == (code, "Status")
    assert said in found.status["message"]


async def test_a_container_that_does_not_run_is_said(node: LocalNode) -> None:
    await node.create("over", [shell("main", "true", gpu=False)])
    await node.phase("over", "Succeeded")
    found = await refusal(node, f"{PODS}/over/exec", command="true", stdout="true")
    assert 'container not found ("main")' in found.status["message"]


def grant(verbs: list[str]) -> list[dict[str, Any]]:
    """A role and a binding that let `guest` do these with pods/exec."""
    name = f"guest-{'-'.join(verbs)}"
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    return [
        {**rbac, "kind": "Role", "rules": [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": verbs}]},
        {**rbac, "kind": "RoleBinding", "roleRef": reference, "subjects": [{"kind": "User", "name": "guest"}]},
    ]


async def test_nobody_runs_anything_without_the_right_to(node: LocalNode) -> None:
    """Who may only `get` pods/exec may not run anything either; nor may nodes, which have many rights."""

    async def code(token: str, subresource: str = "exec") -> int:
        found = await refusal(node, f"{PODS}/box/{subresource}", token=token, command="true", stdout="true")
        return found.code

    assert [await code(""), await code("wrong")] == [401, 401]
    guest, other = (
        yaml.safe_load(node.api.add_user(name, user).read_text())["users"][0]["user"]["token"]
        for name, user in (("guest", User("guest")), ("other-node", node_user("other")))
    )
    assert [await code(guest), await code(guest, "portforward")] == [403, 403]
    assert [await code(other), await code(other, "attach"), await code(other, "portforward")] == [403, 403, 403]
    roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    for verb, allowed in (("get", False), ("create", True)):
        for obj in grant([verb]):
            await node.client.raw("POST", f"{roles}/{obj['kind'].lower()}s", body=obj)
        if not allowed:
            assert await code(guest) == 403
    async with channels(
        node.kubeconfig.read_text(), f"{PODS}/box/exec", token=guest, command="true", stdout="true"
    ) as opened:
        assert await opened.end() == SUCCESS
    assert await code(guest, "attach") == 403


async def test_attach_shows_what_is_said_from_now_on(node: LocalNode) -> None:
    script = "echo before; until test -e /s/go; do sleep 0.05; done; echo after; echo wrong >&2"
    mounted = shell("main", script, gpu=False, volumeMounts=[{"name": "s", "mountPath": "/s"}])
    pod = await node.create("talker", [mounted], volumes=[{"name": "s", "emptyDir": {}}])
    await node.phase("talker", "Running")
    await until(lambda: node.log(pod, "main"), "its first line")
    async with channels(node.kubeconfig.read_text(), f"{PODS}/talker/attach", stdout="true", stderr="true") as opened:
        await done(node, "touch", "/s/go", pod="talker")
        assert await opened.end() == SUCCESS
    assert (opened.said.get(STDOUT), opened.said.get(STDERR)) == (b"after\n", b"wrong\n")


async def test_attach_shows_all_that_an_ended_container_said(node: LocalNode) -> None:
    await node.create("ended", [shell("main", "echo out; echo wrong >&2; printf end; exit 3", gpu=False)])
    await node.phase("ended", "Failed")
    path = f"{PODS}/ended/attach"
    async with channels(node.kubeconfig.read_text(), path, stdout="true", stderr="true") as opened:
        assert await opened.end() == SUCCESS
    assert (opened.said.get(STDOUT), opened.said.get(STDERR)) == (b"out\nend\n", b"wrong\n")
    async with channels(node.kubeconfig.read_text(), path, stderr="true") as opened:
        assert await opened.end() == SUCCESS
    assert opened.said.get(STDOUT) is None


async def test_the_first_who_types_for_a_container_sees_what_it_said_before(node: LocalNode) -> None:
    """Also what has no end of line yet; later clients see what follows."""
    script = "echo begun; echo wrong >&2; printf 'name? '; read name; echo hello $name"
    reads = shell("main", script, gpu=False, stdin=True, stdinOnce=True)
    pod = await node.create("asks", [reads], restartPolicy="Never")
    await node.phase("asks", "Running")
    await until(lambda: node.log(pod, "main").count("\n") == 2, "it has asked")
    async with attached(node, "asks") as opened:
        await opened.hear(STDOUT, b"begun\nname? ")
        async with channels(node.kubeconfig.read_text(), f"{PODS}/asks/attach", stdout="true") as second:
            await opened.send(STDIN, b"you\n")
            assert await opened.end() == SUCCESS
            assert await second.end() == SUCCESS
    assert (opened.said[STDOUT], opened.said[STDERR]) == (b"begun\nname? hello you\n", b"wrong\n")
    assert second.said[STDOUT] == b"hello you\n"


def attached(node: LocalNode, pod: str, **more: Any) -> Any:
    query = {"stdin": "true", "stdout": "true", "stderr": "true", **more}
    return channels(node.kubeconfig.read_text(), f"{PODS}/{pod}/attach", **query)


async def test_what_is_typed_for_a_container_outlives_who_typed_and_the_kubelet(node: LocalNode) -> None:
    reads = shell("main", "while read line; do echo got $line; done; echo over; exit 3", gpu=False, stdin=True)
    await node.create("reader", [reads], restartPolicy="Never")
    await node.phase("reader", "Running")
    async with attached(node, "reader") as opened:
        await opened.send(STDIN, b"one\n")
        await opened.hear(STDOUT, b"got one\n")
        await opened.send(CLOSE, bytes([STDIN]))
        assert await opened.end() == SUCCESS, "its own end is not the container's"
    await node.kill_kubelet()
    await node.start_kubelet()
    async with contextlib.AsyncExitStack() as stack:

        async def again() -> Any:
            try:
                return await stack.enter_async_context(attached(node, "reader"))
            except Refused:
                return None

        opened = await until(again, "the next kubelet knows it")
        await opened.send(STDIN, b"two\n")
        await opened.hear(STDOUT, b"got two\n")
    assert (await node.read("reader")).status.phase == "Running"


@pytest.mark.parametrize("leaves", [False, True], ids=["his input ends", "he goes"])
async def test_input_that_is_read_once_ends_with_who_types_it(node: LocalNode, leaves: bool) -> None:
    name = f"once-{leaves}".lower()
    sums = shell("main", "sort -n", gpu=False, stdin=True, stdinOnce=True)
    pod = await node.create(name, [sums], restartPolicy="Never")
    await node.phase(name, "Running")
    async with attached(node, name) as opened:
        await opened.send(STDIN, b"2\n1\n")
        if not leaves:
            await opened.send(CLOSE, bytes([STDIN]))
            assert await opened.end() == SUCCESS
            assert opened.said == {STDOUT: b"1\n2\n", ERROR: opened.said[ERROR]}
    await node.phase(name, "Succeeded")
    assert node.log(pod, "main") == "1\n2\n"


async def test_a_shell_on_a_terminal_of_its_own(node: LocalNode) -> None:
    terminal = {"stdin": True, "stdinOnce": True, "tty": True}
    await node.create("typed", [shell("main", "exec sh -i", gpu=False, **terminal)], restartPolicy="Never")
    await node.phase("typed", "Running")
    async with attached(node, "typed", stderr="false", tty="true") as opened:
        await opened.send(RESIZE, b'{"Width":70000,"Height":1}')  # not a size
        await opened.send(RESIZE, b'{"Width":101,"Height":47}')
        await opened.send(STDIN, b"stty size; echo $TERM\n")
        await opened.hear(STDOUT, b"47 101\r\nxterm\r\n")
    async with attached(node, "typed", stderr="false", tty="true") as opened:
        await opened.send(STDIN, b"exit 4\n")
        assert await opened.end() == SUCCESS
    await node.phase("typed", "Failed")
    (status,) = (await node.client.raw("GET", f"{PODS}/typed"))["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 4


async def test_who_attaches_wants_something(node: LocalNode) -> None:
    found = await refusal(node, f"{PODS}/box/attach", stdout="false")
    assert "at least 1 of stdin, stdout, stderr" in found.status["message"]


async def test_a_kubelet_that_is_away_is_said(node: LocalNode) -> None:
    await node.kill_kubelet()
    try:
        found = await refusal(node, f"{PODS}/box/exec", command="true", stdout="true")
        assert (found.code, "the kubelet does not answer" in found.status["message"]) == (503, True)
    finally:
        await node.start_kubelet()
    listens = node.kubelet_dir / streams.SOCKET
    await until(listens.exists, "the next kubelet listens")
    assert listens.stat().st_mode & 0o777 == 0o600

    async def again() -> bool:
        try:
            return (await done(node, "true"))[0] == SUCCESS
        except Refused:
            return False

    await until(again, "commands run again in the container that went on meanwhile")


async def test_logs_have_times(node: LocalNode) -> None:
    path = f"{PODS}/box/log"
    text = await node.client.text(path, params={"timestamps": "true"})
    (line,) = text.splitlines()
    moment, said = line.split(" ", 1)
    assert said == "begun"
    began = datetime.datetime.fromisoformat(moment)
    assert abs(began.timestamp() - time.time()) < 600
    assert await node.client.text(path, params={"sinceTime": began.isoformat()}) == "begun\n"
    assert await node.client.text(path, params={"sinceTime": (began + datetime.timedelta(seconds=1)).isoformat()}) == ""
    assert await node.client.text(path, params={"sinceSeconds": "600"}) == "begun\n"
    for wrong, said in (
        ({"sinceSeconds": "0"}, "must be greater than 0"),
        ({"sinceSeconds": "1", "sinceTime": "2026-01-01T00:00:00Z"}, "at most one of"),
        ({"sinceTime": "yesterday"}, "yesterday"),
    ):
        with pytest.raises(ElasticGPUError, match=said):
            await node.client.text(path, params=wrong)


async def test_what_pods_and_nodes_use(node: LocalNode) -> None:
    burn = "python3 -c 'kept = b\"x\" * 50_000_000\nwhile True: pass'"
    await node.create(
        "burner",
        [shell("main", burn, gpu=False)],
    )
    await node.phase("burner", "Running")
    metrics = "/apis/metrics.k8s.io/v1beta1"

    async def burning() -> dict[str, Any] | None:
        answer = await node.client.raw("GET", f"{metrics}/namespaces/default/pods/burner")
        (container,) = answer["containers"]
        return container["usage"] if int(container["usage"]["memory"].removesuffix("Ki")) > 40_000 else None

    usage = await until(burning, "it has its memory")
    assert int(usage["cpu"].removesuffix("n")) > 20_000_000, "it does nothing but compute"
    listed = await node.client.raw("GET", f"{metrics}/pods")
    assert {"box", "burner"} <= {each["metadata"]["name"] for each in listed["items"]}
    whole = await node.client.raw("GET", f"{metrics}/nodes/{NODE}")
    assert int(whole["usage"]["memory"].removesuffix("Ki")) > 40_000
    with pytest.raises(NotFound):
        await node.client.raw("GET", f"{metrics}/namespaces/default/pods/none")
