"""Amounts of memory with units, wherever an amount is read; a refusal names the unit and says what to write."""

import json

import jsonpatch
import msgspec
import pytest

from egpu.api import names
from egpu.api.vocabularies import BY_NAME, VOCABULARIES, Vocabulary
from egpu.core.admission import mutate_pod, validate_claim, validate_pod_create
from egpu.core.demand.pods import read_pod
from egpu_base.api.kubernetes import Pod
from egpu_base.api.quantities import memory_advice, parse_memory_mib
from egpu_base.errors import InvalidQuantity
from support.objects import claim, container, gpu_class, pod

WITH_MEMORY = [one for one in VOCABULARIES if one.memory]
IDS = [one.name for one in WITH_MEMORY]
OTHERS = {"hami": {names.NVIDIA_GPU: 1}, "volcano": {names.VOLCANO_NUMBER: 1}}


def asking(vocabulary: Vocabulary, amount: int | str) -> Pod:
    beside: dict[str, int | str] = {**OTHERS.get(vocabulary.name, {})}
    return pod("p", container("app", beside | {vocabulary.memory: amount}))


def patched(what: Pod) -> Pod:
    patch = mutate_pod(what, {}, {}, vocabularies=["hami"])
    return msgspec.convert(jsonpatch.apply_patch(json.loads(msgspec.json.encode(what)), patch), Pod)


@pytest.mark.parametrize("vocabulary", WITH_MEMORY, ids=IDS)
@pytest.mark.parametrize(("amount", "mib"), [("4Gi", 4096), ("4096Mi", 4096), ("10G", 9537), ("4000M", 3815)])
def test_memory_with_a_unit_is_bytes_rounded_up_to_what_nodes_count(
    vocabulary: Vocabulary, amount: str, mib: int
) -> None:
    unit = vocabulary.memory_unit_mib
    after = patched(asking(vocabulary, amount))
    found = read_pod(after, {}, {}, vocabularies=["hami"])[0].containers["app"]
    count = -(-mib // unit)
    assert found.memory_mib == count * unit
    (app,) = after.containers
    assert app.resources is not None
    for said in (app.resources.limits, app.resources.requests):
        assert (said or {})[vocabulary.memory] == str(count), "as many as kube-scheduler takes from the node"
    assert patched(after) == after
    assert validate_pod_create(after, {}, {}, vocabularies=["hami"]) == []


@pytest.mark.parametrize("vocabulary", WITH_MEMORY, ids=IDS)
@pytest.mark.parametrize(("amount", "count"), [("4k", 4000), ("4Ki", 4096), ("4e3", 4000), (16, 16), ("2000", 2000)])
def test_a_count_that_the_api_server_rewrote_is_still_a_count(
    vocabulary: Vocabulary, amount: int | str, count: int
) -> None:
    found, problems = read_pod(asking(vocabulary, amount), {}, {})
    assert (found.containers["app"].memory_mib, problems) == (count * vocabulary.memory_unit_mib, [])


@pytest.mark.parametrize("vocabulary", WITH_MEMORY, ids=IDS)
@pytest.mark.parametrize("amount", ["500m", "0.5", "lots", "4294967296", "-1", "1e30", "20M", "20000k"])
def test_a_refusal_names_the_unit_and_what_to_write(vocabulary: Vocabulary, amount: str) -> None:
    (found,) = validate_pod_create(asking(vocabulary, amount), {}, {}, vocabularies=["hami"])
    assert found.field == f"spec.containers[app].resources.limits[{vocabulary.memory}]"
    unit = {1: "MiB", 1024: "GiB"}.get(vocabulary.memory_unit_mib, "blocks of 256 MiB")
    example = 4096 // vocabulary.memory_unit_mib
    assert f"write a number of {unit} such as {example}, or an amount with a unit such as 4Gi" in found.reason
    assert len([word for word in found.reason.replace(":", " ").split() if word.isdigit() and len(word) > 5]) <= 1


@pytest.mark.parametrize("vocabulary", WITH_MEMORY, ids=IDS)
@pytest.mark.parametrize("unit", ["Gi", ""])
def test_more_than_the_largest_card_has_names_the_unit_too(vocabulary: Vocabulary, unit: str) -> None:
    """A number may be meant in another unit: 8192 in GiB is more than a card has, and in MiB it is not."""
    amount = f"100{unit}" if unit else str(65536 // vocabulary.memory_unit_mib + 1)
    found = validate_pod_create(asking(vocabulary, amount), {}, {}, largest_mib=65536, vocabularies=["hami"])
    assert [each.field for each in found] == [f"spec.containers[app].resources.limits[{vocabulary.memory}]"]
    assert "MiB is more than the largest card has (65536 MiB); ask for less: " in found[0].reason
    assert found[0].reason.endswith(f": {memory_advice(vocabulary.memory_unit_mib)}")


@pytest.mark.parametrize(("resource", "unit_mib"), [(names.GPU_MEMORY, 1), (names.QGPU_MEMORY, 1024)])
def test_a_claim_for_more_than_the_largest_card_has_names_the_unit(resource: str, unit_mib: int) -> None:
    kind = gpu_class(provisioner=names.QGPU if unit_mib == 1024 else names.VCUDA)
    (found,) = validate_claim(claim("c", {resource: "100Gi"}), None, {"shared": kind}, largest_mib=65536)
    assert found.field == f"spec.resources.requests[{resource}]"
    assert found.reason.endswith(f"the largest card has 65536 MiB: {memory_advice(unit_mib)}")


@pytest.mark.parametrize("amount", ["500m", "lots", "4Gi"])
@pytest.mark.parametrize(
    ("resource", "unit"),
    [(names.GPU_CORE, "percent"), (names.VOLCANO_CORES, "percent"), (names.TFLOPS, "TFLOPS"),
     (names.NVIDIA_GPU, "cards"), (names.VOLCANO_MEMORY_PERCENT, "percent")],
)  # fmt: skip
def test_other_amounts_say_what_they_count(resource: str, unit: str, amount: str) -> None:
    (found,) = validate_pod_create(pod("p", container("app", {resource: amount})), {}, {})
    assert unit in found.reason


def test_claims_and_commands_say_it_too() -> None:
    (found,) = validate_claim(claim("c", {names.GPU_MEMORY: "lots"}), None, {"shared": gpu_class()})
    assert found.reason == (
        "'lots' is not an amount of memory; write a number of MiB such as 4096, or an amount with a unit such as 4Gi"
    )
    for wrong in ("lots", "500m", "0.5"):
        with pytest.raises(InvalidQuantity, match="write a number of MiB such as 4096") as refused:
            parse_memory_mib(wrong, field="--memory")
        assert "such as 10, 500m" not in refused.value.reason
    assert parse_memory_mib("0.5Gi") == 512
    assert BY_NAME["elasticgpu"].memory_unit_mib == 1
