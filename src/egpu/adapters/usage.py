"""What slices use, from where it is published: the /metrics of node agents, or a Prometheus that has scraped them."""

import ssl
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from egpu.core.view import ProcessUsage, SliceKey, SliceUsage
from egpu.errors import CorruptData, ElasticGPUError, Refused, Unavailable

TIMEOUT_SECONDS: Final = 10.0
MOST_BYTES: Final = 64 << 20
MAX_ASKED_AT_ONCE: Final = 16
_PREFIX: Final = "elasticgpu_container_"
_PROCESS: Final = "elasticgpu_process_memory_used_bytes"
_FIELDS: Final = {
    "memory_used_bytes": "memory_bytes",
    "memory_peak_bytes": "peak_bytes",
    "core_used_ratio": "core_ratio",
    "gpu_seconds_total": "gpu_seconds",
    "throttled_seconds_total": "throttled_seconds",
    "memory_refusals_total": "refusals",
    "idle_seconds": "idle_seconds",
    "age_seconds": "age_seconds",
}
_WHOLE: Final = frozenset({"memory_bytes", "peak_bytes", "refusals"})


def parse_usage(text: str) -> dict[SliceKey, SliceUsage]:
    """From Prometheus' text format; other series are passed over. Raises CorruptData."""
    found: dict[SliceKey, SliceUsage] = {}
    processes: dict[SliceKey, list[ProcessUsage]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == _PROCESS:
                    of = processes.setdefault(_key(sample.labels), [])
                    of.append(ProcessUsage(int(sample.labels["container_pid"]), int(sample.value)))
                field = _FIELDS.get(sample.name.removeprefix(_PREFIX)) if sample.name.startswith(_PREFIX) else None
                if field is None:
                    continue
                key = _key(sample.labels)
                value: Any = int(sample.value) if field in _WHOLE else sample.value
                found[key] = replace(found.get(key, SliceUsage()), **{field: value})
    except (KeyError, ValueError, OverflowError) as error:
        raise CorruptData(f"this is not what an agent publishes: {error}") from error
    for key, known in processes.items():
        by_memory = tuple(sorted(known, key=lambda one: -one.memory_bytes))
        found[key] = replace(found.get(key, SliceUsage()), processes=by_memory)
    return found


def _key(labels: Mapping[str, str]) -> SliceKey:
    return SliceKey(labels["namespace"], labels["pod"], labels["container"], labels["device_uuid"])


def read_usage(sources: Iterable[str], *, token: str = "") -> dict[SliceKey, SliceUsage]:
    """From URLs and files. `token` is a bearer token of the cluster, which agents ask for; their certificates are
    signed by nobody, so it is sent to whoever answers there. Raises CorruptData, Refused, Unavailable."""
    found: dict[SliceKey, SliceUsage] = {}
    for source in sources:
        found |= parse_usage(_fetched(source, token) if "://" in source else _from_file(source))
    return found


def ask_agents(urls: Iterable[str], *, token: str) -> tuple[dict[SliceKey, SliceUsage], list[str]]:
    """As `read_usage`, from many at once: what those said that answered, and what is wrong with the others."""
    found: dict[SliceKey, SliceUsage] = {}
    problems: list[str] = []

    def ask(url: str) -> dict[SliceKey, SliceUsage] | str:
        try:
            return parse_usage(_fetched(url, token))
        except ElasticGPUError as error:
            return str(error)

    with ThreadPoolExecutor(MAX_ASKED_AT_ONCE) as pool:
        for answer in pool.map(ask, urls):
            if isinstance(answer, str):
                problems.append(answer)
            else:
                found |= answer
    return found, problems


def _from_file(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"{path}: {error}") from error


def _fetched(url: str, token: str) -> str:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with (
            httpx2.Client(verify=context, timeout=TIMEOUT_SECONDS, headers=headers) as client,
            client.stream("GET", url) as answer,
        ):
            text = _bounded(url, answer.iter_text())
            status, good = answer.status_code, answer.is_success
    except httpx2.HTTPError as error:
        raise Unavailable(f"{url}: {error or type(error).__name__}") from error
    if not good:
        raise Refused(f"{url} answers {status}: {text[:200].strip()}")
    return text


def _bounded(url: str, parts: Iterable[str]) -> str:
    whole, size = list[str](), 0
    for part in parts:
        size += len(part)
        if size > MOST_BYTES:
            raise CorruptData(f"{url} answers with more than {MOST_BYTES} bytes")
        whole.append(part)
    return "".join(whole)
