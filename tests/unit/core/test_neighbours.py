"""Groups of other projects, by pods and objects in the shapes that they document: which are gangs, and of what size."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from egpu.api import names
from egpu.core.neighbours.reading import Asked, gang_annotations, missing, to_read, unreadable, with_annotations
from egpu.core.neighbours.table import NEIGHBOURS, Group, Named, group_of
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import InvalidDemand
from support.objects import container, pod

Body = Mapping[str, Any]
LWS = {"leaderworkerset.sigs.k8s.io/name": "vllm", "leaderworkerset.sigs.k8s.io/group-index": "1"}
JOBSET = {"jobset.sigs.k8s.io/jobset-name": "train"}
RAY = {"ray.io/cluster": "rays", "ray.io/is-ray-node": "yes"}
WISH = {names.GANG_FROM: "owner"}
BY_NAME = {one.name: one for one in NEIGHBOURS}


def of(labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None, **spec: Any) -> Pod:
    one = pod("p", container("app", {names.GPU_CORE: 30}), annotations=dict(annotations or {}))
    metadata = replace(one.metadata, labels=dict(labels) if labels else None)
    return replace(one, metadata=metadata, spec=replace(one.spec, **spec))


def kubeflow(job: str, operator: str) -> dict[str, str]:
    return {"training.kubeflow.org/job-name": job, "training.kubeflow.org/operator-name": operator}


def read(asking: Pod, body: Body) -> tuple[str, str]:
    """The gang's name and size; empty for no gang."""
    asked = to_read(asking)
    if asked is None:
        return "", ""
    found = gang_annotations(asked, body, asking)
    return found.get(names.GANG, ""), found.get(names.GANG_SIZE, "")


def spec(**fields: Any) -> Body:
    return {"spec": fields}


NATIVE = of(scheduling_group={"podGroupName": "g"})
IN_WORKLOAD = of(workload_ref={"name": "w", "podGroup": "workers", "podGroupReplicaKey": "k1"})
COSCHEDULED = of({"scheduling.x-k8s.io/pod-group": "g"})


