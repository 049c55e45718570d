"""Admission: the webhooks that a write is sent to, and the effect of their answers (admission.k8s.io/v1).

Known difference: `matchConditions` may use only the part of CEL that `egpu_base.cel.grammar` knows.
A configuration that uses more is refused.
"""

import asyncio
import base64
import binascii
import secrets
import uuid
from collections.abc import Callable
from typing import TypeAlias

import httpx2
import msgspec
import structlog

from egpu_base.cel import grammar as cel
from egpu_sim.cluster.apiserver.access.authorization import Authorizer
from egpu_sim.cluster.apiserver.admission import expressions, matching
from egpu_sim.cluster.apiserver.admission.policies import BINDINGS, POLICIES, Policies
from egpu_sim.cluster.apiserver.admission.webhook_client import Address, WebhookClient
from egpu_sim.cluster.apiserver.calls import Call, Write
from egpu_sim.cluster.apiserver.patching.json_patch import PatchFailed, json_patch
from egpu_sim.cluster.apiserver.status import internal, refused
from egpu_sim.cluster.apiserver.storage.store import Store
from egpu_sim.cluster.trees import Json, as_list, as_object, at, decode, encode, name_of, objects_at

log = structlog.get_logger(__name__)

MUTATING = "mutatingwebhookconfigurations"
VALIDATING = "validatingwebhookconfigurations"
_EXEMPT = frozenset({MUTATING, VALIDATING, POLICIES, BINDINGS})
ANSWER_LIMIT = 4 * 1024 * 1024
"""The most bytes of a webhook's answer."""

ServiceResolver: TypeAlias = Callable[[str, str, int], tuple[str, int] | None]
"""(namespace, name, port) of a Service → (host, port) to dial, or None for an unknown one."""


class _CallFailed(Exception):
    """The webhook did not answer, or its answer is no AdmissionReview."""


