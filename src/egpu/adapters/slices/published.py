"""The use of slices, as published: by the /metrics of node agents, or by a Prometheus that has scraped them."""

import asyncio
import re
import ssl
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx2

from egpu.core.view import ProcessUsage, SliceKey, SliceUsage
from egpu_base.errors import CorruptData, Refused, Unavailable
from egpu_base.kubernetes.transport import Transport

TIMEOUT_SECONDS: Final = 10.0
MAX_AGENT_BYTES: Final = 16 << 20
MAX_BYTES: Final = 512 << 20
"""A Prometheus of 40,000 cards answers with a hundred megabytes; only a part at a time is kept."""
MAX_LINE_CHARACTERS: Final = 64 << 10
PART_CHARACTERS: Final = 64 << 10
_PREFIX: Final = "elasticgpu_container_"
_PROCESS: Final = "elasticgpu_process_memory_used_bytes"
_FIELDS: Final = {
    "memory_used_bytes": "memory_bytes",
    "memory_parked_bytes": "parked_bytes",
    "memory_peak_bytes": "peak_bytes",
    "core_used_ratio": "core_ratio",
    "gpu_seconds_total": "gpu_seconds",
    "throttled_seconds_total": "throttled_seconds",
    "memory_refusals_total": "refusals",
    "idle_seconds": "idle_seconds",
    "age_seconds": "age_seconds",
}
_WHOLE: Final = frozenset({"memory_bytes", "parked_bytes", "peak_bytes", "refusals"})
_NAMES: Final = {f"{_PREFIX}{name}": field for name, field in _FIELDS.items()}
_VALUE: Final = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_SERIES: Final = re.compile(rf"\w+\{{((?:\w+={_VALUE},?)*)\}}\s+(\S+)(?:\s+\d+)?\s*")
"""Labels and value; a Prometheus adds the time."""
_LABEL: Final = re.compile(rf"(\w+)=({_VALUE})")
_ESCAPED: Final = re.compile(r"\\(.)")
_ESCAPES: Final = {"n": "\n"}

Usage = dict[SliceKey, SliceUsage]


def parse_usage(text: str) -> Usage:
    """Parse Prometheus' text format; ignore other series. Raises CorruptData."""
    reading = Reading()
    reading.take(text)
    return reading.ended()


class Reading:
    """Parses a page part by part. Most labels repeat the line before, but for another name, and are read once."""

    def __init__(self) -> None:
        self._rest = ""
        self._known: dict[str, SliceKey] = {}
        self._fields: dict[SliceKey, dict[str, Any]] = {}
        self._processes: dict[SliceKey, list[ProcessUsage]] = {}

    def take(self, part: str) -> None:
        """Take the next part; it may end within a line. Raises CorruptData."""
        *lines, self._rest = (self._rest + part).split("\n")
        if len(self._rest) > MAX_LINE_CHARACTERS:
            raise CorruptData(f"not an agent's metrics: a line of {len(self._rest)} characters")
        for line in lines:
            self._line(line)

    def ended(self) -> Usage:
        """Return the use after the last part. Raises CorruptData."""
        self._line(self._rest)
        for key, known in self._processes.items():
            self._of(key)["processes"] = tuple(sorted(known, key=lambda one: -one.memory_bytes))
        return {key: SliceUsage(**fields) for key, fields in self._fields.items()}

    def _line(self, line: str) -> None:
        name = line.partition("{")[0]
        field = _NAMES.get(name)
        if field is None and name != _PROCESS:
            return
        found = _SERIES.fullmatch(line)
        if found is None:
            raise CorruptData(f"not an agent's metrics: {line[:200]}")
        try:
            labels, value = found[1], float(found[2])
            if field is None:
                said = _labels(labels)
                process = ProcessUsage(int(said["container_pid"]), int(value))
                self._processes.setdefault(_key(said), []).append(process)
                return
            key = self._known.get(labels)
            if key is None:
                key = self._known[labels] = _key(_labels(labels))
            self._of(key)[field] = int(value) if field in _WHOLE else value
        except (KeyError, ValueError, OverflowError) as error:
            raise CorruptData(f"not an agent's metrics: {error}") from error

    def _of(self, key: SliceKey) -> dict[str, Any]:
        return self._fields.setdefault(key, {})


def _labels(text: str) -> dict[str, str]:
    return {name: _ESCAPED.sub(lambda one: _ESCAPES.get(one[1], one[1]), said[1:-1])
            for name, said in _LABEL.findall(text)}  # fmt: skip


def _key(labels: Mapping[str, str]) -> SliceKey:
    return SliceKey(labels["namespace"], labels["pod"], labels["container"], labels["device_uuid"])


def read_usage(sources: Iterable[str], *, token: str = "") -> Usage:
    """Read URLs and files. `token` is a bearer token of the cluster, which agents require. Their certificates are
    self-signed, so any server at that address receives it. Raises CorruptData, Refused, Unavailable."""
    found: Usage = {}
    for source in sources:
        found |= _fetched(source, token) if "://" in source else _from_file(source)
    return found


async def ask_agent(url: str, *, token: str) -> Usage:
    """Read one agent's metrics within TIMEOUT_SECONDS, for callers that ask thousands, each on its own connection.
    Raises as `read_usage`."""
    headers = {"Connection": "close"} | _bearer(token)
    request = httpx2.Request("GET", url, headers=headers)
    transport = Transport(_trusting(), at_most=1, keepalive_seconds=0.0)
    body = bytearray()
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            answer = await transport.handle_async_request(request)
            async with aclosing(answer.aiter_raw()) as parts:
                async for part in parts:
                    body += part
                    _check_size(url, len(body), MAX_AGENT_BYTES)
    except (httpx2.HTTPError, TimeoutError) as error:
        raise Unavailable(f"{url}: {error or type(error).__name__}") from error
    finally:
        await transport.aclose()
    text = body.decode(errors="replace")
    _check_status(url, answer, text)
    return parse_usage(text)


def _from_file(path: str) -> Usage:
    reading = Reading()
    try:
        with Path(path).open() as file:
            while part := file.read(PART_CHARACTERS):
                reading.take(part)
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"{path}: {error}") from error
    return reading.ended()


def _fetched(url: str, token: str) -> Usage:
    """Fetch and parse a stream: a whole cluster's metrics are large."""
    reading, size = Reading(), 0
    try:
        with (
            httpx2.Client(verify=_trusting(), timeout=TIMEOUT_SECONDS, headers=_bearer(token)) as client,
            client.stream("GET", url) as answer,
        ):
            if not answer.is_success:
                _check_status(url, answer, answer.read()[:MAX_LINE_CHARACTERS].decode(errors="replace"))
            for part in answer.iter_text():
                size += len(part)
                _check_size(url, size, MAX_BYTES)
                reading.take(part)
    except httpx2.HTTPError as error:
        raise Unavailable(f"{url}: {error or type(error).__name__}") from error
    return reading.ended()


def _check_status(url: str, answer: httpx2.Response, text: str) -> None:
    if not answer.is_success:
        raise Refused(f"{url} answers {answer.status_code}: {text[:200].strip()}")


def _check_size(url: str, size: int, limit: int) -> None:
    if size > limit:
        raise CorruptData(f"{url} sends more than {limit} bytes, not an agent's metrics")


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


@cache
def _trusting() -> ssl.SSLContext:
    """Return one context for all: making one takes longer than a request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
