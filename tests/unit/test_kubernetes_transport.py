"""The client and the reflector against a scripted transport: what goes on the wire, and what each answer means."""

import asyncio
import json
from collections.abc import Callable

import httpx2
import msgspec
import pytest
from msgspec.structs import replace

from egpu_base.api.kubernetes import Pod, PodSpec
from egpu_base.errors import (
    AlreadyExists,
    Conflict,
    CorruptData,
    Gone,
    LeadershipLost,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from egpu_base.kubernetes import Change, Client, LeaseElection, Reflector
from egpu_base.kubernetes import client as client_module
from egpu_base.kubernetes.lists import LARGE_BYTES
from support.waiting import until

Answer = Callable[[httpx2.Request], httpx2.Response]


def client(answer: Answer) -> Client:
    return Client(httpx2.AsyncClient(base_url="http://api.test", transport=httpx2.MockTransport(answer)))


def status(code: int, reason: str = "") -> httpx2.Response:
    return httpx2.Response(code, json={"kind": "Status", "code": code, "reason": reason, "message": "because"})


def pod(name: str, version: int, uid: str | None = None) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": uid or f"uid-{name}", "resourceVersion": str(version)}}


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (422, "Invalid", Refused),
        (403, "Forbidden", Refused),
        (400, "BadRequest", Refused),
    ],
)
async def test_status_codes_become_our_errors_with_the_servers_words(code: int, reason: str, error: type[Exception]):
    with pytest.raises(error, match="because"):
        await client(lambda _: status(code, reason)).get(Pod, "a", namespace="ns")


async def test_reads_are_tried_again_and_creations_are_not():
    calls: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        calls.append(request.method)
        return status(503) if len(calls) < 3 or request.method == "POST" else httpx2.Response(200, json=pod("a", 1))

    assert (await client(answer).get(Pod, "a", namespace="ns")).name == "a"
    assert calls == ["GET"] * 3
    calls.clear()
    with pytest.raises(OutcomeUnknown):
        await client(answer).create(Pod, Pod(), namespace="ns")
    assert calls == ["POST"]


async def test_only_what_cannot_have_been_sent_is_known_to_be_undone():
    def fail(error: Exception) -> Answer:
        def answer(_: httpx2.Request) -> httpx2.Response:
            raise error

        return answer

    with pytest.raises(OutcomeUnknown):
        await client(fail(httpx2.ReadTimeout("slow"))).bind("a", "n", namespace="ns", uid="u")
    with pytest.raises(Unavailable) as caught:
        await client(fail(httpx2.ConnectError("refused"))).bind("a", "n", namespace="ns", uid="u")
    assert not isinstance(caught.value, OutcomeUnknown)


async def test_bind_carries_uid_version_and_annotations():
    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(201, json={"kind": "Status", "status": "Success"})

    await client(answer).bind("a", "n1", namespace="ns", uid="u", resource_version="7", annotations={"k": "v"})
    assert sent[0].url.path == "/api/v1/namespaces/ns/pods/a/binding"
    body = json.loads(sent[0].content)
    assert body["metadata"] == {
        "name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7", "annotations": {"k": "v"},
    }  # fmt: skip
    assert body["target"]["name"] == "n1"


async def test_delete_names_the_very_object_and_forgives_a_missing_one():
    bodies: list[dict[str, object]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content))
        return status(404)

    await client(answer).delete(Pod, "a", namespace="ns", uid="u", resource_version="3")
    assert bodies[0]["preconditions"] == {"uid": "u", "resourceVersion": "3"}


async def test_list_reads_every_page_and_leaves_out_what_does_not_decode():
    def answer(request: httpx2.Request) -> httpx2.Response:
        if "continue" in request.url.params:
            return httpx2.Response(200, json={"metadata": {"resourceVersion": "9"}, "items": [pod("c", 3)]})
        items = [pod("a", 1), {"metadata": {"name": 5}}, pod("b", 2)]
        return httpx2.Response(200, json={"metadata": {"resourceVersion": "9", "continue": "x"}, "items": items})

    pods, version = await client(answer).list_at(Pod)
    assert ([one.name for one in pods], version) == (["a", "b", "c"], "9")
    with pytest.raises(CorruptData):
        await client(lambda _: httpx2.Response(200, json={"metadata": 5})).get(Pod, "a", namespace="ns")


class Script:
    """Answers lists and watches in turn; the last watch hangs until the test ends."""

    def __init__(self, *steps: list[dict[str, object]] | list[tuple[str, dict[str, object]]] | int) -> None:
        self.steps = list(steps)
        self.asked: list[str] = []

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        watch = "watch" in request.url.params
        self.asked.append(f"watch {request.url.params['resourceVersion']}" if watch else "list")
        if not self.steps:
            await asyncio.sleep(3600)
        step = self.steps.pop(0)
        if isinstance(step, int):
            return status(step)
        if not watch:
            return httpx2.Response(200, json={"metadata": {"resourceVersion": "10"}, "items": step})
        lines = [json.dumps({"type": kind, "object": obj}) for kind, obj in step]  # type: ignore[misc]
        return httpx2.Response(200, text="".join(line + "\n" for line in lines))


