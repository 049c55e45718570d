"""The simulated cluster's controllers against the simulated API server; nodes and pods are as the tests say."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from egpu_base.kubernetes import Client
from egpu_sim.cluster.apiserver import Config, ServerHandle, serve
from egpu_sim.cluster.controllers import Controllers
from support.waiting import until

PODS = "/api/v1/namespaces/default/pods"
APPS = "/apis/apps/v1/namespaces/default"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
MERGE = {"content-type": "application/merge-patch+json"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[ServerHandle]:
    async with serve(Config(tmp_path)) as handle, Client.from_kubeconfig(handle.kubeconfig) as client:
        task = asyncio.create_task(Controllers(client).run())
        yield handle
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class World:
    """What the controllers see, and the hand of a kubelet."""

    def __init__(self, api: httpx2.AsyncClient) -> None:
        self.api = api

    async def make(self, path: str, obj: dict[str, Any]) -> None:
        answer = await self.api.post(path, json=obj)
        assert answer.status_code == 201, answer.text

    async def change(self, path: str, patch: dict[str, Any]) -> None:
        answer = await self.api.patch(path, content=json.dumps(patch), headers=MERGE)
        assert answer.status_code == 200, answer.text

    async def get(self, path: str) -> dict[str, Any]:
        return (await self.api.get(path)).json()

    async def items(self, path: str) -> list[dict[str, Any]]:
        return (await self.get(path))["items"]

    async def pods(self, count: int, phase: str = "") -> list[dict[str, Any]]:
        """The pods, once there are so many (of that phase, and not going)."""

        async def found() -> list[dict[str, Any]] | None:
            pods = [pod for pod in await self.items(PODS) if "deletionTimestamp" not in pod["metadata"]]
            pods = [pod for pod in pods if not phase or pod["status"]["phase"] == phase]
            return pods if len(pods) == count else None

        return await until(found, f"{count} pods") if count else []

    async def run(self, pod: dict[str, Any], phase: str = "Running") -> None:
        """A pod comes to run and be ready, or ends."""
        ready = {"type": "Ready", "status": str(phase == "Running"), "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"phase": phase, "conditions": [ready]}
        await self.change(f"{PODS}/{pod['metadata']['name']}/status", {"status": status})

    async def until(self, path: str, **status: Any) -> dict[str, Any]:
        """The object, once its status says so."""

        async def found() -> dict[str, Any] | None:
            obj = await self.get(path)
            return obj if all(obj.get("status", {}).get(key) == value for key, value in status.items()) else None

        return await until(found, f"{path}: {status}")


@pytest.fixture
def world(api: httpx2.AsyncClient) -> World:
    return World(api)


def template(image: str = "x:1", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "a", "image": image}], **spec}}


def workload(name: str, **spec: Any) -> dict[str, Any]:
    selector = {"matchLabels": {"app": "a"}}
    return {"metadata": {"name": name}, "spec": {"selector": selector, "template": template(), **spec}}


def images(pods: list[dict[str, Any]]) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in pods)


async def test_a_replica_set_keeps_as_many_pods_as_are_wanted(world: World) -> None:
    await world.make(f"{APPS}/replicasets", workload("r", replicas=3))
    first = await world.pods(3)
    owner = first[0]["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("ReplicaSet", "r", True)
    for pod in first[:2]:
        await world.run(pod)
    await world.until(f"{APPS}/replicasets/r", replicas=3, readyReplicas=2, availableReplicas=2)
    await world.change(f"{APPS}/replicasets/r", {"spec": {"replicas": 2}})
    left = await world.pods(2)
    assert {pod["metadata"]["name"] for pod in left} == {pod["metadata"]["name"] for pod in first[:2]}  # those that run
    await world.run(left[0], "Failed")
    await world.pods(1, "Pending")


async def test_strays_are_adopted_and_what_is_selected_no_longer_is_let_go(world: World) -> None:
    stray = {"metadata": {"name": "stray", "labels": {"app": "a"}}, "spec": template()["spec"]}
    await world.make(PODS, stray)
    await world.make(f"{APPS}/replicasets", workload("r", replicas=1))
    await world.until(f"{APPS}/replicasets/r", replicas=1)
    (adopted,) = await world.pods(1)
    assert adopted["metadata"]["ownerReferences"][0]["name"] == "r"
    await world.change(f"{PODS}/stray", {"metadata": {"labels": {"app": "other"}}})
    await world.pods(2)
    await until(lambda: _is_free(world), "the stray is let go")


async def _is_free(world: World) -> bool:
    return "ownerReferences" not in (await world.get(f"{PODS}/stray"))["metadata"]


async def test_a_deployment_rolls_within_its_bounds(world: World) -> None:
    rolling = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    await world.make(f"{APPS}/deployments", workload("d", replicas=2, strategy=rolling))
    for pod in await world.pods(2):
        await world.run(pod)
    done = await world.until(f"{APPS}/deployments/d", availableReplicas=2, updatedReplicas=2, observedGeneration=1)
    assert done["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
    await world.change(f"{APPS}/deployments/d", {"spec": {"template": template("x:2")}})
    assert images(await world.pods(3)) == ["x:1", "x:1", "x:2"]
    for expected in (["x:1", "x:2", "x:2"], ["x:2", "x:2"]):
        (new,) = await world.pods(1, "Pending")
        await world.run(new)
        assert images(await _settled(world, expected)) == expected
    told = (await world.until(f"{APPS}/deployments/d", updatedReplicas=2, availableReplicas=2, replicas=2))["status"]
    assert "unavailableReplicas" not in told
    await until(lambda: _progressed(world, "NewReplicaSetAvailable"), "the rollout is said to be done")
    sets = {one["metadata"]["annotations"]["deployment.kubernetes.io/revision"]: one["spec"]["replicas"]
            for one in await world.items(f"{APPS}/replicasets")}  # fmt: skip
    assert sets == {"1": 0, "2": 2}


async def _settled(world: World, expected: list[str]) -> list[dict[str, Any]]:
    async def found() -> list[dict[str, Any]] | None:
        pods = await world.items(PODS)
        return pods if images(pods) == expected else None

    return await until(found, f"pods of {expected}")


async def _progressed(world: World, reason: str) -> bool:
    conditions = (await world.get(f"{APPS}/deployments/d"))["status"]["conditions"]
    return any(one["type"] == "Progressing" and one["reason"] == reason for one in conditions)


async def test_recreate_ends_the_old_before_it_begins_the_new(world: World) -> None:
    await world.make(f"{APPS}/deployments", workload("d", replicas=2, strategy={"type": "Recreate"}))
    old = await world.pods(2)
    await world.change(f"{PODS}/{old[0]['metadata']['name']}", {"metadata": {"finalizers": ["example.org/held"]}})
    await world.change(f"{APPS}/deployments/d", {"spec": {"template": template("x:2")}})
    await until(lambda: _going(world), "the old pods are ended")
    await world.change(f"{APPS}/deployments/d", {"spec": {"progressDeadlineSeconds": 300}})
    seen = (await world.get(f"{APPS}/deployments/d"))["metadata"]["generation"]
    await world.until(f"{APPS}/deployments/d", observedGeneration=seen)  # it has looked again
    assert images(await world.items(PODS)) == ["x:1"]
    await world.change(f"{PODS}/{old[0]['metadata']['name']}", {"metadata": {"finalizers": None}})
    assert images(await world.pods(2)) == ["x:2", "x:2"]


async def _going(world: World) -> bool:
    pods = await world.items(PODS)
    return len(pods) == 1 and "deletionTimestamp" in pods[0]["metadata"]


async def test_a_quota_is_told_and_what_fits_later_is_made_then(world: World) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}}
    await world.make("/api/v1/namespaces/default/resourcequotas", quota)
    await world.make(f"{APPS}/replicasets", workload("r", replicas=2))
    await world.pods(1)

    async def told() -> bool:
        conditions = (await world.get(f"{APPS}/replicasets/r"))["status"].get("conditions") or []
        return any(one["type"] == "ReplicaFailure" and "exceeded quota: q" in one["message"] for one in conditions)

    await until(told, "the quota's refusal is in the status")
    await world.api.delete("/api/v1/namespaces/default/resourcequotas/q")
    await world.pods(2)


async def test_a_daemon_set_has_one_pod_on_every_node_that_takes_it(world: World) -> None:
    for name, spec in (("n1", {}), ("n2", {}), ("n3", {"taints": [{"key": "k", "effect": "NoSchedule"}]})):
        await world.make("/api/v1/nodes", {"metadata": {"name": name}, "spec": spec})
    await world.make(f"{APPS}/daemonsets", workload("d"))
    pods = await world.pods(2)
    assert {_node_meant(pod) for pod in pods} == {"n1", "n2"}
    for pod in pods:
        await world.run(pod)
    await world.until(f"{APPS}/daemonsets/d", desiredNumberScheduled=2, numberReady=2, updatedNumberScheduled=2)
    await world.change("/api/v1/nodes/n3", {"spec": {"taints": None}})
    await world.run((await world.pods(1, "Pending"))[0])
    await world.until(f"{APPS}/daemonsets/d", desiredNumberScheduled=3, numberAvailable=3)
    await world.change(f"{APPS}/daemonsets/d", {"spec": {"template": template("x:2")}})
    for _ in range(3):
        (new,) = await world.pods(1, "Pending")  # one at a time
        await world.run(new)
    await world.until(f"{APPS}/daemonsets/d", updatedNumberScheduled=3, numberAvailable=3)


def _node_meant(pod: dict[str, Any]) -> str:
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]


async def test_a_stateful_set_counts_up_and_down(world: World) -> None:
    await world.make(f"{APPS}/statefulsets", workload("s", replicas=2, serviceName="s"))
    (first,) = await world.pods(1)
    assert first["metadata"]["name"] == "s-0"
    await world.run(first)
    second = (await world.pods(1, "Pending"))[0]
    assert second["metadata"]["name"] == "s-1"
    await world.run(second)
    await world.until(f"{APPS}/statefulsets/s", readyReplicas=2, currentReplicas=2)
    await world.change(f"{APPS}/statefulsets/s", {"spec": {"template": template("x:2")}})
    for name in ("s-1", "s-0"):
        (new,) = await world.pods(1, "Pending")
        assert (new["metadata"]["name"], images([new])) == (name, ["x:2"])
        await world.run(new)
    done = await world.until(f"{APPS}/statefulsets/s", updatedReplicas=2, readyReplicas=2, currentReplicas=2)
    assert done["status"]["currentRevision"] == done["status"]["updateRevision"]
    await world.change(f"{APPS}/statefulsets/s", {"spec": {"replicas": 1}})
    assert [pod["metadata"]["name"] for pod in await world.pods(1)] == ["s-0"]


def job(name: str = "j", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"template": template(restartPolicy="Never"), **spec}}


async def test_a_job_ends_when_enough_pods_have_succeeded(world: World) -> None:
    await world.make(JOBS, job(completions=3, parallelism=2, ttlSecondsAfterFinished=0))
    for pod in await world.pods(2):
        await world.run(pod, "Succeeded")
    await world.change(f"{JOBS}/j", {"metadata": {"finalizers": ["example.org/look"]}})
    (last,) = await world.pods(1, "Pending")
    await world.run(last, "Succeeded")
    done = await world.until(f"{JOBS}/j", succeeded=3)
    await until(lambda: _ended(world, "Complete"), "the job is complete")
    assert done["status"]["startTime"]

    async def swept() -> bool:
        return "deletionTimestamp" in (await world.get(f"{JOBS}/j"))["metadata"]

    await until(swept, "its time to live is over")


async def _ended(world: World, kind: str) -> str | None:
    """Why the job has ended so."""
    conditions = (await world.get(f"{JOBS}/j")).get("status", {}).get("conditions") or []
    return next((one["reason"] for one in conditions if one["type"] == kind), None)


async def test_a_job_fails_when_too_many_pods_have(world: World) -> None:
    await world.make(JOBS, job(backoffLimit=1))
    await world.run((await world.pods(1, "Pending"))[0], "Failed")
    await world.run((await world.pods(1, "Pending"))[0], "Failed")
    assert await until(lambda: _ended(world, "Failed")) == "BackoffLimitExceeded"
    await world.until(f"{JOBS}/j", failed=2)


async def test_an_indexed_job_tells_each_pod_its_number(world: World) -> None:
    await world.make(JOBS, job(completions=2, parallelism=2, completionMode="Indexed"))
    pods = await world.pods(2)
    assert sorted(_number(pod) for pod in pods) == ["0", "1"]
    await world.run(next(pod for pod in pods if _number(pod) == "1"), "Failed")
    again = await until(lambda: _other_pod(world, pods), "a pod in the place of the failed one")
    assert _number(again) == "1"
    for pod in (again, next(pod for pod in pods if _number(pod) == "0")):
        await world.run(pod, "Succeeded")
    await world.until(f"{JOBS}/j", succeeded=2, completedIndexes="0,1")


def _number(pod: dict[str, Any]) -> str:
    return next(one["value"] for one in pod["spec"]["containers"][0]["env"] if one["name"] == "JOB_COMPLETION_INDEX")


async def _other_pod(world: World, known: list[dict[str, Any]]) -> dict[str, Any] | None:
    names = {pod["metadata"]["name"] for pod in known}
    return next((pod for pod in await world.items(PODS) if pod["metadata"]["name"] not in names), None)


async def test_a_suspended_job_has_no_pods_until_it_is_resumed(world: World) -> None:
    await world.make(JOBS, job(suspend=True))
    await until(lambda: _ended(world, "Suspended"), "the job is said to be suspended")
    assert await world.items(PODS) == []
    await world.change(f"{JOBS}/j", {"spec": {"suspend": False}})
    await world.pods(1)
    await world.until(f"{JOBS}/j", active=1)
    await world.change(f"{JOBS}/j", {"spec": {"suspend": True}})
    await world.until(f"{JOBS}/j", active=0)


async def test_a_job_of_another_controller_is_left_to_it(world: World) -> None:
    theirs = job(managedBy="kueue.x-k8s.io/multikueue")
    await world.make(JOBS, {**theirs, "metadata": {"name": "theirs"}})
    await world.make(JOBS, job(managedBy="kubernetes.io/job-controller"))
    (ours,) = await world.pods(1)
    assert ours["metadata"]["ownerReferences"][0]["name"] == "j"
    assert "startTime" not in (await world.get(f"{JOBS}/theirs")).get("status", {})


async def test_a_jobs_deadline_ends_its_pods(world: World) -> None:
    await world.make(JOBS, job(activeDeadlineSeconds=1))
    assert await until(lambda: _ended(world, "Failed")) == "DeadlineExceeded"

    async def gone() -> bool:
        return await world.items(PODS) == []

    await until(gone, "its pods are ended")


BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def budget(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": "a"}}, **spec}}


async def test_a_budget_counts_who_is_healthy_and_lets_the_others_stay(world: World) -> None:
    await world.make(f"{APPS}/replicasets", workload("r", replicas=4))
    await world.make(BUDGETS, budget("b", maxUnavailable="25%"))
    path = f"{BUDGETS}/b"
    await world.until(path, expectedPods=4, desiredHealthy=3, currentHealthy=0, disruptionsAllowed=0)
    pods = await world.pods(4)
    for pod in pods[:3]:
        await world.run(pod)
    await world.until(path, currentHealthy=3, disruptionsAllowed=0)
    await world.run(pods[3])
    told = await world.until(path, currentHealthy=4, disruptionsAllowed=1, observedGeneration=1)
    (condition,) = told["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "DisruptionAllowed",
        "True",
        "SufficientPods",
    )
    await world.change(path, {"spec": {"maxUnavailable": 2}})
    await world.until(path, desiredHealthy=2, disruptionsAllowed=2, observedGeneration=2)


async def test_a_budget_of_pods_whose_owner_has_no_scale_says_that_it_cannot_count_them(world: World) -> None:
    await world.make(JOBS, job(completions=1))
    (pod,) = await world.pods(1)
    await world.make(BUDGETS, budget("b", maxUnavailable=1))

    async def said() -> dict[str, Any] | None:
        conditions = (await world.get(f"{BUDGETS}/b")).get("status", {}).get("conditions") or [None]
        return conditions[0]

    condition = await until(said, "a condition")
    assert (condition["status"], condition["reason"]) == ("False", "SyncFailed")
    assert condition["message"] == f'found no controllers for pod "{pod["metadata"]["name"]}"'
    await world.make(BUDGETS, budget("least", minAvailable=1))
    await world.until(f"{BUDGETS}/least", expectedPods=1, desiredHealthy=1, disruptionsAllowed=0)
