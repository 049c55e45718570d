"""Topology spread constraints that the API server refuses, so that none is ignored by the scheduler."""

from typing import Any

import pytest

from egpu_sim.cluster.apiserver.kinds import podspec

GOOD: dict[str, Any] = {
    "maxSkew": 1,
    "topologyKey": "zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "a"}},
}


def refusals(*constraints: dict[str, Any]) -> list[tuple[str, str]]:
    spec = {"containers": [{"name": "a", "image": "i"}], "topologySpreadConstraints": list(constraints)}
    podspec.set_defaults(spec)
    start = "spec.topologySpreadConstraints"
    return [(cause.field.removeprefix(start), cause.message) for cause in podspec.validate(spec)]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"whenUnsatisfiable": "ScheduleAnyway"},
        {"minDomains": 3},
        {"nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"},
        {"matchLabelKeys": ["pod-template-hash"]},
        {"labelSelector": {}},
    ],
)
def test_what_kubernetes_takes_is_taken(change: dict[str, Any]) -> None:
    assert refusals(GOOD | change) == []


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"maxSkew": 0}, "[0].maxSkew", "must be greater than zero"),
        ({"maxSkew": -1}, "[0].maxSkew", "must be greater than zero"),
        ({"topologyKey": ""}, "[0].topologyKey", "can not be empty"),
        ({"topologyKey": "a b"}, "[0].topologyKey", "alphanumeric"),
        ({"whenUnsatisfiable": "Perhaps"}, "[0].whenUnsatisfiable", '"DoNotSchedule", "ScheduleAnyway"'),
        ({"whenUnsatisfiable": None}, "[0].whenUnsatisfiable", '"DoNotSchedule", "ScheduleAnyway"'),
        ({"minDomains": 0}, "[0].minDomains", "must be greater than zero"),
        ({"minDomains": 2, "whenUnsatisfiable": "ScheduleAnyway"}, "[0].minDomains", "not ScheduleAnyway"),
        ({"nodeAffinityPolicy": "Perhaps"}, "[0].nodeAffinityPolicy", '"Honor", "Ignore"'),
        ({"nodeTaintsPolicy": "Perhaps"}, "[0].nodeTaintsPolicy", '"Honor", "Ignore"'),
        ({"matchLabelKeys": ["app"]}, "[0].matchLabelKeys[0]", "exists in both"),
        ({"matchLabelKeys": ["a b"]}, "[0].matchLabelKeys[0]", "alphanumeric"),
        ({"matchLabelKeys": ["b"], "labelSelector": None}, "[0].matchLabelKeys", "labelSelector is not set"),
    ],
)
def test_what_the_scheduler_would_ignore_is_refused_by_name(change: dict[str, Any], field: str, words: str) -> None:
    ((said, message),) = refusals(GOOD | change)
    assert said == field
    assert words in message


def test_two_constraints_about_one_domain_are_refused() -> None:
    ((field, message),) = refusals(GOOD, GOOD | {"maxSkew": 2})
    assert field == "[1].{topologyKey, whenUnsatisfiable}"
    assert "{zone, DoNotSchedule}" in message
    assert refusals(GOOD, GOOD | {"whenUnsatisfiable": "ScheduleAnyway"}) == []
