"""Parses one CEL rule with its schema: refuses unknown fields and names, and sums up its cost.

    expression = or [ "?" or ":" expression ]       or … sum … : one level per operator, as in `_LEVELS`
    member     = value { .name | .name(…) | [expression] }
    value      = literal | name | name(…) | (…) | [ … ] | { … }

The type of an expression is known while it is a path from `self`. Results of functions have no type.
"""

import re
from dataclasses import dataclass
from typing import Final

from egpu_sim.cluster.trees import Json, as_object

MAX_DEPTH: Final = 32
UNBOUNDED: Final = float(3 * 1024 * 1024 // 3)
"""Assumed characters of a text, or items of a list, without a limit."""

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
    | (?P<text>[rRbB]?(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'))
    | (?P<number>0x[0-9a-fA-F]+u?|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?u?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*|`[^`]+`)
    | (?P<sign>\|\||&&|==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE | re.DOTALL,
)
_LEVELS: Final = (("||",), ("&&",), ("==", "!=", "<", "<=", ">", ">=", "in"), ("+", "-"), ("*", "/", "%"))
_EACH: Final = ("all", "exists", "exists_one", "map", "filter")
_GLOBALS: Final = frozenset(
    {"int", "uint", "double", "string", "bytes", "bool", "list", "map", "type", "null_type", "cel", "optional",
     "quantity", "math", "ip", "cidr", "url", "format", "duration", "timestamp", "semver", "sets", "strings", "google"}
)  # fmt: skip
_ESCAPES: Final = {"__underscores__": "__", "__dot__": ".", "__dash__": "-", "__slash__": "/"}
_RESERVED: Final = re.compile(r"^__(true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|"
                              r"package|namespace|return|var|void|while)__$")  # fmt: skip


class Refused(Exception):
    """The rule cannot be compiled; `position` is the character of the error."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True)
class _Found:
    """Facts about a part of an expression: its cost, its type where it is a path, and a literal's length."""

    cost: float
    schema: Json | None = None
    length: float | None = None

    def size(self) -> float:
        """Return the most characters or items; 1 for other values."""
        if self.length is not None:
            return self.length
        if self.schema is None:
            return 1.0
        kind = self.schema.get("type")
        key = {"string": "maxLength", "array": "maxItems"}.get(str(kind))
        if key is None:
            return UNBOUNDED if "additionalProperties" in self.schema else 1.0
        limit = self.schema.get(key)
        return float(limit) if isinstance(limit, int) else 32.0 if "enum" in self.schema else UNBOUNDED


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    position: int


def examined(text: str, schema: Json) -> float:
    """Return the cost of a rule at `schema`. Raises Refused."""
    tokens: list[_Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise Refused(f"Syntax error: token recognition error at: '{text[position]}'", position)
        if match.lastgroup != "space":
            tokens.append(_Token(str(match.lastgroup), match.group(), position))
        position = match.end()
    tokens.append(_Token("end", "<EOF>", len(text)))
    reader = _Reader(tokens, {"self": schema, "oldSelf": schema})
    found = reader.expression()
    reader.expect_end()
    return found.cost


class _Reader:
    """A recursive descent parser with one method for each rule of the grammar above."""

    def __init__(self, tokens: list[_Token], names: dict[str, Json | None]) -> None:
        self._tokens = tokens
        self._names = names
        self._at = 0
        self._depth = 0

    def expect_end(self) -> None:
        if self._next.kind != "end":
            raise self._unexpected()

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _unexpected(self) -> Refused:
        return Refused(f"Syntax error: extraneous input '{self._next.text}'", self._next.position)

    def _accept(self, *texts: str) -> _Token | None:
        token = self._next
        if token.kind in ("sign", "name") and token.text in texts:
            self._at += 1
            return token
        return None

    def _expect(self, text: str) -> None:
        if self._accept(text) is None:
            raise self._unexpected()

    def expression(self) -> _Found:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Refused("expression recursion limit exceeded", self._next.position)
        found = self._level(0)
        if self._accept("?"):
            yes = self._level(0)
            self._expect(":")
            no = self.expression()
            found = _Found(found.cost + max(yes.cost, no.cost) + 1)
        self._depth -= 1
        return found

    def _level(self, level: int) -> _Found:
        if level == len(_LEVELS):
            return self._unary()
        found = self._level(level + 1)
        while (operator := self._accept(*_LEVELS[level])) is not None:
            right = self._level(level + 1)
            compared = min(found.size(), right.size()) * 0.1 if operator.text in ("==", "!=") else 0.0
            found = _Found(found.cost + right.cost + max(1.0, compared))
        return found

    def _unary(self) -> _Found:
        if self._accept("!", "-") is not None:
            return _Found(self._unary().cost + 1)
        return self._member()

    def _member(self) -> _Found:
        found = self._value()
        while (sign := self._accept(".", "[")) is not None:
            if sign.text == "[":
                self._accept("?")
                inner = self.expression()
                self._expect("]")
                found = _Found(found.cost + inner.cost + 1, _values(found.schema))
                continue
            self._accept("?")
            name = self._name()
            if self._accept("("):
                found = self._call(found, name)
            else:
                found = _Found(found.cost + 1, _field(found.schema, name, sign.position))
        return found

    def _name(self) -> str:
        token = self._next
        if token.kind != "name":
            raise self._unexpected()
        self._at += 1
        return token.text.strip("`")

    def _value(self) -> _Found:
        token = self._next
        if token.kind in ("text", "number"):
            self._at += 1
            return _Found(0, length=float(len(token.text)))
        if self._accept("("):
            found = self.expression()
            self._expect(")")
            return found
        if self._accept("["):
            return _Found(sum(each.cost for each in self._several("]")) + 10)
        if self._accept("{"):
            return _Found(sum(each.cost for each in self._several("}")) + 30)
        if token.kind != "name":
            raise self._unexpected()
        name = self._name()
        if name in ("true", "false", "null"):
            return _Found(0, length=1)
        if self._accept("("):
            return _Found(sum(each.cost for each in self._several(")")) + 1)
        if name not in self._names and name not in _GLOBALS:
            raise Refused(f"undeclared reference to '{name}' (in container '')", token.position)
        return _Found(1, self._names.get(name))

    def _several(self, end: str) -> list[_Found]:
        found: list[_Found] = []
        while not self._accept(end):
            found.append(self.expression())
            if not self._accept(",", ":"):
                self._expect(end)
                break
        return found

    def _call(self, owner: _Found, name: str) -> _Found:
        if name in _EACH and self._tokens[self._at + 1].text == ",":
            return self._each(owner)
        arguments = self._several(")")
        cost = owner.cost + sum(each.cost for each in arguments) + 1
        if name in ("startsWith", "endsWith", "contains", "matches"):
            cost += owner.size() * 0.1 * max(1.0, sum(each.size() for each in arguments) * 0.25)
        return _Found(cost)

    def _each(self, owner: _Found) -> _Found:
        variables: list[str] = []
        while self._tokens[self._at + 1].text == ",":
            variables.append(self._name())
            self._expect(",")
        before = dict(self._names)
        is_list = owner.schema is not None and owner.schema.get("type") == "array"
        self._names |= dict.fromkeys(variables, _values(owner.schema) if is_list else None)
        body = sum(each.cost for each in self._several(")"))
        self._names = before
        return _Found(owner.cost + max(1.0, owner.size()) * (body + 1))


def _values(schema: Json | None) -> Json | None:
    found = as_object((schema or {}).get("items") or (schema or {}).get("additionalProperties"))
    return found or None


def _field(schema: Json | None, name: str, position: int) -> Json | None:
    """Return the type of a field. Raises Refused for an unknown field."""
    if schema is None or schema.get("x-kubernetes-preserve-unknown-fields"):
        return None
    if "additionalProperties" in schema:
        return _values(schema)
    properties = as_object(schema.get("properties"))
    plain = _unescaped(name)
    if plain not in properties or (schema.get("type") not in (None, "", "object")):
        raise Refused(f"undefined field '{name}'", position)
    return as_object(properties[plain]) or None


def _unescaped(name: str) -> str:
    if (word := _RESERVED.match(name)) is not None:
        return word[1]
    for escape, plain in _ESCAPES.items():
        name = name.replace(escape, plain)
    return name
