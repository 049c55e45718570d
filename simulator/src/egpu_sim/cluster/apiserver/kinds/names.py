"""Names of objects, labels and annotations (RFC 1123 and Kubernetes' qualified names)."""

import re
import secrets

from egpu_sim.cluster.apiserver.status import Cause, invalid, required
from egpu_sim.cluster.trees import Json, as_list, as_object, metadata, objects_at

_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_NAME_PART = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: random suffixes spell no words

LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_QUALIFIED_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
ANNOTATIONS_LIMIT = 256 * 1024
"""The most bytes of all annotations of an object."""


def is_subdomain(text: str) -> bool:
    return len(text) <= 253 and bool(_SUBDOMAIN.match(text))


def label_problem_or_none(text: str) -> str | None:
    if len(text) > 63:
        return "must be no more than 63 characters"
    return None if _LABEL.match(text) else LABEL_RULE


def label_problem(field: str, text: str) -> list[Cause]:
    problem = label_problem_or_none(text)
    return [invalid(field, text, problem)] if problem else []


def qualified_name_problem(text: str) -> str | None:
    prefix, slash, name = text.rpartition("/")
    if slash and not prefix:
        return "prefix part must be non-empty"
    if slash and not is_subdomain(prefix):
        return f"prefix part {SUBDOMAIN_RULE}"
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 characters"
    return None if _NAME_PART.match(name) else f"name part {_QUALIFIED_RULE}"


def generated_name(base: str) -> str:
    """Return a name from `generateName`: the base, cut to fit, and five random characters."""
    return base[:58] + "".join(secrets.choice(_ALPHABET) for _ in range(5))


def validate_metadata(obj: Json, *, label_names: bool, free_names: bool = False) -> list[Cause]:
    """Return the errors in an object's metadata. `label_names`: names are labels (namespaces), not subdomains.
    `free_names`: names are any text without slashes."""
    meta = metadata(obj)
    name = meta.get("name")
    causes: list[Cause] = []
    if not isinstance(name, str) or not name:
        causes.append(required("metadata.name", "name or generateName is required"))
    elif free_names:
        if name in (".", "..") or "/" in name or "%" in name or len(name) > 253:
            causes.append(invalid("metadata.name", name, "may not be '.', '..' or contain '/' or '%'"))
    elif label_names:
        causes += label_problem("metadata.name", name)
    elif not is_subdomain(name):
        causes.append(invalid("metadata.name", name, SUBDOMAIN_RULE))
    causes += _validate_labels(as_object(meta.get("labels")))
    causes += _validate_annotations(as_object(meta.get("annotations")))
    for index, owner in enumerate(objects_at(meta, "ownerReferences")):
        causes += [
            required(f"metadata.ownerReferences[{index}].{key}", "must not be empty")
            for key in ("apiVersion", "kind", "name", "uid")
            if not owner.get(key)
        ]
    for finalizer in map(str, as_list(meta.get("finalizers"))):
        if (problem := qualified_name_problem(finalizer)) is not None:
            causes.append(invalid("metadata.finalizers", finalizer, problem))
    return causes


def _validate_labels(labels: Json) -> list[Cause]:
    causes: list[Cause] = []
    for key, value in labels.items():
        if (problem := qualified_name_problem(key)) is not None:
            causes.append(invalid("metadata.labels", key, problem))
        if value and (len(str(value)) > 63 or not _NAME_PART.match(str(value))):
            long = len(str(value)) > 63
            rule = "must be no more than 63 characters" if long else _LABEL_VALUE_RULE
            causes.append(invalid("metadata.labels", value, rule))
    return causes


def _validate_annotations(annotations: Json) -> list[Cause]:
    causes: list[Cause] = []
    for key in annotations:
        if (problem := qualified_name_problem(key.lower())) is not None:
            causes.append(invalid("metadata.annotations", key, problem))
    if sum(len(key) + len(str(value)) for key, value in annotations.items()) > ANNOTATIONS_LIMIT:
        causes.append(Cause("FieldValueTooLong", "metadata.annotations",
                            f"Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"))  # fmt: skip
    return causes
