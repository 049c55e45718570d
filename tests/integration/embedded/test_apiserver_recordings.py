"""What a real kube-apiserver was asked, and what it said: the simulated one must say the same, in the same words."""

import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from test_apiserver_http import CRDS, created

from egpu.api.crds import definitions
from egpu_sim.cluster.apiserver import Config, ServerHandle, serve

RECORDINGS = Path(__file__).parents[1] / "recordings" / "kubernetes-1.36.jsonl"
UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[ServerHandle]:
    async with serve(Config(tmp_path)) as handle:
        yield handle


async def test_every_recorded_request_is_answered_as_the_real_server_did(api: httpx2.AsyncClient) -> None:
    records: list[dict[str, Any]] = [json.loads(line) for line in RECORDINGS.read_text().splitlines()]
    assert len(records) > 80
    for definition in definitions():  # as the recorded server had them
        await created(api, CRDS, definition)
    differences: list[str] = []
    for record in records:
        found, wanted = await _answer(api, record), _said(record)
        if (found[0], found[1]) != (wanted[0], wanted[1]) or not found[2].startswith(wanted[2]):
            differences.append(f"{record['name']}: {found}, not {wanted}")
    assert not differences, "\n".join(differences)


def _said(record: dict[str, Any]) -> tuple[int, str, str]:
    """(status, reason, message) of the real answer; no words where it was no refusal."""
    return record["status"], record.get("reason", ""), record.get("message", "")


async def _answer(api: httpx2.AsyncClient, record: dict[str, Any]) -> tuple[int, str, str]:
    headers = {"accept": record["accept"]}
    content: bytes | None = None
    if "body" in record:
        body = record["body"]
        content = (body if isinstance(body, str) else json.dumps(body)).encode()
        headers["content-type"] = record["contentType"]
    answer = await api.request(record["method"], record["path"], content=content, headers=headers)
    if answer.is_success or "message" not in record:
        return answer.status_code, "", ""
    refusal = answer.json()
    return answer.status_code, refusal.get("reason", ""), UID.sub("*", refusal["message"])
