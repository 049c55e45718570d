"""The part of CEL that conditions of webhooks, admission policies and selectors of devices are usually written in,
evaluated on plain JSON.

    any   = or [ "?" or ":" any ]       value = string | number | true | false | null | [any, …] | name | (any)
    or    = and { "||" and }            step  = .field | [any] | .exists(v, any) | .all(v, any)
    and   = not { "&&" not }                  | .group(any) | .resource(any) | .check(any) | .allowed()
    not   = [ "!" ] compared                  | one of `types.METHODS` and `METHODS_OF_TWO`
    compared = sum [ relation sum ]           relation = == | != | in | < | <= | > | >=
    sum   = path { "+" path }                 path = has(path.field) | size(any) | quantity(any) | semver(any)
                                                     | cel.bind(v, any, any) | dyn(any) | value { step }

Anything else is refused, by name, when the configuration or policy is written. As in CEL, a missing field is an error,
and `||` and `&&` ignore an error on one side when the other side decides. The variables are `object`, `oldObject`,
`request` and `authorizer`, of which one asks what the user may do, in policies `namespaceObject` and `variables`, and
in selectors `device` alone.

Why not a library: cel-python and common-expression-language find an unknown function only when a pod is created, and
bring 8 MiB and more to an image that has 3 to spare. cel-expr-python, which finds it in time, brings 50 MB of C++ for
this one page of grammar. A test compares it with cel-python.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from egpu_base.cel import types, values
from egpu_base.cel.values import EvaluationError, Expression, Question, Scope

__all__ = [
    "DEVICE_VARIABLES",
    "POLICY_VARIABLES",
    "VARIABLES",
    "EvaluationError",
    "Expression",
    "NotUnderstood",
    "Question",
    "Scope",
    "Token",
    "compiled",
    "compiled_value",
    "tokens",
]

VARIABLES: Final = ("object", "oldObject", "request", "authorizer")
POLICY_VARIABLES: Final = (*VARIABLES, "namespaceObject", "variables")
DEVICE_VARIABLES: Final = ("device",)
MAX_CHARACTERS: Final = 5120
"""Kubernetes' own limit of an expression's text."""
MAX_DEVICE_CHARACTERS: Final = 10 * 1024
"""The same for a selector of devices."""
MAX_DEPTH: Final = 32


_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
    | (?P<string>"(?:[^"\\]|\\.)*"|'[^'\\]*')
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<operator>\|\||&&|==|!=|<=|>=|[!().,\[\]?:+<>])""",
    re.VERBOSE,
)
_WORDS: Final = {"true": True, "false": False, "null": None}


class NotUnderstood(Exception):
    """An expression that this server cannot evaluate; the message names the part."""


@lru_cache(maxsize=128)
def compiled_value(text: str, variables: tuple[str, ...] = VARIABLES, *, bounded: bool = False) -> Expression:
    """Compile an expression to a function of its variables, which raises EvaluationError. Raises NotUnderstood.

    `bounded`: refuse what takes longer than its text lets expect: loops, long sums, lists of lists, hard patterns.
    """
    limit = MAX_DEVICE_CHARACTERS if variables == DEVICE_VARIABLES else MAX_CHARACTERS
    if len(text) > limit:
        raise NotUnderstood(f"longer than {limit} characters")
    return _Parser(tokens(text), variables, bounded=bounded).whole()


@lru_cache(maxsize=128)
def compiled(text: str, variables: tuple[str, ...] = VARIABLES, *, bounded: bool = False) -> Callable[[Scope], bool]:
    """Compile a condition, which is true or false. Raises NotUnderstood, as `compiled_value`."""
    expression = compiled_value(text, variables, bounded=bounded)

    def holds(scope: Scope) -> bool:
        answer = expression(scope)
        if not isinstance(answer, bool):
            raise EvaluationError(f"the result is {answer!r}, neither true nor false")
        return answer

    return holds


@dataclass(frozen=True)
class Token:
    """A word of an expression. `kind`: string, number, name, operator or end."""

    kind: str
    text: str


def tokens(text: str) -> list[Token]:
    """Return the words of an expression, with one of the kind "end" at last. Raises NotUnderstood."""
    return list(_tokens(text))


def _tokens(text: str) -> Iterator[Token]:
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise NotUnderstood(f"{text[position]!r} at character {position + 1} is not supported")
        position = found.end()
        if found.lastgroup != "space":
            yield Token(str(found.lastgroup), found.group())
    yield Token("end", "the end")