@pytest.mark.parametrize(
    ("asking", "body", "gang"),
    [
        (NATIVE, spec(schedulingPolicy={"gang": {"minCount": 4}}), ("podgroup.g", "4+")),
        (NATIVE, spec(schedulingPolicy={"basic": {}}), ("", "")),
        (
            IN_WORKLOAD,
            spec(podGroups=[{"name": "a"}, {"name": "workers", "policy": {"gang": {"minCount": 3}}}]),
            ("workload.w.workers-k1", "3+"),
        ),
        (IN_WORKLOAD, spec(podGroups=[{"name": "workers", "policy": {"basic": {}}}]), ("", "")),
        (COSCHEDULED, spec(minMember=3, scheduleTimeoutSeconds=10), ("pod-group.g", "3+")),
        (COSCHEDULED, spec(minMember=1), ("", "")),
        (of(annotations={"scheduling.k8s.io/group-name": "v"}), spec(minMember=2), ("volcano.v", "2+")),
        (of(annotations={"scheduling.volcano.sh/group-name": "v"}), spec(minMember=2), ("volcano.v", "2+")),
        # A group lives and dies as a whole by default, and each replica is a gang of its own.
        (of(LWS), spec(leaderWorkerTemplate={"size": 4}), ("lws.vllm.1", "4+")),
        (
            of(LWS, {"leaderworkerset.sigs.k8s.io/size": "2"}),
            spec(leaderWorkerTemplate={"size": 4}),
            ("lws.vllm.1", "2+"),
        ),
        (of(LWS), spec(leaderWorkerTemplate={"size": 4, "restartPolicy": "None"}), ("", "")),
        (of(LWS, WISH), spec(leaderWorkerTemplate={"size": 4, "restartPolicy": "None"}), ("lws.vllm.1", "4+")),
        (of(LWS), spec(leaderWorkerTemplate={"size": 4}, startupPolicy="LeaderReady"), ("", "")),
        (of(LWS), spec(leaderWorkerTemplate={"size": 1}), ("", "")),
        (of(JOBSET), spec(replicatedJobs=[{"replicas": 2}]), ("", "")),
        (
            of(JOBSET, WISH),
            spec(
                replicatedJobs=[
                    {"name": "driver"},
                    {"replicas": 2, "template": {"spec": {"parallelism": 4, "completions": 3}}},
                ]
            ),
            ("jobset.train", "7+"),
        ),
        (
            of(kubeflow("llm", "pytorchjob-controller")),
            spec(
                pytorchReplicaSpecs={"Master": {}, "Worker": {"replicas": 3}},
                runPolicy={"schedulingPolicy": {"minAvailable": 3}},
            ),
            ("pytorchjob.llm", "3+"),
        ),
        (
            of(kubeflow("llm", "pytorchjob-controller")),
            spec(pytorchReplicaSpecs={"Worker": {"replicas": 3}}),
            ("", ""),
        ),
        (
            of(kubeflow("llm", "pytorchjob-controller"), WISH),
            spec(pytorchReplicaSpecs={"Master": {"replicas": 1}, "Worker": {"replicas": 3}}),
            ("pytorchjob.llm", "4+"),
        ),
        # The launcher is made when the workers are ready, so they do not wait for it.
        (
            of(kubeflow("pi", "mpi-operator")),
            spec(
                launcherCreationPolicy="WaitForWorkersReady",
                mpiReplicaSpecs={"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}},
                runPolicy={"schedulingPolicy": {"minAvailable": 3}},
            ),
            ("mpijob.pi", "2+"),
        ),
        (
            of(RAY),
            {
                "metadata": {"labels": {"ray.io/gang-scheduling-enabled": "true"}},
                **spec(workerGroupSpecs=[{"replicas": 2, "numOfHosts": 2}, {"replicas": 9, "suspend": True}]),
            },
            ("ray.rays", "5+"),
        ),
        (of(RAY), spec(workerGroupSpecs=[{"replicas": 2}]), ("", "")),
        (
            of(RAY, WISH),
            spec(enableInTreeAutoscaling=True, workerGroupSpecs=[{"replicas": 5, "minReplicas": 1}]),
            ("ray.rays", "2+"),
        ),
    ],
)
def test_an_object_says_whether_its_group_is_a_gang(asking: Pod, body: Body, gang: tuple[str, str]) -> None:
    assert read(asking, body) == gang


def test_a_podgroup_made_for_a_job_counts_before_the_job() -> None:
    both = of(kubeflow("llm", "pytorchjob-controller") | {"scheduling.x-k8s.io/pod-group": "llm"})
    group = group_of(both)
    assert group is not None
    assert (group.neighbour.name, str(group)) == ("pod-group", "PodGroup llm")


def test_a_pod_that_names_its_gang_belongs_to_that_one() -> None:
    assert to_read(of({"scheduling.x-k8s.io/pod-group": "g"}, {names.GANG: "mine", names.GANG_SIZE: "2"})) is None


def test_other_pods_have_no_group() -> None:
    assert group_of(of({"app": "web"}, {"note": "x"})) is None
    assert group_of(of(scheduling_group={"other": "x"})) is None
    assert to_read(of({"training.kubeflow.org/job-name": "j", "training.kubeflow.org/operator-name": "x"})) is None


@pytest.mark.parametrize(
    ("asking", "body", "why"),
    [
        (of(JOBSET, WISH), spec(startupPolicy={"startupPolicyOrder": "InOrder"}), "starts its Jobs in order"),
        (of(JOBSET, WISH), spec(replicatedJobs=[{"dependsOn": [{"name": "a"}]}]), "starts its Jobs in order"),
        (
            of(JOBSET, WISH),
            {"metadata": {"annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}}},
            "the JobSet train has an exclusive topology",
        ),
        (of(LWS, WISH), spec(startupPolicy="LeaderReady"), "workers are made after the leader is ready"),
        (
            of(LWS, WISH),
            {"metadata": {"annotations": {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"}}},
            "workers are made after the leader is placed",
        ),
    ],
)
def test_a_gang_whose_pods_wait_for_each_other_is_refused(asking: Pod, body: Body, why: str) -> None:
    with pytest.raises(InvalidDemand, match=why):
        read(asking, body)


def test_a_wish_without_an_owner_or_with_another_word_is_refused() -> None:
    with pytest.raises(InvalidDemand, match="has no owner whose groups can be read"):
        to_read(of(annotations=WISH))
    with pytest.raises(InvalidDemand, match="the only value is owner"):
        to_read(of(JOBSET, {names.GANG_FROM: "me"}))


def test_a_gang_larger_than_the_largest_is_refused() -> None:
    with pytest.raises(InvalidDemand, match="places 513 pods at once; the most is 512"):
        read(NATIVE, spec(schedulingPolicy={"gang": {"minCount": 513}}))


def test_a_gang_is_never_undone_unless_its_pod_has_a_time_limit() -> None:
    for asking, limit in ((COSCHEDULED, "never"), (of(COSCHEDULED.metadata.labels, {names.GANG_TIMEOUT: "5m"}), "5m")):
        asked = to_read(asking)
        assert asked is not None
        assert gang_annotations(asked, spec(minMember=2), asking)[names.GANG_TIMEOUT] == limit


def test_an_object_that_does_not_exist() -> None:
    """PodGroups come before their pods. The pod of another group has lost its owner, and is placed alone."""
    for asking, refused in ((NATIVE, True), (COSCHEDULED, True), (of(LWS), False), (of(JOBSET, WISH), True)):
        asked = to_read(asking)
        assert asked is not None
        assert (missing(asked) is not None) == refused


def test_an_object_that_cannot_be_read() -> None:
    asked = to_read(COSCHEDULED)
    assert asked is not None
    assert unreadable(asked, "no right") == "the pods of the PodGroup g are placed one by one: no right"
    wished = to_read(of(RAY, WISH))
    assert wished is not None
    with pytest.raises(InvalidDemand, match="the RayCluster rays cannot be read: no right"):
        unreadable(wished, "no right")


def test_long_names_stay_different_and_are_valid() -> None:
    long = "x" * 62
    first, second = (Group(BY_NAME["lws"], Named(long, part)).gang for part in ("0", "1"))
    assert first != second
    for gang in (first, second):
        assert len(gang) <= 63
        with_annotations(NATIVE, {names.GANG: gang})
    assert Group(BY_NAME["lws"], Named("short", "0")).gang == "lws.short.0"


json = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["spec", "schedulingPolicy", "gang", "minCount", "minMember", "leaderWorkerTemplate", "size", "replicatedJobs",
         "replicas", "template", "parallelism", "podGroups", "runPolicy", "minAvailable", "xReplicaSpecs", "Worker",
         "metadata", "annotations", "labels", "workerGroupSpecs", "numOfHosts", "restartPolicy"]), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(json, st.sampled_from(NEIGHBOURS), st.booleans())
def test_any_object_has_a_size_or_is_refused(body: Any, neighbour: Any, wished: bool) -> None:
    asking = of(annotations=WISH if wished else {}, workload_ref={"name": "w", "podGroup": "Worker"})
    asked = Asked(Group(neighbour, Named("o", "0")), wished)
    try:
        found = gang_annotations(asked, body if isinstance(body, dict) else {"spec": body}, asking)
    except InvalidDemand:
        return
    assert not found or int(found[names.GANG_SIZE].removesuffix("+")) > 1
