"""Passes an admission request to the core's decision, with the claims, classes and cards that it needs.

The caches may be a moment behind: after `kubectl apply` of a class, a claim and a pod in one file, the claim's request
comes before the watch has shown the class. So claims and classes that the caches lack are requested once from the API
server."""

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import msgspec
import structlog

from egpu.api import names
from egpu.api.admission import AdmissionRequest, AdmissionResponse, JSONPatch
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.apps.webhook.cards import KnownCards
from egpu.apps.webhook.neighbours import Joined, Neighbours
from egpu.apps.webhook.server import refuse
from egpu.core.admission import (
    Violation,
    mutate_pod,
    validate_binding,
    validate_claim,
    validate_class,
    validate_egpu,
    validate_pod_create,
    validate_pod_update,
)
from egpu.core.contexts import warning
from egpu.core.demand.claims import Claims, Classes, claim_demand
from egpu.core.demand.pods import claims_by_container, container_field, read_pod
from egpu.core.demand.templates import own_claims, with_named_claims
from egpu.core.dra.configuration import problems
from egpu.core.dra.marking import mark_new
from egpu.core.gangs.membership import gang_terms
from egpu.core.kept_claims import kept_gpu_claim
from egpu.core.kept_pods import kept, kept_of_large
from egpu.core.mounts import MountingPod, covering_mounts
from egpu.core.neighbours.reading import with_annotations
from egpu.core.placement.published import kept_gpu
from egpu.core.provisioners import provisioner
from egpu.core.schedulers import ANY, Schedulers
from egpu_base.api.devices import (
    ClaimConfiguration,
    ClassConfiguration,
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
)
from egpu_base.api.kubernetes import Binding, Pod
from egpu_base.api.objects import Object, is_object_name
from egpu_base.api.wire import Wire
from egpu_base.errors import InvalidDemand, InvalidInput
from egpu_base.kubernetes import Caches, Client

T = TypeVar("T", bound=Object)
Decoded = TypeVar("Decoded", bound=Wire)

_BINDINGS = frozenset({("pods", "binding"), ("bindings", "")})
"""The two resources for Bindings; the second is the older one, and still served."""

log = structlog.get_logger(__name__)


