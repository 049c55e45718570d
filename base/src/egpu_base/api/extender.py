"""kube-scheduler's extender protocol, v1: Go structs without JSON tags, so the keys are Go-cased.

Source: k8s.io/kube-scheduler/extender/v1. A field that Go may send as null is optional.

No reason contains a `%`: kube-scheduler formats it into the pod's event, where `%` begins a verb, and copies it into
the pod's condition, where a doubled one would show (`handleSchedulingFailure` in pkg/scheduler/schedule_one.go).
"""

import re
from typing import Final

import msgspec
from msgspec import field

from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.wire import Wire, go

_PERCENT: Final = re.compile(r" ?%")


def in_words(text: str) -> str:
    """Return a reason as it is sent, without `%`."""
    return _PERCENT.sub(" percent", text)


class _Go(msgspec.Struct, frozen=True, kw_only=True, rename=go):
    pass


class NodeList(Wire, frozen=True, kw_only=True):
    items: list[Node] | None = None


class ExtenderArgs(_Go, frozen=True, kw_only=True):
    """The arguments of filter and prioritize. `NodeNames` for a `nodeCacheCapable` extender, else full `Nodes`."""

    pod: Pod
    nodes: NodeList | None = None
    node_names: list[str] | None = None


class ExtenderQuestion(_Go, frozen=True, kw_only=True):
    """`ExtenderArgs` for reading: `NodeNames`, which may have thousands of entries, stays JSON."""

    pod: Pod
    nodes: NodeList | None = None
    node_names: msgspec.Raw = field(default_factory=lambda: msgspec.Raw(b"null"))


class ExtenderFilterResult(_Go, frozen=True, kw_only=True):
    """The result for reading. `nodes` (full objects) answers only a caller that sent full objects."""

    nodes: dict[str, object] | None = None
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] = field(default_factory=dict[str, str])
    failed_and_unresolvable_nodes: dict[str, str] = field(default_factory=dict[str, str])
    error: str = ""


class ExtenderFilterAnswer(_Go, frozen=True, kw_only=True):
    """The result for writing: long fields are JSON already, with reasons `in_words`."""

    nodes: dict[str, object] | None = None
    node_names: msgspec.Raw = field(default_factory=lambda: msgspec.Raw(b"null"))
    failed_nodes: msgspec.Raw = field(default_factory=lambda: msgspec.Raw(b"{}"))
    failed_and_unresolvable_nodes: msgspec.Raw = field(default_factory=lambda: msgspec.Raw(b"{}"))
    error: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "error", in_words(self.error))


class HostPriority(_Go, frozen=True, kw_only=True):
    """The score of a node, from 0 to 10."""

    host: str
    score: int


class ExtenderBindingArgs(_Go, frozen=True, kw_only=True):
    pod_name: str
    pod_namespace: str
    pod_uid: str
    node: str


class ExtenderBindingResult(_Go, frozen=True, kw_only=True):
    error: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "error", in_words(self.error))


class MetaPod(_Go, frozen=True, kw_only=True):
    uid: str = field(name="UID")


class MetaVictims(_Go, frozen=True, kw_only=True):
    pods: list[MetaPod] | None = None
    num_pdb_violations: int = field(default=0, name="NumPDBViolations")


class Victims(_Go, frozen=True, kw_only=True):
    pods: list[Pod] | None = None
    num_pdb_violations: int = field(default=0, name="NumPDBViolations")


class ExtenderPreemptionArgs(_Go, frozen=True, kw_only=True):
    pod: Pod
    node_name_to_victims: dict[str, Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None


class ExtenderPreemptionResult(_Go, frozen=True, kw_only=True):
    node_name_to_meta_victims: dict[str, MetaVictims] = field(default_factory=dict[str, MetaVictims])