class _Parser:
    """A recursive descent parser with one method for each rule of the grammar above."""

    def __init__(self, tokens: list[Token], variables: tuple[str, ...], *, bounded: bool) -> None:
        self._bounded = bounded
        self._tokens = tokens
        self._position = 0
        self._depth = 0
        self._matches = 0
        self._variables = variables
        self._names: list[str] = [*variables]

    def whole(self) -> Expression:
        expression = self._any()
        if self._next.kind != "end":
            raise NotUnderstood(f"{self._next.text!r} is not supported here")
        return expression

    @property
    def _next(self) -> Token:
        return self._tokens[self._position]

    def _take(self) -> Token:
        token = self._next
        self._position += 1
        return token

    def _accept(self, text: str) -> bool:
        if self._next.kind in ("operator", "name") and self._next.text == text:
            self._position += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise NotUnderstood(f"{self._next.text!r} where {text!r} was expected")

    def _name(self) -> str:
        token = self._take()
        if token.kind != "name":
            raise NotUnderstood(f"{token.text!r} where a name was expected")
        return token.text

    def _any(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotUnderstood(f"nested deeper than {MAX_DEPTH}")
        condition = self._or()
        if self._accept("?"):
            then = self._or()
            self._expect(":")
            condition = values.either(condition, then, self._any())
        self._depth -= 1
        return condition

    def _or(self) -> Expression:
        sides = [self._and()]
        while self._accept("||"):
            sides.append(self._and())
        return values.decided(sides, by=True)

    def _and(self) -> Expression:
        sides = [self._not()]
        while self._accept("&&"):
            sides.append(self._not())
        return values.decided(sides, by=False)

    def _not(self) -> Expression:
        if self._accept("!"):
            inner = self._compared()
            return lambda scope: not values.truth(inner(scope))
        return self._compared()

    def _compared(self) -> Expression:
        left = self._sum()
        if self._accept("=="):
            right = self._sum()
            return lambda scope: left(scope) == right(scope)
        if self._accept("!="):
            right = self._sum()
            return lambda scope: left(scope) != right(scope)
        if self._accept("in"):
            right = self._sum()
            return values.among(left, right)
        for sign, holds in types.COMPARISONS.items():
            if self._accept(sign):
                right = self._sum()
                return lambda scope: holds(left(scope), right(scope))
        return left

    def _sum(self) -> Expression:
        total = self._path()
        while self._accept("+"):
            most = values.MAX_BOUNDED_SUM if self._bounded else values.MAX_SUM
            total = values.added(total, self._path(), most=most)
        return total

    def _path(self) -> Expression:
        value = self._value()
        while True:
            if self._accept("."):
                name = self._name()
                value = self._call(value, name) if self._accept("(") else values.member(value, name)
            elif self._accept("["):
                key = self._any()
                self._expect("]")
                value = values.item(value, key)
            else:
                return value

    def _value(self) -> Expression:
        token = self._take()
        if token.kind == "string":
            return values.constant(_unquoted(token.text))
        if token.kind == "number":
            return values.constant(float(token.text) if "." in token.text else int(token.text))
        if token.text == "(":
            inner = self._any()
            self._expect(")")
            return inner
        if token.text == "[":
            return self._list()
        if token.kind != "name":
            raise NotUnderstood(f"{token.text!r} where a value was expected")
        if token.text in _WORDS:
            return values.constant(_WORDS[token.text])
        if self._accept("("):
            return self._function(token.text)
        if token.text == "cel" and self._accept("."):
            return self._bound()
        if token.text not in self._names:
            raise NotUnderstood(f"the variable {token.text!r} is not supported; known are {', '.join(self._variables)}")
        name = token.text
        return lambda scope: scope[name]

    def _list(self) -> Expression:
        items: list[Expression] = []
        while not self._accept("]"):
            items.append(self._any())
            if not self._accept(","):
                self._expect("]")
                break
        return values.flat(items) if self._bounded else lambda scope: [item(scope) for item in items]

    def _function(self, name: str) -> Expression:
        if name == "has":
            return self._has()
        known = {"size": values.size, "dyn": values.same, **types.FUNCTIONS}
        if name not in known:
            raise NotUnderstood(f"the function {name}() is not supported")
        inner = self._any()
        self._expect(")")
        return lambda scope: known[name](inner(scope))

    def _bound(self) -> Expression:
        """Parse the rest of `cel.bind(v, value, any)`: the last part, with v for the value."""
        self._expect("bind")
        self._expect("(")
        variable = self._name()
        self._expect(",")
        value = self._any()
        self._expect(",")
        self._names.append(variable)
        inner = self._any()
        self._names.pop()
        self._expect(")")
        return lambda scope: inner({**scope, variable: value(scope)})

    def _has(self) -> Expression:
        """Parse `has(a.b.c)`: whether c exists; a.b must exist."""
        value, name = self._value(), ""
        while not name or self._next.text != ")":
            if name:
                value, name = values.member(value, name), ""
            if self._accept("["):
                key = self._any()
                self._expect("]")
                value = values.item(value, key)
            else:
                self._expect(".")
                name = self._name()
        self._expect(")")
        owner, field = value, name
        return lambda scope: field in values.mapping(owner(scope), field)

    def _call(self, owner: Expression, name: str) -> Expression:
        if name in ("exists", "all") and not self._bounded:
            variable = self._name()
            self._expect(",")
            self._names.append(variable)
            test = self._any()
            self._names.pop()
            self._expect(")")
            return values.each(owner, variable, test, by=name == "exists")
        if name in ("group", "resource", "subresource", "check", "allowed"):
            return self._question(owner, name)
        if name in types.METHODS:
            of_one = types.METHODS[name]
            self._expect(")")
            return lambda scope: of_one(owner(scope))
        if name not in types.METHODS_OF_TWO:
            raise NotUnderstood(f"the function .{name}() is not supported")
        bounded = self._bounded and name == "matches"
        self._matches += bounded
        if self._matches > types.MAX_MATCHES:
            raise NotUnderstood(f"more than {types.MAX_MATCHES} of .matches() are not supported here")
        of_two, argument = types.matches_simply if bounded else types.METHODS_OF_TWO[name], self._any()
        self._expect(")")
        return lambda scope: of_two(owner(scope), argument(scope))

    def _question(self, owner: Expression, name: str) -> Expression:
        if name == "allowed":
            self._expect(")")
            return lambda scope: values.asked(owner(scope))
        argument = self._any()
        self._expect(")")
        return lambda scope: values.more(owner(scope), name, values.text(argument(scope)))


def _unquoted(text: str) -> str:
    if text.startswith("'"):
        return text[1:-1]
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.DecodeError as error:
        raise NotUnderstood(f"the string {text} is not supported: {error}") from error