class Admission:
    """Calls the webhooks of the store's configurations."""

    def __init__(self, store: Store, authorizer: Authorizer, resolve_service: ServiceResolver | None = None) -> None:
        self._store = store
        self.authorizer = authorizer
        self._policies = Policies(store, authorizer)
        self._resolve_service = resolve_service
        self._client = WebhookClient()
        self._listed = {
            shelf: matching.Kept(store, (shelf,), lambda shelf=shelf: _webhooks(store, shelf))
            for shelf in (MUTATING, VALIDATING)
        }

    async def close(self) -> None:
        await self._client.close()

    def concerns(self, call: Call, operation: str) -> bool:
        """Return whether any webhook's rule names such writes. Without one, no copies are made for webhooks."""
        if call.resource.shelf in _EXEMPT:
            return False
        return self._policies.concern(call, operation) or any(
            scope.names(call, operation) for listed in self._listed.values() for _, scope in listed.now()
        )

    async def mutate(self, write: Write) -> Json:
        """Return the object as the mutating webhooks change it. Raises RequestRefused when one denies it."""
        obj = write.obj or {}
        hooks = self._hooks(MUTATING, write)
        changed_by: set[int] = set()
        for index, hook in enumerate(hooks):
            answered = await self._patched(hook, write, obj)
            if answered != obj:
                changed_by.add(index)
                obj = answered
        for index, hook in enumerate(hooks):
            if hook.get("reinvocationPolicy") == "IfNeeded" and any(other > index for other in changed_by):
                obj = await self._patched(hook, write, obj)
        return obj

    async def validate(self, write: Write) -> None:
        """Ask the policies, and all validating webhooks at once. Raises RequestRefused for the first that denies."""
        self._policies.validate(write, reviewed(write, write.obj))
        hooks = self._hooks(VALIDATING, write)
        if hooks:
            await asyncio.gather(*(self._ask(hook, write, write.obj) for hook in hooks))

    async def _patched(self, hook: Json, write: Write, obj: Json) -> Json:
        response = await self._ask(hook, write, None if write.operation == "DELETE" else obj)
        text = response.get("patch")
        if not text:
            return obj
        name, kind = hook.get("name"), response.get("patchType")
        if kind != "JSONPatch":
            raise internal(f'admission webhook "{name}" answered a patch of type {kind!r}, which is not JSONPatch')
        try:
            patched = json_patch(obj, decode(base64.b64decode(str(text), validate=True)))
        except (PatchFailed, binascii.Error, msgspec.DecodeError) as error:
            raise internal(f'the patch of admission webhook "{name}" does not apply: {error}') from error
        return as_object(patched)

    async def _ask(self, hook: Json, write: Write, obj: Json | None) -> Json:
        """Return the response of one webhook that allows; an empty one for a failure that may be ignored."""
        name = str(hook.get("name"))
        request = reviewed(write, obj)
        if not self._conditions_hold(hook, write, request):
            return {"allowed": True}
        review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
        try:
            async with asyncio.timeout(float(hook.get("timeoutSeconds") or 10)):
                response = await self._post(hook, review)
        except (_CallFailed, TimeoutError, httpx2.HTTPError, OSError, ValueError) as error:
            if hook.get("failurePolicy") == "Ignore":
                log.warning("webhook.ignored", webhook=name, error=repr(error))
                return {}
            reason = str(error) or type(error).__name__
            raise internal(f'failed calling webhook "{name}": failed to call webhook: {reason}') from error
        for warning in as_list(response.get("warnings")):
            write.call.warnings.append(str(warning))
        if response.get("allowed") is not True:
            answer = as_object(response.get("status"))
            message = str(answer.get("message") or answer.get("reason") or "without explanation")
            code = answer.get("code")
            raise refused(
                code if isinstance(code, int) and 400 <= code < 600 else 403,
                str(answer.get("reason") or "Forbidden"),
                f'admission webhook "{name}" denied the request: {message}',
                details=as_object(answer.get("details")) or None,
            )
        return response

    async def _post(self, hook: Json, review: Json) -> Json:
        answer = await self._client.post(self._address(as_object(hook.get("clientConfig"))), encode(review))
        if answer.status != 200:
            raise _CallFailed(f"the server answered {answer.status}")
        if len(answer.content) > ANSWER_LIMIT:
            raise _CallFailed(f"the answer is longer than {ANSWER_LIMIT} bytes")
        try:
            response = as_object(as_object(decode(answer.content)).get("response"))
        except msgspec.DecodeError as error:
            raise _CallFailed(f"the answer is not JSON: {error}") from error
        if response.get("uid") != at(review, "request", "uid"):
            raise _CallFailed("the answer is not an AdmissionReview with the request's uid")
        return response

    def _address(self, client: Json) -> Address:
        authority = str(client.get("caBundle") or "")
        if "url" in client:
            return Address(str(client["url"]), "", authority)
        service = as_object(client.get("service"))
        name, namespace = str(service.get("name")), str(service.get("namespace"))
        port = service.get("port")
        found = (
            self._resolve_service(namespace, name, port if isinstance(port, int) else 443)
            if self._resolve_service
            else None
        )
        if found is None:
            raise _CallFailed(f'service "{namespace}/{name}" not found: the cluster has no address for it')
        path = str(service.get("path") or "").lstrip("/")
        return Address(f"https://{found[0]}:{found[1]}/{path}", f"{name}.{namespace}.svc", authority)

    def _conditions_hold(self, hook: Json, write: Write, request: Json) -> bool:
        """Return whether every condition is true. The failure policy decides about one that cannot be evaluated."""
        scope = expressions.scope(write, request, self.authorizer)
        try:
            return expressions.all_hold(objects_at(hook, "matchConditions"), scope)
        except cel.EvaluationError as failed:
            if hook.get("failurePolicy") == "Ignore":
                return False
            name = hook.get("name")
            raise internal(f'match conditions of webhook "{name}" cannot be evaluated: {failed}') from failed

    def _hooks(self, shelf: str, write: Write) -> list[Json]:
        return [hook for hook, scope in self._listed[shelf].now() if scope.has(write, self._store)]


def _webhooks(store: Store, shelf: str) -> list[tuple[Json, matching.Scope]]:
    """Return the webhooks of all configurations, sorted by name."""
    configurations = sorted(store.shelf(shelf).items.items())
    hooks = [hook for _, item in configurations for hook in objects_at(item.obj, "webhooks")]
    return [(hook, matching.Scope(hook)) for hook in hooks]


def reviewed(write: Write, obj: Json | None) -> Json:
    call = write.call
    resource = call.resource
    kind: Json = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    if (sub := resource.subresource(call.subresource)) is not None and sub.kind != resource.kind:
        kind = {"group": sub.group or resource.group, "version": sub.version or resource.version, "kind": sub.kind}
    where = {"group": resource.group, "version": resource.version, "resource": resource.plural}
    request: Json = {
        "uid": str(uuid.UUID(bytes=secrets.token_bytes(16), version=4)),
        "kind": kind,
        "resource": where,
        "requestKind": kind,
        "requestResource": where,
        "name": call.name or name_of(obj or {}),
        "namespace": call.namespace,
        "operation": write.operation,
        "userInfo": call.user.info(),
        "object": obj,
        "oldObject": write.old,
        "dryRun": call.dry_run,
        "options": write.options,
    }
    if call.subresource:
        request["subResource"] = request["requestSubResource"] = call.subresource
    return request
