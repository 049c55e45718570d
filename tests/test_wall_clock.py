"""Nothing is measured by a clock that somebody can set: leases, elections, graces and backoffs last as long as they are
said to while the time of day jumps. What does ask for the time of day is listed here, with what it is for."""

import ast
import re
import time
from collections.abc import Iterator
from typing import Final

import pytest

from egpu_base.runtime.clock import even_time_of_day
from support.repository import SOURCES, of, text, tree

TIME_OF_DAY: Final = {
    "base/src/egpu_base/system/files.py": "beside a file's time, by the same clock; set back, it only looks again",
    "base/src/egpu_base/kubernetes/election.py": "is shown, in the Lease; our own monotonic clock decides who leads",
    "base/src/egpu_base/kubernetes/events.py": "is shown, in events",
    "src/egpu/adapters/kubernetes/followed.py": "is shown: how long pods wait",
    "src/egpu/adapters/kubernetes/node_conditions.py": "is shown, in conditions",
    "src/egpu/adapters/local/book.py": "outlives the boot; core.backoff bounds what a clock that is set back does",
    "base/src/egpu_base/monitoring.py": "a certificate's dates",
    "src/egpu/adapters/pool/authority.py": "a certificate's dates",
    "src/egpu/adapters/pool/data.py": "a token's end, which another machine has said; who comes too late comes again",
    "simulator/src/egpu_sim/machines/faults.py": "NVML's time of an event",
    "simulator/src/egpu_sim/machines/state.py": "is shown: when the machine was made",
    "src/egpu/apps/agent/serving/pod_service.py": "a token's end",
    "src/egpu/apps/broker/service.py": "a token's end; and once, what must hold over a restart",
    "src/egpu/apps/controller/certificates.py": "a certificate's dates",
    "src/egpu/apps/controller/claim_controller.py": "is shown, in conditions",
    "src/egpu/apps/dashboard/knowledge.py": "is shown: when a card was how full",
    "src/egpu/apps/extender/binder.py": "is shown, in an annotation of others' tools",
    "src/egpu/apps/extender/device_claim_writer.py": "a text that nobody wrote before",
    "src/egpu/apps/extender/device_claims.py": "is shown, in a claim's allocation",
    "src/egpu/apps/extender/fence.py": "a text that nobody wrote before",
    "src/egpu/apps/extender/resizer.py": "is shown, in conditions",
    "base/src/egpu_base/runtime/clock.py": "once, when a process starts",
    "native/common/clock.h": "for those that show it",
    "native/enter/log.c": "is shown: when a line of a container's log was written",
    "native/enter/supervise.c": "is shown: when a container ended",
    "native/interposer/utilisation.c": "NVML's time of a sample",
    "simulator/native/mps/daemon.c": "is shown: when a line of its log was written",
    "simulator/native/gpu/nvml.c": "NVML's time of a sample",
    "simulator/native/ptx/exec.c": "a kernel's %globaltimer",
    "simulator/native/ptx/ptx.h": "a kernel's %globaltimer",
    "native/smi/fields.c": "is shown, in a table",
}
"""The simulated cluster and the command line are not looked at: they show ages, as Kubernetes does."""

ASKED_IN_C: Final = re.compile(r"\b(CLOCK_REALTIME|clock_unix_ns|time\(NULL\)|PTHREAD_COND_INITIALIZER)")
UNTIMED: Final = {"native/executor/moves/gate.c", "native/executor/session/callback.c", "native/remote/stream.c"}
"""Whose conditions are waited for without an end, so that they have no clock. One that has an end is made with
CLOCK_MONOTONIC: a static one has the time of day."""


def asking() -> Iterator[str]:
    shown = ("simulator/src/egpu_sim/cluster/", "src/egpu/cli/", "src/egpu/laptop/")
    for file in (each for each in of(".py") if each.startswith(SOURCES)):
        if not file.startswith(shown) and any(
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and (node.value.id, node.attr) in {("time", "time"), ("time", "time_ns"), ("datetime", "now")}
            for node in ast.walk(tree(file))
        ):
            yield file
    for file in (each for each in of(".c", ".h") if each.startswith(("native/", "simulator/native/"))):
        if (
            not file.startswith(("native/tests/", "simulator/native/tests/"))
            and file not in UNTIMED
            and ASKED_IN_C.search(text(file))
        ):
            yield file


def test_who_asks_for_the_time_of_day_has_a_reason() -> None:
    assert set(asking()) == TIME_OF_DAY.keys()


def test_a_time_of_day_that_is_measured_goes_on_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = even_time_of_day(), time.time()
    assert abs(clock() - now) < 60
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    assert clock() >= now


def test_conditions_without_a_clock_are_waited_for_without_an_end() -> None:
    assert {file for file in UNTIMED if "pthread_cond_timedwait" in text(file)} == set()
