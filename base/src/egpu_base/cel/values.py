"""Evaluation of CEL: each function makes one operand, and `cel` combines them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias, cast

MAX_SUM: Final = 100_000
"""Characters or items of a sum. With `cel.bind`, a short text could double one many times."""
MAX_BOUNDED_SUM: Final = 1000
"""The same where tenants write the text: functions of it take their time, too."""
Scope: TypeAlias = Mapping[str, Any]
Expression: TypeAlias = Callable[[Scope], Any]


class EvaluationError(Exception):
    """The expression reads a value that does not exist."""


@dataclass(frozen=True)
class Question:
    """The value of `authorizer`: a question about the user's rights, built call by call and asked by `allowed()`."""

    ask: Callable[[Mapping[str, str]], bool]
    """Authorizes `group`, `resource`, `subresource` and the verb to `check`."""
    parts: Mapping[str, str] = field(default_factory=dict[str, str])


def either(condition: Expression, then: Expression, otherwise: Expression) -> Expression:
    return lambda scope: (then if truth(condition(scope)) else otherwise)(scope)


def added(left: Expression, right: Expression, *, most: int = MAX_SUM) -> Expression:
    """Evaluate `+`, up to so many characters or items."""

    def add(scope: Scope) -> Any:
        first, second = left(scope), right(scope)
        if type(first) is type(second) and type(first) in (str, list):
            if len(first) + len(second) > most:
                raise EvaluationError(f"a sum has more than {most} parts")
            return first + second
        raise EvaluationError(f"{first!r} and {second!r} cannot be added")

    return add


def flat(items: list[Expression]) -> Expression:
    """Evaluate a list without lists in it: a short text could make one that takes for ever to compare."""

    def make(scope: Scope) -> list[Any]:
        made = [item(scope) for item in items]
        if any(isinstance(one, list) for one in made):
            raise EvaluationError("a list in a list is not supported here")
        return made

    return make


def among(left: Expression, right: Expression) -> Expression:
    """Evaluate `in`."""

    def is_among(scope: Scope) -> bool:
        wanted, there = left(scope), many(right(scope))
        if isinstance(there, dict) and not isinstance(wanted, str):
            raise EvaluationError(f"no such overload: {wanted!r} is no key")
        return wanted in there

    return is_among


def more(question: Any, part: str, value: str) -> Question:
    if not isinstance(question, Question):
        raise EvaluationError(f"no such function: {part}")
    return replace(question, parts={**question.parts, part: value})


def asked(question: Any) -> bool:
    if not isinstance(question, Question):
        raise EvaluationError("no such function: allowed")
    return question.ask(question.parts)


def decided(sides: list[Expression], *, by: bool) -> Expression:
    """Evaluate `||` (decided by true) or `&&` (by false)."""
    if len(sides) == 1:
        return sides[0]

    return lambda scope: _decide((partial(side, scope) for side in sides), by=by)


def each(owner: Expression, variable: str, test: Expression, *, by: bool) -> Expression:
    """Evaluate `exists` (decided by true) or `all` (by false) over the items of a list or the keys of a map."""

    def tests(scope: Scope) -> Iterator[Callable[[], Any]]:
        inner = dict(scope)  # one for all of them: each is evaluated before the next
        for item in many(owner(scope)):
            inner[variable] = item
            yield partial(test, inner)

    return lambda scope: _decide(tests(scope), by=by)


def _decide(operands: Iterable[Callable[[], Any]], *, by: bool) -> bool:
    """Evaluate operands until one is `by`. If none is, raise the first error, else return the opposite."""
    failed: EvaluationError | None = None
    for operand in operands:
        try:
            if truth(operand()) is by:
                return by
        except EvaluationError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return not by


def constant(value: Any) -> Expression:
    return lambda _: value


def member(owner: Expression, name: str) -> Expression:
    def read(scope: Scope) -> Any:
        tree = mapping(owner(scope), name)
        if name not in tree:
            raise EvaluationError(f"no such key: {name}")
        return tree[name]

    return read


def item(owner: Expression, key: Expression) -> Expression:
    def read(scope: Scope) -> Any:
        try:
            return owner(scope)[key(scope)]
        except (LookupError, TypeError) as error:
            raise EvaluationError(f"no such key: {key(scope)!r}") from error

    return read


def mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise EvaluationError(f"no such key: {name}")
    return cast("Mapping[str, Any]", value)


def many(value: Any) -> Any:
    if not isinstance(value, dict | list):
        raise EvaluationError(f"{value!r} is neither a list nor a map")
    return cast("Any", value)


def same(value: Any) -> Any:
    """Evaluate `dyn()`: the value without a type, of which there are none here."""
    return value


def size(value: Any) -> int:
    return len(value if isinstance(value, str) else many(value))


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise EvaluationError(f"{value!r} is not a string")
    return value


def truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise EvaluationError(f"{value!r} is neither true nor false")
    return value
