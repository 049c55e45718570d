"""Get and list: selectors, pages, past revisions, and the forms of an answer."""

import base64
import binascii
from dataclasses import dataclass

import msgspec

from egpu_base.kubernetes.label_selectors import Predicate, label_selector
from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.http.negotiation import Form
from egpu_sim.cluster.apiserver.kinds.resources import Resource
from egpu_sim.cluster.apiserver.reading import table
from egpu_sim.cluster.apiserver.status import bad_request, expired, invalid, success, too_large_revision, unexplained
from egpu_sim.cluster.apiserver.storage import selectors
from egpu_sim.cluster.apiserver.storage.store import Key, Store, Stored, TooOld
from egpu_sim.cluster.trees import Json, as_object, decode, encode, labels_of, name_of


@dataclass(frozen=True)
class Selection:
    """The objects of a resource that a call selects."""

    namespace: str
    name: str
    labels: Predicate | None
    fields: selectors.FieldPredicate | None

    @staticmethod
    def of(call: Call) -> "Selection":
        """Return the selection of a call. Raises RequestRefused for an invalid selector."""
        try:
            labels = label_selector(call.query.get("labelSelector", ""))
            fields = selectors.field_selector(call.query.get("fieldSelector", ""), call.resource.fields)
        except ValueError as error:
            raise bad_request(str(error)) from error
        return Selection(call.namespace if call.resource.namespaced else "", call.name, labels, fields)

    @property
    def is_partial(self) -> bool:
        return self.labels is not None or self.fields is not None

    def has(self, item: Stored) -> bool:
        if self.namespace and item.key[0] != self.namespace:
            return False
        if self.name and item.key[1] != self.name:
            return False
        if self.labels is not None and not self.labels(labels_of(item.obj)):
            return False
        return self.fields is None or self.fields(item.obj)


def revision_of(call: Call) -> int | None:
    """Return the resourceVersion of a call; None without one. Raises RequestRefused."""
    text = call.query.get("resourceVersion", "")
    if not text:
        return None
    if not text.isdecimal():
        message = f'strconv.ParseUint: parsing "{text}": invalid syntax'
        raise unexplained(invalid("resourceVersion", text, message).sentence())
    return int(text)


def limit_of(call: Call) -> int:
    text = call.query.get("limit", "") or "0"
    if not text.isdecimal():
        raise bad_request(f"limit: {text!r} is not a number")
    return int(text)


def shown(call: Call, item: Stored, form: Form, *, header: bool = True) -> bytes:
    resource = call.resource
    if not form.kind:
        return resource.served_bytes(item)
    if form.kind == "Table":
        row = _row(call, resource, item, form)
        version: Json = {"resourceVersion": str(item.revision)}
        return encode(table.table(resource.columns, [row], form.version, version, header=header))
    return encode(table.partial(item.obj, form.version))


def _row(call: Call, resource: Resource, item: Stored, form: Form) -> Json:
    include = call.query.get("includeObject", "Metadata")
    row = table.row(resource.columns, item.obj, form.version, include)
    if include == "Object":
        row["object"] = resource.served(item)
    return row


def list_objects(call: Call, store: Store, form: Form) -> bytes:
    """Return a page of objects, in the form wanted. Raises RequestRefused."""
    selection = Selection.of(call)
    items, revision, after = _snapshot(call, store)
    limit = limit_of(call)
    chosen: list[Stored] = []
    last: Key | None = None
    remaining = 0
    for key in sorted(items):
        if (after is not None and key <= after) or not selection.has(items[key]):
            continue
        if limit and len(chosen) == limit:
            remaining += 1
            continue
        chosen.append(items[key])
        last = key
    meta: Json = {"resourceVersion": str(revision)}
    if remaining and last is not None:
        meta["continue"] = _token(revision, last)
        if not selection.is_partial:
            meta["remainingItemCount"] = remaining
    return _assemble(call, chosen, meta, form)


def _snapshot(call: Call, store: Store) -> tuple[dict[Key, Stored], int, Key | None]:
    """Return (objects, their revision, the key after which the page starts)."""
    shelf = store.shelf(call.resource.shelf)
    asked = revision_of(call)
    match = call.query.get("resourceVersionMatch", "")
    if match not in ("", "Exact", "NotOlderThan"):
        raise bad_request(f"resourceVersionMatch: {match!r} is neither Exact nor NotOlderThan")
    if match and asked is None:
        raise bad_request("resourceVersionMatch is forbidden unless resourceVersion is provided")
    token = call.query.get("continue", "")
    if token and (match or asked):
        raise bad_request("resourceVersion and resourceVersionMatch are forbidden when continue is provided")
    try:
        if token:
            revision, after = _read_token(token)
            return shelf.at(revision), revision, after
        if asked is not None and asked > store.revision:
            raise too_large_revision(asked, store.revision)
        if match == "Exact" and asked:
            return shelf.at(asked), asked, None
    except TooOld as error:
        hint = "the continue token is older than the changes kept: start a new list without it"
        raise expired(hint if token else str(error)) from error
    return shelf.items, store.revision, None


def _token(revision: int, last: Key) -> str:
    return base64.urlsafe_b64encode(encode([revision, *last])).decode()


def _read_token(token: str) -> tuple[int, Key]:
    try:
        revision, namespace, name = msgspec.convert(decode(base64.urlsafe_b64decode(token)), tuple[int, str, str])
    except (binascii.Error, msgspec.MsgspecError, ValueError) as error:
        raise bad_request("continue key is not valid") from error
    return revision, (namespace, name)


def _assemble(call: Call, chosen: list[Stored], meta: Json, form: Form) -> bytes:
    resource = call.resource
    if form.kind == "Table":
        rows = [_row(call, resource, item, form) for item in chosen]
        return encode(table.table(resource.columns, rows, form.version, meta))
    if form.kind:
        kind, api_version = "PartialObjectMetadataList", f"meta.k8s.io/{form.version}"
        parts = [encode(table.partial(item.obj, form.version)) for item in chosen]
    else:
        kind, api_version = resource.list_kind, resource.api_version
        parts = [resource.served_bytes(item) for item in chosen]
    head = encode({"kind": kind, "apiVersion": api_version, "metadata": meta})
    return b'%s,"items":[%s]}' % (head[:-1], b",".join(parts))


def deleted(call: Call, item: Stored, *, gone: bool) -> bytes:
    """Return the answer to a deletion: the object while it lingers (pods always), else a Status."""
    resource = call.resource
    if not gone or resource.shelf == "pods":
        return resource.served_bytes(item)
    uid = str(as_object(item.obj.get("metadata")).get("uid") or "")
    return encode(success(group=resource.group, kind=resource.plural, name=name_of(item.obj), uid=uid))


def collected(call: Call, items: list[Stored], revision: int) -> bytes:
    """Return the answer to deletecollection: the deleted objects."""
    return _assemble(call, items, {"resourceVersion": str(revision)}, Form())