class Admission:
    """The decisions `mutate` and `validate`. `users`: those whose Bindings may allocate cards; `vocabularies`: the
    enabled optional ones; `schedulers`: those that may place GPU pods."""

    def __init__(
        self,
        client: Client,
        *,
        users: Collection[str] = (),
        vocabularies: Collection[str] = (),
        schedulers: Schedulers = ANY,
    ) -> None:
        self._client = client
        self._neighbours = Neighbours(client)
        self._users = frozenset(users)
        self._schedulers = schedulers
        self.caches = Caches(client)
        self._claims = self.caches.add(ElasticGPUClaim, transform=kept_gpu_claim)
        self._classes = self.caches.add(ElasticGPUClass)
        self._vocabularies = frozenset(vocabularies)
        self.cards = KnownCards()
        self.caches.add(ElasticGPU, transform=kept_gpu).on_change(self.cards.changed)

    async def mutate(self, asked: AdmissionRequest) -> AdmissionResponse:
        """Mutate pods and ResourceClaims; everything else passes unchanged."""
        if asked.resource.resource == "resourceclaims" and not asked.sub_resource and asked.operation == "CREATE":
            return self._mark(asked)
        if asked.resource.resource != "pods" or asked.sub_resource or asked.operation != "CREATE":
            return AdmissionResponse(uid=asked.uid, allowed=True)
        try:
            pod = _decode(asked.object, Pod)
            named = with_named_claims(pod, asked.uid)
            claims, classes = await self._named_by(named, asked.namespace)
            joined = await self._join(named, claims, classes, asked.namespace)
            gang = await self._gang_of(with_annotations(pod, joined.annotations), asked.namespace)
            patch = mutate_pod(
                pod,
                claims,
                classes,
                largest_mib=self.cards.largest_mib,
                kinds=self.cards.kinds,
                gang=gang,
                vocabularies=self._vocabularies,
                schedulers=self._schedulers,
                token=asked.uid,
                joined=joined.annotations,
            )
        except InvalidInput as error:
            return refuse(asked, str(error))
        told = [joined.warning] if joined.warning else None
        return _patched(asked, patch, told)

    def _mark(self, asked: AdmissionRequest) -> AdmissionResponse:
        """Mark a new ResourceClaim of our classes. It costs the extender a write, no more, if a class is not in the
        cache yet, or if the claim cannot be read: claims of other drivers come, too."""
        with contextlib.suppress(InvalidInput):
            return _patched(asked, mark_new(_decode(asked.object, ResourceClaim), self._classes.get))
        return AdmissionResponse(uid=asked.uid, allowed=True)

    async def validate(self, asked: AdmissionRequest) -> AdmissionResponse:
        """Validate pods, their Bindings, our own three kinds, and configuration for our DRA driver; everything else
        passes."""
        binding = (asked.resource.resource, asked.sub_resource) in _BINDINGS
        if (asked.sub_resource and not binding) or asked.operation not in ("CREATE", "UPDATE"):
            return AdmissionResponse(uid=asked.uid, allowed=True)
        try:
            found = await self._violations(asked)
        except InvalidInput as error:
            return refuse(asked, str(error))
        if found:
            return refuse(asked, "; ".join(map(str, found)))
        return AdmissionResponse(uid=asked.uid, allowed=True, warnings=await self._warnings(asked) or None)

    async def _warnings(self, asked: AdmissionRequest) -> list[str]:
        """Return what the author of a valid object should know: an amount without room for a context, and what programs
        of a class can do to each other."""
        match asked.resource.resource:
            case "pods" if asked.operation == "CREATE" and not asked.sub_resource:
                pod = _decode(asked.object, Pod)
                demand, _ = read_pod(pod, {}, {}, vocabularies=self._vocabularies)
                asks = {container_field(pod, name): one for name, one in demand.containers.items()}
            case "elasticgpuclaims":
                claim = _decode(asked.object, ElasticGPUClaim)
                if asked.operation == "UPDATE" and _decode(asked.old_object, ElasticGPUClaim).spec == claim.spec:
                    return []  # its class may be gone
                classes = await self._classes_of({claim.name: claim})
                asks = {"spec.resources": claim_demand(claim, classes[claim.spec.class_name])}
            case "elasticgpuclasses" if asked.operation == "CREATE":
                caution = provisioner(_decode(asked.object, ElasticGPUClass).provisioner).caution
                return [caution] if caution else []
            case _:
                return []
        told = {field: warning(one.memory_mib, self.cards.models) for field, one in asks.items() if not one.exclusive}
        return [f"{field}: {text}" for field, text in told.items() if text]

    async def _violations(self, asked: AdmissionRequest) -> list[Violation]:
        creating = asked.operation == "CREATE"
        match asked.resource.resource:
            case "pods" | "bindings" if (asked.resource.resource, asked.sub_resource) in _BINDINGS:
                return validate_binding(
                    _decode(asked.object, Binding),
                    username=asked.user_info.username,
                    groups=asked.user_info.groups or (),
                    trusted=self._users,
                )
            case "pods" if creating:
                pod = _decode(asked.object, Pod)
                claims, classes = await self._named_by(pod, asked.namespace)
                gang = await self._gang_of(pod, asked.namespace)
                found = validate_pod_create(
                    pod,
                    claims,
                    classes,
                    largest_mib=self.cards.largest_mib,
                    gang=gang,
                    vocabularies=self._vocabularies,
                    schedulers=self._schedulers,
                )
                return found + [Violation(*one) for one in covering_mounts(_decode(asked.object, MountingPod))]
            case "pods":
                return validate_pod_update(
                    _decode(asked.old_object, Pod),
                    _decode(asked.object, Pod),
                    username=asked.user_info.username,
                    trusted=self._users,
                )
            case "elasticgpuclaims":
                claim = _decode(asked.object, ElasticGPUClaim)
                old = None if creating else _decode(asked.old_object, ElasticGPUClaim)
                classes = await self._classes_of({claim.name: claim})
                largest = self.cards.largest_mib
                return validate_claim(claim, old, classes, largest_mib=largest, vocabularies=self._vocabularies)
            case "elasticgpuclasses":
                one = _decode(asked.object, ElasticGPUClass)
                return validate_class(one, None if creating else _decode(asked.old_object, ElasticGPUClass))
            case "resourceclaims" if creating:
                return _configured(_decode(asked.object, ResourceClaim).spec.devices.config, "spec.devices.config")
            case "resourceclaimtemplates" if creating:
                template = _decode(asked.object, ResourceClaimTemplate).spec
                return _configured(template.spec.devices.config, "spec.spec.devices.config")
            case "deviceclasses":
                config = _decode(asked.object, DeviceClass).spec.config
                if not creating and _decode(asked.old_object, DeviceClass).spec.config == config:
                    return []  # an older one must stay deletable
                return _configured(config, "spec.config")
            case "elasticgpus":
                gpu = _decode(asked.object, ElasticGPU)
                return validate_egpu(gpu, None if creating else _decode(asked.old_object, ElasticGPU))
            case _:
                return []

    async def _named_by(self, pod: Pod, namespace: str) -> tuple[Claims, Classes]:
        """Return the claims that the pod names (without missing ones, but with those to be made for it), and their
        classes. A pod that is refused for what it names costs the API server no questions."""
        wanted: set[str] = set()
        with contextlib.suppress(InvalidDemand):
            if len(pod.all_containers) <= names.MAX_CONTAINERS:
                wanted = set(claims_by_container(pod).values())
        claims = await self._known(
            ElasticGPUClaim, wanted, lambda name: self._claims.get(name, namespace), namespace=namespace
        )
        with contextlib.suppress(InvalidDemand):  # the pod is refused for that
            claims = {claim.name: claim for claim in own_claims(pod)} | claims
        return claims, await self._classes_of(claims)

    async def _join(self, pod: Pod, claims: Claims, classes: Classes, namespace: str) -> Joined:
        """Return the gang of the pod's group. Pods without a GPU belong to no gang, and their objects are not read."""
        demand, _ = read_pod(pod, claims, classes, vocabularies=self._vocabularies)
        return await self._neighbours.join(pod, namespace) if demand.containers else Joined()

    async def _gang_of(self, pod: Pod, namespace: str) -> Sequence[Pod]:
        """Return the pods of the gang that the pod names, if the name is valid: they must agree. The size of an open
        gang may change, so its pods are not listed."""
        try:
            terms = gang_terms(pod)
        except InvalidDemand:
            return ()  # the pod is refused for that
        if terms is None or terms.open:
            return ()
        selected = f"{names.GANG}={terms.name}"
        return await self._client.list(Pod, namespace=namespace, labels=selected, transform=kept, large=kept_of_large)

    async def _classes_of(self, claims: Claims) -> Classes:
        """Return the classes of these claims; all classes if one is missing, so that the refusal can list them."""
        wanted = {claim.spec.class_name for claim in claims.values()}
        found = await self._known(ElasticGPUClass, wanted, self._classes.get)
        if found.keys() >= wanted:
            return found
        return {one.name: one for one in await self._client.list(ElasticGPUClass)} | found

    async def _known(
        self, kind: type[T], wanted: set[str], cached: Callable[[str], T | None], *, namespace: str | None = None
    ) -> dict[str, T]:
        found: dict[str, T] = {}
        for name in sorted(wanted):
            # An invalid object name cannot be requested; it counts as missing, and the caller refuses it.
            if not is_object_name(name):
                continue
            one = cached(name) or await self._client.find(kind, name, namespace=namespace)
            if one is not None:
                found[name] = one
        return found


def _patched(asked: AdmissionRequest, patch: JSONPatch, warnings: list[str] | None = None) -> AdmissionResponse:
    if not patch:
        return AdmissionResponse(uid=asked.uid, allowed=True, warnings=warnings)
    content = msgspec.json.encode(patch)
    return AdmissionResponse(uid=asked.uid, allowed=True, patch=content, patch_type="JSONPatch", warnings=warnings)


def _configured(
    config: Sequence[ClaimConfiguration] | Sequence[ClassConfiguration] | None, field: str
) -> list[Violation]:
    """Return the problems of a configuration for our DRA driver."""
    return [Violation(*one) for one in problems(config or (), field=field)]


def _decode(raw: msgspec.Raw, kind: type[Decoded]) -> Decoded:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidInput("object", f"not a valid {kind.__name__}: {error}") from error