async def follow(
    script: Script, *, until: int, packed: bool = False
) -> tuple[list[tuple[str | None, str | None]], Reflector[Pod]]:
    """Runs a reflector until `until` changes came, and says them as (old version, new version) of each pod."""
    changes: list[tuple[str | None, str | None]] = []
    enough = asyncio.Event()

    def note(change: Change[Pod]) -> None:
        def short(one: Pod | None) -> str | None:
            return None if one is None else f"{one.name}/{one.uid}@{one.metadata.resource_version}"

        changes.append((short(change.old), short(change.new)))
        if len(changes) >= until:
            enough.set()

    http = httpx2.AsyncClient(base_url="http://api.test", transport=httpx2.MockTransport(script))
    reflector = Reflector(Client(http), Pod, packed=packed)
    reflector.on_change(note)
    task = asyncio.create_task(reflector.run())
    try:
        await asyncio.wait_for(enough.wait(), 10)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return changes, reflector


@pytest.mark.parametrize("packed", [True, False])
async def test_reflector_tells_the_difference_after_lost_history(packed: bool):
    script = Script(
        [pod("kept", 1), pod("gone", 2), pod("changed", 3)],
        410,
        [pod("kept", 1), pod("changed", 12), pod("new", 13)],
    )
    changes, reflector = await follow(script, until=6, packed=packed)
    assert changes[3:] == [
        ("gone/uid-gone@2", None),
        ("changed/uid-changed@3", "changed/uid-changed@12"),
        (None, "new/uid-new@13"),
    ], "what is gone comes first: somebody else may have its place"
    assert script.asked[:3] == ["list", "watch 10", "list"]
    assert {one.name for one in reflector} == {"kept", "changed", "new"}


async def test_reflector_resumes_from_the_last_bookmark_and_does_not_repeat():
    script = Script(
        [pod("a", 1)],
        [("MODIFIED", pod("a", 11)), ("BOOKMARK", {"metadata": {"resourceVersion": "20"}})],
        [("MODIFIED", pod("a", 11)), ("DELETED", pod("a", 21))],
    )
    changes, reflector = await follow(script, until=3)
    assert changes == [(None, "a/uid-a@1"), ("a/uid-a@1", "a/uid-a@11"), ("a/uid-a@21", None)]
    assert script.asked[1:3] == ["watch 10", "watch 20"]
    assert reflector.by_uid("uid-a") is None


async def test_what_a_transform_leaves_of_an_object_is_all_that_anybody_sees():
    def nameless(one: Pod) -> Pod:
        return replace(one, metadata=replace(one.metadata, labels=None))

    labelled: list[dict[str, object]] = [
        {
            "metadata": {
                "name": "a",
                "namespace": "ns",
                "uid": "a",
                "resourceVersion": version,
                "labels": {"much": "text"},
            }
        }
        for version in ("1", "11")
    ]
    seen: list[Pod | None] = []
    http = httpx2.AsyncClient(
        base_url="http://api.test", transport=httpx2.MockTransport(Script(labelled[:1], [("MODIFIED", labelled[1])]))
    )
    reflector = Reflector(Client(http), Pod, transform=nameless)
    reflector.on_change(lambda change: seen.extend((change.old, change.new)))
    task = asyncio.create_task(reflector.run())
    await until(lambda: len(seen) == 4)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    kept = reflector.get("a", "ns")
    assert kept is not None
    assert kept.metadata.resource_version == "11"
    assert [one.metadata.labels for one in (*seen, kept) if one is not None] == [None] * 4


async def test_reflector_survives_a_server_that_is_away_and_then_lists_again():
    script = Script([pod("a", 1)], 503, 503, 503, [pod("a", 1), pod("b", 2)])
    changes, _ = await follow(script, until=2)
    assert changes == [(None, "a/uid-a@1"), (None, "b/uid-b@2")]
    assert script.asked[:5] == ["list", "watch 10", "watch 10", "watch 10", "list"]


async def test_a_handler_that_fails_ends_the_reflector():
    def fail(_: Change[Pod]) -> None:
        raise ValueError("the copy and what rests on it differ now")

    http = httpx2.AsyncClient(base_url="http://api.test", transport=httpx2.MockTransport(Script([pod("a", 1)])))
    reflector = Reflector(Client(http), Pod)
    reflector.on_change(fail)
    with pytest.raises(ValueError, match="differ"):
        await asyncio.wait_for(reflector.run(), 5)


