"""Asks the programs of a slice to park or to wake, as the annotation of their pod says, and reports their answers.

The annotation has a number that grows (`names.PARK_REQUEST`); odd ones park. The policy page keeps it, so a new agent
asks nothing twice. Somebody on the node may ask as well (`egpu park SLICE`): such requests count in the lower bits.
"""

import asyncio
import time
from typing import Final

import structlog

from egpu.adapters.slices.asking import ask_to_park
from egpu.adapters.slices.pages import UsageReader, read_policy
from egpu.adapters.slices.usage import ANSWERS, ParkAnswer
from egpu.api import names
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import ElasticGPUError
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.kubernetes.reflector import Reflector

LOOK_SECONDS: Final = 0.5
ANSWER_SECONDS: Final = 30.0
"""After this, processes that did not answer are reported: some have no memory that could leave, or have ended."""
LOCAL_BITS: Final = 20
"""Of a request's number: those below the pod's number."""
MOST_DIGITS: Final = 12
"""The most digits of the annotation."""
_GOOD: Final = (ParkAnswer.DONE, ParkAnswer.WOKEN)

log = structlog.get_logger(__name__)


class SlotParker:
    """Runs until cancelled. `pods` follows the node's pods."""

    def __init__(self, slots: Slots, pods: Reflector[Pod], events: EventRecorder) -> None:
        self._slots = slots
        self._pods = pods
        self._events = events
        self._asked: dict[str, tuple[int, float]] = {}
        """Requests without a report yet, by slot: the number on the page, and the time in monotonic seconds."""

    async def run(self) -> None:
        await self._pods.synced.wait()
        while True:
            await self.step()
            await asyncio.sleep(LOOK_SECONDS)

    async def step(self) -> None:
        """Look at every parkable slot once."""
        parkable = [record for record in self._slots.records() if record.allocation.parkable and not record.server]
        self._asked = {slot: asked for slot, asked in self._asked.items() if slot in {one.slot_id for one in parkable}}
        for record in parkable:
            pod = self._pods.by_uid(record.pod_uid)
            wanted = 0 if pod is None else requested(pod)
            if pod is None or not wanted:
                continue
            try:
                await self._follow(record, pod, wanted)
            except (ElasticGPUError, OSError) as error:
                log.warning("slice not asked to park yet", slot_id=record.slot_id, reason=str(error))

    async def _follow(self, record: SlotRecord, pod: Pod, wanted: int) -> None:
        page = self._slots.policy_file(record.slot_id)
        parking = (await asyncio.to_thread(read_policy, page)).parking
        if parking is not None and parking.request >> LOCAL_BITS < wanted:
            least = wanted << LOCAL_BITS
            number = await asyncio.to_thread(ask_to_park, page, park=wanted % 2 == 1, least=least)
            self._asked[record.slot_id] = number, time.monotonic()
            log.info("asked to park" if wanted % 2 else "asked to wake", slot_id=record.slot_id, request=wanted)
        if record.slot_id in self._asked:
            await self._report(record, pod, *self._asked[record.slot_id])

    async def _report(self, record: SlotRecord, pod: Pod, number: int, since: float) -> None:
        """Write the answers as an event of the pod, when all processes have answered or the time is over."""
        usage = await asyncio.to_thread(UsageReader(self._slots.usage_file(record.slot_id)).read)
        said = [one.parking for one in usage.processes]
        answers = [one.answer for one in said if one.answered == number]
        if len(answers) < len(said) and time.monotonic() - since < ANSWER_SECONDS:
            return
        del self._asked[record.slot_id]
        parked_mib = sum(one.parked_bytes for one in said) >> 20
        worst = max(answers, default=ParkAnswer.NOT_ASKED)
        message = f"container {record.container}: {ANSWERS[worst]}; {parked_mib} MiB are parked"
        if worst in _GOOD:
            await self._events.note(pod, "GPUMemoryParked" if worst is ParkAnswer.DONE else "GPUMemoryWoken", message)
        else:
            await self._events.warn(pod, "GPUMemoryNotMoved", message)


def requested(pod: Pod) -> int:
    """Return the number that a pod asks with; 0 for none, or for one that is not valid."""
    text = pod.annotations.get(names.PARK_REQUEST, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else 0
