"""From an admission request to the core's decision, with what it must know of claims, classes and cards.

The caches may be a moment behind: `kubectl apply` of a class, a claim and a pod in one file asks about the claim before
the watch has shown the class. So whatever a pod or claim names and the caches lack is asked for once, directly.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import msgspec
import structlog

from egpu.adapters.kubernetes import Caches, Client
from egpu.api import names
from egpu.api.admission import AdmissionRequest, AdmissionResponse
from egpu.api.kubernetes import Binding, Pod
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass, Object
from egpu.apps.webhook.cards import KnownCards
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
from egpu.core.demand.claims import Claims, Classes
from egpu.core.gangs.membership import gang_terms
from egpu.errors import InvalidDemand, InvalidInput

T = TypeVar("T", bound=Object)

_BINDINGS = frozenset({("pods", "binding"), ("bindings", "")})
"""The two places where a Binding is posted; the second is the older one, and still served."""

log = structlog.get_logger(__name__)


class Admission:
    """The two decisions, `mutate` and `validate`. `schedulers`: users that may give out cards by a Binding;
    `vocabularies`: the optional ones that are turned on."""

    def __init__(self, client: Client, *, schedulers: Collection[str] = (), vocabularies: Collection[str] = ()) -> None:
        self._client = client
        self._schedulers = frozenset(schedulers)
        self.caches = Caches(client)
        self._claims = self.caches.add(ElasticGPUClaim)
        self._classes = self.caches.add(ElasticGPUClass)
        self._vocabularies = frozenset(vocabularies)
        self.cards = KnownCards()
        self.caches.add(ElasticGPU).on_change(self.cards.changed)

    async def mutate(self, asked: AdmissionRequest) -> AdmissionResponse:
        """Pods only; everything else passes unchanged."""
        if asked.resource.resource != "pods" or asked.sub_resource or asked.operation != "CREATE":
            return AdmissionResponse(uid=asked.uid, allowed=True)
        try:
            pod = _decode(asked.object, Pod)
            claims, classes, gang = await self._named_by(pod, asked.namespace)
            patch = mutate_pod(
                pod,
                claims,
                classes,
                largest_mib=self.cards.largest_mib,
                kinds=self.cards.kinds,
                gang=gang,
                vocabularies=self._vocabularies,
            )
        except InvalidInput as error:
            return refuse(asked, str(error))
        if not patch:
            return AdmissionResponse(uid=asked.uid, allowed=True)
        return AdmissionResponse(uid=asked.uid, allowed=True, patch=msgspec.json.encode(patch), patch_type="JSONPatch")

    async def validate(self, asked: AdmissionRequest) -> AdmissionResponse:
        """Pods, their Bindings and our own three kinds; everything else passes."""
        binding = (asked.resource.resource, asked.sub_resource) in _BINDINGS
        if (asked.sub_resource and not binding) or asked.operation not in ("CREATE", "UPDATE"):
            return AdmissionResponse(uid=asked.uid, allowed=True)
        try:
            found = await self._violations(asked)
        except InvalidInput as error:
            return refuse(asked, str(error))
        if found:
            return refuse(asked, "; ".join(map(str, found)))
        return AdmissionResponse(uid=asked.uid, allowed=True)

    async def _violations(self, asked: AdmissionRequest) -> list[Violation]:
        creating = asked.operation == "CREATE"
        match asked.resource.resource:
            case "pods" | "bindings" if (asked.resource.resource, asked.sub_resource) in _BINDINGS:
                return validate_binding(
                    _decode(asked.object, Binding),
                    username=asked.user_info.username,
                    groups=asked.user_info.groups or (),
                    trusted=self._schedulers,
                )
            case "pods" if creating:
                pod = _decode(asked.object, Pod)
                claims, classes, gang = await self._named_by(pod, asked.namespace)
                return validate_pod_create(
                    pod,
                    claims,
                    classes,
                    largest_mib=self.cards.largest_mib,
                    gang=gang,
                    vocabularies=self._vocabularies,
                )
            case "pods":
                return validate_pod_update(
                    _decode(asked.old_object, Pod),
                    _decode(asked.object, Pod),
                    username=asked.user_info.username,
                    trusted=self._schedulers,
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
            case "elasticgpus":
                gpu = _decode(asked.object, ElasticGPU)
                return validate_egpu(gpu, None if creating else _decode(asked.old_object, ElasticGPU))
            case _:
                return []

    async def _named_by(self, pod: Pod, namespace: str) -> tuple[Claims, Classes, Sequence[Pod]]:
        """The claims that the pod names (a name without a claim is absent), their classes, and its gang."""
        wanted = {name for key, name in pod.annotations.items() if key.startswith(names.CLAIM_PREFIXES)}
        claims = await self._known(
            ElasticGPUClaim, wanted, lambda name: self._claims.get(name, namespace), namespace=namespace
        )
        return claims, await self._classes_of(claims), await self._gang_of(pod, namespace)

    async def _gang_of(self, pod: Pod, namespace: str) -> Sequence[Pod]:
        """The pods of the gang that the pod names, if its name can be one: they must agree."""
        try:
            terms = gang_terms(pod)
        except InvalidDemand:
            return ()  # refused for that
        if terms is None:
            return ()
        return await self._client.list(Pod, namespace=namespace, labels=f"{names.GANG}={terms.name}")

    async def _classes_of(self, claims: Claims) -> Classes:
        """The classes of these claims, and those in the cache."""
        wanted = {claim.spec.class_name for claim in claims.values()}
        return await self._known(ElasticGPUClass, wanted, self._classes.get)

    async def _known(
        self, kind: type[T], wanted: set[str], cached: Callable[[str], T | None], *, namespace: str | None = None
    ) -> dict[str, T]:
        found: dict[str, T] = {}
        for name in sorted(wanted):
            # A name that is no object name cannot be asked for; it is not found, and refused by whoever asks.
            if not name or "/" in name:
                continue
            one = cached(name) or await self._client.find(kind, name, namespace=namespace)
            if one is not None:
                found[name] = one
        return found


def _decode(raw: msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidInput("object", f"not a readable {kind.__name__}: {error}") from error
