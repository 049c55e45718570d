"""The port at which a kubelet answers an API server of another project: logs, and to nobody without a certificate."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import msgspec
import pytest
import pytest_asyncio

from egpu_base.tls.certificates import issue
from egpu_sim.cluster.kubelet.config import KubeletConfig, Listening
from egpu_sim.cluster.kubelet.containers import ContainerRecord
from egpu_sim.cluster.kubelet.launch import log_file
from egpu_sim.cluster.kubelet.objects import Pod
from egpu_sim.cluster.kubelet.port import KubeletPort
from egpu_sim.cluster.ports import ports

SPEC = {
    "metadata": {"name": "box", "namespace": "default", "uid": "u-1"},
    "spec": {"nodeName": "node-1", "containers": [{"name": "c", "image": "any"}]},
}


class Here:
    """A kubelet's port with one pod, whose container runs for the second time."""

    def __init__(self, directory: Path, port: int) -> None:
        self.url = f"https://127.0.0.1:{port}/containerLogs/default"
        self.config = KubeletConfig("node-1", directory / "kubeconfig", directory / "kubelet")
        self.pod = msgspec.convert(SPEC, Pod)
        self.record = ContainerRecord(self.pod.containers[0], self.config.run_dir / "u-1" / "c")
        made = issue(["127.0.0.1"], now=datetime.now(UTC), client="kube-apiserver")
        self.files = {name: directory / name for name in ("ca.crt", "tls.crt", "tls.key", "client.crt", "client.key")}
        for name, content in zip(
            self.files,
            (made.ca_bundle, made.certificate, made.key, made.client_certificate, made.client_key),
            strict=True,
        ):
            (directory / name).write_bytes(content)
        files = self.files
        self.listening = Listening(port, files["tls.crt"], files["tls.key"], files["ca.crt"])
        for number, text in enumerate(("first run\n", "one\ntwo\n")):
            self.run(number)
            self.say(number, text)

    def run(self, number: int) -> None:
        (self.record.directory / str(number)).mkdir(parents=True)

    def say(self, number: int, text: str) -> None:
        path = log_file(self.config, self.pod, "c", number)
        path.parent.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
        with path.open("a") as file:
            file.writelines(f"{now} stdout F {line}\n" for line in text.splitlines())

    def client(self, *, known: bool = True) -> httpx2.AsyncClient:
        context = ssl.create_default_context(cafile=self.files["ca.crt"])
        if known:
            context.load_cert_chain(self.files["client.crt"], self.files["client.key"])
        return httpx2.AsyncClient(verify=context, trust_env=False, timeout=10.0)

    async def log(self, path: str = "box/c", **query: Any) -> httpx2.Response:
        async with self.client() as client:
            return await client.get(f"{self.url}/{path}", params=query)


@pytest_asyncio.fixture
async def here(tmp_path: Path) -> AsyncGenerator[Here]:
    with ports() as taken:
        made = Here(tmp_path, taken.take())
        worker: Any = SimpleNamespace(pod=made.pod, inits=[], apps=[made.record])
        serving = asyncio.create_task(KubeletPort(made.config, {"u-1": worker}).serve(made.listening))
        try:
            yield made
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving


async def test_the_present_run_and_the_one_before(here: Here) -> None:
    assert (await here.log()).text == "one\ntwo\n"
    assert (await here.log(previous="true")).text == "first run\n"
    assert (await here.log(tailLines="1")).text == "two\n"
    assert (await here.log(limitBytes="2")).text == "on"
    assert (await here.log(sinceTime="2100-01-01T00:00:00Z")).text == ""
    assert (await here.log(sinceSeconds="3600")).text == "one\ntwo\n"
    written, _, line = (await here.log(tailLines="1", timestamps="true")).text.partition(" ")
    assert line == "two\n"
    assert datetime.fromisoformat(written) <= datetime.now(UTC)


async def test_what_is_not_here_is_said(here: Here) -> None:
    for path in ("box/other", "other/c"):
        answer = await here.log(path)
        assert (answer.status_code, "is not here" in answer.text) == (404, True)
    here.run(2)  # it has said nothing yet
    answer = await here.log()
    assert (answer.status_code, answer.text) == (400, "container 'c' in pod 'box' has no log")


async def test_a_log_is_followed_until_its_run_ends(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[float] = []
    monkeypatch.setattr("egpu_sim.cluster.kubelet.runtime.ended", lambda _: ended or None)
    async with here.client() as client, client.stream("GET", f"{here.url}/box/c", params={"follow": "true"}) as answer:
        texts = answer.aiter_text()
        assert await anext(texts) == "one\ntwo\n"
        here.say(1, "three\n")
        assert await anext(texts) == "three\n"
        ended.append(time.time())
        assert [text async for text in texts] == []


async def test_nobody_without_a_certificate_is_answered(here: Here) -> None:
    async with here.client(known=False) as client:
        with pytest.raises(httpx2.HTTPError):
            await client.get(f"{here.url}/box/c")