async def test_reflector_sees_a_pod_made_again_under_its_name_as_another_one():
    script = Script([pod("a", 1)], [("MODIFIED", pod("a", 11, uid="second"))])
    changes, reflector = await follow(script, until=3)
    assert changes[1:] == [("a/uid-a@1", None), (None, "a/second@11")]
    assert reflector.by_uid("second") is not None


class LeaseServer:
    """One lease with optimistic concurrency."""

    def __init__(self) -> None:
        self.lease: dict[str, object] | None = None
        self.version = 0

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return status(404) if self.lease is None else httpx2.Response(200, json=self.lease)
        body = json.loads(request.content)
        if request.method == "POST" and self.lease is not None:
            return status(409, "AlreadyExists")
        if request.method == "PATCH":
            assert self.lease is not None
            if body["metadata"]["resourceVersion"] != str(self.version):
                return status(409, "Conflict")
            body["spec"] = {**self.lease["spec"], **body["spec"]}  # type: ignore[dict-item]
        self.version += 1
        self.lease = {"metadata": {"name": "l", "namespace": "ns", "resourceVersion": str(self.version)}}
        self.lease["spec"] = body["spec"]
        return httpx2.Response(200, json=self.lease)


async def test_a_new_leader_makes_the_old_one_fail_its_check():
    server = LeaseServer()
    first, second = (LeaseElection(client(server), name="l", namespace="ns", identity=one) for one in ("a", "b"))
    await first.acquire(wait=True)
    await first.verify()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(second.acquire(wait=True), 0.2)  # the first one lives
    await second.acquire(wait=False)
    await second.verify()
    with pytest.raises(LeadershipLost):
        await first.verify()
    await second.release()
    await asyncio.wait_for(first.acquire(wait=True), 1)


class Large:
    """An API server with pods of so many bytes. `limits` are those that lists asked for."""

    def __init__(self, pods: int, size: int) -> None:
        self.pods, self.size = pods, size
        self.limits: list[int] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        asked = dict(request.url.params)
        self.limits.append(int(asked["limit"]))
        first = int(asked.get("continue", "0"))
        numbers = range(first, min(first + self.limits[-1], self.pods))
        more = str(numbers.stop) if numbers.stop < self.pods else ""
        metadata = {"resourceVersion": "1", "continue": more}
        items = [{"metadata": {"name": f"p{one}", "labels": {"a": "x" * self.size}}} for one in numbers]
        return httpx2.Response(200, json={"metadata": metadata, "items": items})


@pytest.mark.parametrize("size", [100, 400_000, client_module.PAGE_BYTES // 3])
async def test_a_page_of_large_objects_has_few(size: int):
    pods = 9 if size > 1_000_000 else 90
    api = Large(pods=pods, size=size)
    http = httpx2.AsyncClient(base_url="http://api.test", transport=httpx2.MockTransport(api))
    found = await Client(http).list(Pod)
    assert [one.name for one in found] == [f"p{number}" for number in range(pods)]
    fitting = max(1, client_module.PAGE_BYTES // size)
    assert min(api.limits) <= fitting
    assert api.limits[0] == client_module.PAGE_SIZE


async def test_objects_beyond_any_size_are_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client_module, "PAGE_BYTES", 1_000)
    monkeypatch.setattr(client_module, "LONGEST_PAGE_BYTES", 2_000)
    http = httpx2.AsyncClient(base_url="http://api.test", transport=httpx2.MockTransport(Large(pods=1, size=3_000)))
    with pytest.raises(CorruptData, match="larger than 2000 bytes"):
        await Client(http).list(Pod)


async def test_a_large_object_is_read_in_part_in_lists_and_watches():
    def part(text: msgspec.Raw) -> Pod:
        return replace(msgspec.json.decode(text, type=Pod), spec=PodSpec(node_name="part"))

    large = pod("a", 1) | {"status": {"message": "x" * LARGE_BYTES}}
    later = pod("a", 11) | {"status": {"message": "x" * LARGE_BYTES}}
    script = Script([large, pod("b", 2)], [("MODIFIED", later), ("MODIFIED", pod("b", 12))])
    http = httpx2.AsyncClient(base_url="http://api.test", transport=httpx2.MockTransport(script))
    reflector, seen = Reflector(Client(http), Pod, large=part), list[tuple[str, str]]()

    def note(change: Change[Pod]) -> None:
        seen.append((change.subject.name, change.subject.spec.node_name))

    reflector.on_change(note)
    task = asyncio.create_task(reflector.run())
    await until(lambda: len(seen) == 4)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert seen == [("a", "part"), ("b", ""), ("a", "part"), ("b", "")]
