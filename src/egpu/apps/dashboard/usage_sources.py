"""Asks agents or Prometheus what slices use, in turn. A silent one does not affect the others."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from egpu.adapters.slices.published import Usage, ask_agent, read_usage
from egpu.apps.dashboard.config import DashboardConfig
from egpu.core.view import SliceKey, SliceUsage
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import ElasticGPUError
from egpu_base.http.listening import Listen
from egpu_base.kubernetes import Change

MAX_ASKED_AT_ONCE: Final = 64
MAX_ASKED_A_SECOND: Final = 100
"""An answer costs some two milliseconds, so pages are served as before."""
NAME_LABEL: Final = "app.kubernetes.io/name"
AGENT: Final = "elastic-gpu-agent"
AGENT_PORT: Final = 8083
"""The port in `deploy/agent.yaml`."""

log = structlog.get_logger(__name__)


class UsageSources:
    """The configured sources, and the installation's agents if enabled."""

    def __init__(self, config: DashboardConfig) -> None:
        self._config = config
        self._agents: dict[str, str] = {}
        """The address of each agent, by its pod."""
        self._said: dict[str, Usage] = {}
        self._silent: dict[str, str] = {}
        """Sources that did not answer last time, with the reason."""

    def pod_changed(self, change: Change[Pod]) -> None:
        """Find agents by their pods."""
        pod = change.subject
        self._agents.pop(pod.key, None)
        if change.new is not None and self._config.ask_agents and (url := agent_url(pod, self._config.namespace)):
            self._agents[pod.key] = url

    @property
    def asked(self) -> int:
        """The number of sources that were asked."""
        return len(self._said) + len(self._silent)

    @property
    def silent(self) -> int:
        """The number of sources that did not answer."""
        return len(self._silent)

    async def ask(self) -> Mapping[SliceKey, SliceUsage]:
        """Ask all sources. A silent source counts as unknown: old figures are not shown as new ones."""
        try:
            token = read_token(self._config.token_file)
        except OSError as error:
            log.warning("use not read", reason=str(error))
            return {}
        agents = frozenset(self._agents.values())
        sources = [*self._config.usage, *agents.difference(self._config.usage)]
        self._forget_but(sources)
        places = asyncio.Semaphore(MAX_ASKED_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for source in sources:
                await places.acquire()
                task = group.create_task(self._ask(source, token, agent=source in agents))
                task.add_done_callback(lambda _: places.release())
                await asyncio.sleep(1 / MAX_ASKED_A_SECOND)
        if self._silent:
            some = next(iter(self._silent.values()))
            log.warning("some sources did not report use", asked=self.asked, silent=self.silent, one=some)
        return {key: one for said in self._said.values() for key, one in said.items()}

    async def _ask(self, source: str, token: str, *, agent: bool) -> None:
        self._said.pop(source, None)
        try:
            if agent:
                said = await ask_agent(source, token=token)
            else:
                said = await asyncio.to_thread(read_usage, [source], token=token)
        except ElasticGPUError as error:
            self._silent[source] = str(error)
        else:
            self._said[source] = said
            self._silent.pop(source, None)

    def _forget_but(self, sources: list[str]) -> None:
        self._said = {one: self._said[one] for one in sources if one in self._said}
        self._silent = {one: self._silent[one] for one in sources if one in self._silent}


def agent_url(pod: Pod, namespace: str) -> str | None:
    """Return the address of a node agent's metrics; None if the pod is not an agent of this installation."""
    if pod.namespace != namespace or (pod.metadata.labels or {}).get(NAME_LABEL) != AGENT or not pod.status.pod_ip:
        return None
    return f"https://{Listen(pod.status.pod_ip, AGENT_PORT)}/metrics"


def read_token(file: Path | None) -> str:
    """Return the bearer token in a file; "" without a file. Raises OSError."""
    return file.read_text().strip() if file is not None else ""
