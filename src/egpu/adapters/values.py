"""The values of an installation: the chart's values.yaml, which `egpu manifests --values` reads as well.

The chart's schema is generated from these types. Empty values leave deploy/ as it is.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
import yaml

from egpu_base.errors import InvalidInput

Map = dict[str, Any]
_Directory = Annotated[str, msgspec.Meta(pattern=r"^(/[A-Za-z0-9._-]+)+$")]
_NodeAffinity = msgspec.Meta(extra_json_schema={"anyOf": [{"maxProperties": 0}, {"required": ["nodeAffinity"]}]})


class _Values(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class Secret(_Values, frozen=True, kw_only=True):
    """A Secret of the installation's namespace."""

    name: Annotated[str, msgspec.Meta(min_length=1)]


class Image(_Values, frozen=True, kw_only=True):
    """The image of all components. An empty tag is this version. `pull_secrets` are for all images' registries."""

    repository: Annotated[str, msgspec.Meta(min_length=1)] = "elastic-gpu"
    tag: str = ""
    pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = ""
    pull_secrets: tuple[Secret, ...] = ()


class Shim(_Values, frozen=True, kw_only=True):
    """The settings of a shim that it does not share with the agent. Labels, annotations and arguments are added to
    those of deploy/; resources replace them."""

    pod_labels: dict[str, str] = {}
    pod_annotations: dict[str, str] = {}
    extra_args: tuple[str, ...] = ()
    resources: Map = {}


class Component(Shim, frozen=True, kw_only=True):
    """The settings of one component's pods. Tolerations are added to those of deploy/; the others replace them."""

    tolerations: tuple[Map, ...] = ()
    affinity: Map = {}
    priority_class_name: str = ""


class Placed(Component, frozen=True, kw_only=True):
    """A component that chooses its nodes."""

    node_selector: dict[str, str] = {}


class Scheduler(_Values, frozen=True, kw_only=True):
    """Who places GPU pods: a kube-scheduler of our own with the extender beside it, or the cluster's existing one, that
    an administrator configures for the extender. `image` and `tag` are our kube-scheduler's: an empty tag is the
    cluster's version for Helm, and that of deploy/ otherwise. `others` are further schedulers that ask the extender.
    """

    mode: Literal["own", "existing"] = "own"
    image: Annotated[str, msgspec.Meta(min_length=1)] = "registry.k8s.io/kube-scheduler"
    tag: str = ""
    others: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...] = ()


class Extender(Placed, frozen=True, kw_only=True):
    """The extender's pods, in both modes. `remote`: existing kube-schedulers on several nodes ask it."""

    remote: bool = False


class Agent(Component, frozen=True, kw_only=True):
    """The agents. The shim beside each has the same nodes, tolerations, affinity, priority, runtime class and kubelet.
    Without a node selector or an affinity they run on nodes with NVIDIA's cards, as labels say. `kubelet_dir` is
    kubelet's --root-dir. NVIDIA's CDI specifications are read in both directories; ours go to the dynamic one."""

    affinity: Annotated[Map, _NodeAffinity] = {}
    node_selector: dict[str, str] = {}
    runtime_class: str = ""
    kubelet_dir: _Directory = "/var/lib/kubelet"
    cdi: Literal["auto", "always", "never"] = "auto"
    cdi_static_dir: _Directory = "/etc/cdi"
    cdi_dynamic_dir: _Directory = "/var/run/cdi"
    pool: bool = False


class Values(_Values, frozen=True, kw_only=True):
    """All values. `global_` belongs to Helm. `critical_pods_quota` is for GKE, `security_context_constraints` for
    OpenShift."""

    global_: Map = msgspec.field(name="global", default_factory=dict[str, Any])
    image: Image = Image()
    critical_pods_quota: bool = False
    security_context_constraints: bool = False
    vocabularies: tuple[Literal["hami", "nvidia-shared"], ...] = ()
    agent: Agent = Agent()
    shim: Shim = Shim()
    scheduler: Scheduler = Scheduler()
    extender: Extender = Extender()
    controller: Placed = Placed()
    webhook: Placed = Placed()
    dashboard: Placed = Placed()


AS_DEPLOYED: Final = Values()
"""The values that leave deploy/ as it is."""


REMOTE_OF_OWN: Final = (
    "extender.remote is for existing kube-schedulers, but scheduler.mode is own, whose kube-scheduler is beside the "
    "extender; use scheduler.mode existing, or leave extender.remote out"
)
NOT_OF_NODES: Final = (
    "agent.affinity has no nodeAffinity, so agents would run on every node; add it, or use agent.nodeSelector"
)
PULL_SECRETS: Final = "pull_secrets"
"""A setting of all components."""
_OF_THE_AGENT: Final = frozenset({"tolerations", "priority_class_name"})


def settings(component: str) -> tuple[str, ...]:
    """Return the names of a component's settings. The nodes of agents and shims are not among them."""
    if component in ("agent", "shim"):
        return (*(name for name in Component.__struct_fields__ if name != "affinity"), PULL_SECRETS)
    return (*Placed.__struct_fields__, PULL_SECRETS)


def owner(component: str, setting: str) -> str:
    """Return the component whose value holds: a shim shares some of the agent's, and our scheduler's pods are the
    extender's. All pull their images with the same Secrets."""
    if setting == PULL_SECRETS:
        return "image"
    if component == "scheduler":
        return "extender"
    return "agent" if component == "shim" and setting in _OF_THE_AGENT else component


def default(component: str, setting: str) -> Any:
    """Return the empty value of a setting."""
    return getattr(getattr(AS_DEPLOYED, owner(component, setting)), setting)


def of(values: Values, component: str) -> dict[str, Any]:
    """Return the settings of a component that are not empty."""
    found = {name: getattr(getattr(values, owner(component, name)), name) for name in settings(component)}
    return {name: value for name, value in found.items() if value}


def parse(text: str, *, what: str = "values") -> Values:
    """Return the values of a YAML text. Raises InvalidInput; `what` names the text in the message."""
    try:
        return _checked(msgspec.convert(yaml.safe_load(text) or {}, Values), what)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise InvalidInput(what, f"{error}. deploy/chart/values.yaml lists all values") from error


def _checked(values: Values, what: str) -> Values:
    if values.extender.remote and values.scheduler.mode == "own":
        raise InvalidInput(what, REMOTE_OF_OWN)
    if values.agent.affinity and "nodeAffinity" not in values.agent.affinity:
        raise InvalidInput(what, NOT_OF_NODES)
    return values
