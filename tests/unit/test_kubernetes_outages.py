"""A 403 of an API server that has just started is not taken for a missing role."""

import httpx2
import pytest

from egpu_base.errors import ElasticGPUError, NotAllowed, Refused, Unavailable
from egpu_base.kubernetes.failures import ROLES_READY_SECONDS, Outages, Status, from_status
from support.fake_api import FakeAPI, status

NO_ROLE = 'pods is forbidden: User "system:serviceaccount:a:b" cannot list resource "pods" in API group ""'
QUOTA = 'pods "x" is forbidden: exceeded quota: full, requested: pods=1, used: pods=1, limited: pods=1'


def forbidden(message: str) -> ElasticGPUError:
    return from_status(Status(message=message, reason="Forbidden", code=403), "GET /pods")


def test_only_rbac_makes_a_missing_role_of_a_403() -> None:
    assert isinstance(forbidden(NO_ROLE), NotAllowed)
    assert type(forbidden(QUOTA)) is Refused


def test_a_missing_role_is_doubted_for_a_minute_after_an_outage() -> None:
    now = 1000.0
    outages = Outages(lambda: now)
    missing, full, away = forbidden(NO_ROLE), forbidden(QUOTA), Unavailable("GET /pods: refused")
    assert outages.judge(missing) is missing
    assert outages.judge(away) is away
    now += ROLES_READY_SECONDS - 1
    assert isinstance(outages.judge(missing), Unavailable)
    assert outages.judge(full) is full
    now += 1
    assert outages.judge(missing) is missing


async def test_the_client_waits_for_the_roles_of_a_server_that_was_away() -> None:
    answers = [status(503), status(403, "Forbidden", NO_ROLE), httpx2.Response(200, json={"items": []})]
    api = FakeAPI()
    api.fault = lambda _api, _request: answers.pop(0)
    async with api.client() as client:
        assert await client.text("/api/v1/pods") == '{"items":[]}'
    assert answers == []


async def test_a_server_that_was_never_away_is_believed() -> None:
    api = FakeAPI()
    api.fault = lambda _api, _request: status(403, "Forbidden", NO_ROLE)
    async with api.client() as client:
        with pytest.raises(NotAllowed, match="cannot list"):
            await client.text("/api/v1/pods")
