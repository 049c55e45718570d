"""Selectors of ResourceClaims: as Kubernetes evaluates them, on what a kind of cards shares, and nothing that loops."""

from typing import Any

import celpy
import celpy.adapter
import celpy.evaluation
import pytest
from celpy import celtypes
from hypothesis import given, settings
from hypothesis import strategies as st

from egpu.api import names
from egpu.api.allocation import CardRequirement
from egpu.core.attributes import EXPRESSION, CardKind, describe_selection, mismatch, parse_selector, selects
from egpu.core.dra.devices import PublishedCard, devices
from egpu.core.selectors import MAX_CHARACTERS, check, objection
from egpu_base.api.devices import DeviceAttribute
from egpu_base.api.quantities import parse_quantity
from egpu_base.cel.types import MAX_MATCHES, semver
from egpu_base.cel.values import EvaluationError
from egpu_base.errors import InvalidDemand, NotSupported

OURS = f'device.attributes["{names.DRIVER}"]'
ROOM = f'device.capacity["{names.DRIVER}"]'
KIND = CardKind("NVIDIA A100-SXM4-80GB", 81920, "8.0", (("fp32", 19.5),), numa=1)
CARD = PublishedCard(
    uuid="GPU-1", index=0, model=KIND.model, memory_mib=KIND.memory_mib, compute_capability="8.0", tflops=19.5, numa=1
)


def doubling(times: int) -> str:
    """An expression whose text would be 2 ** times characters long."""
    names_of = [f"a{number}" for number in range(times)]
    inner = f"{names_of[-1]} == ''"
    for before, name in reversed([*zip(["'x'", *names_of], names_of, strict=False)]):
        inner = f"cel.bind({name}, {before} + {before}, {inner})"
    return inner


@pytest.mark.parametrize(
    "expression",
    [
        "true",
        f"cel.bind(mine, {OURS}, mine.vcuda && mine.numaNode == 1)",
        f"{OURS}.vcuda && {OURS}.physical",
        f'{OURS}.computeCapability.compareTo(semver("7.5.0")) > 0',
        f'{OURS}.computeCapability == semver("8.0.0")',
        f'!{OURS}.computeCapability.isLessThan(semver("8.0.0"))',
        f'{OURS}.model.lowerAscii().matches("^.*a100.*$")',
        f'{OURS}.model.startsWith("NVIDIA") && {OURS}["model"].contains("80GB")',
        f'{OURS}.architecture in ["Hopper", "Ampere"]',
        f"{OURS}.tflops >= 20 || {OURS}.numaNode == 1",
        f'{ROOM}.memory.compareTo(quantity("40Gi")) >= 0 && {ROOM}.cores == quantity("100")',
        f'{ROOM}.memory.isGreaterThan(quantity("80000M"))',
        f'device.driver == "{names.DRIVER}" && device.allowMultipleAllocations',
        f'has({OURS}.numaNode) && !("colour" in {OURS}) && !has(device.attributes["gpu.nvidia.com"].type)',
    ],
)
def test_what_manifests_usually_say_is_evaluated(expression: str) -> None:
    check(expression)
    assert objection(expression, KIND) == ""


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        (f'{OURS}.model == "T4"', "is false"),
        (f"{OURS}.numaNode", "neither true nor false"),
        (f"{OURS}.colour == 1", "no such key: colour"),
        ('device.attributes["gpu.nvidia.com"].type == "gpu"', "no such key: type"),
        (f'{OURS}.model.compareTo(quantity("1")) > 0', "no such overload"),
        (f'{OURS}.computeCapability == semver("8.0")', "must be a version such as 1.2.3"),
        (f'{ROOM}.memory.isLessThan(quantity("lots"))', "'lots' is not a number"),
        (f"[1] in {OURS}", "no such overload"),
        (f'{OURS}.model.matches("(A100)+")', "the pattern has groups"),
        (f'{OURS}.model.matches(".*A.*1.*0.*")', "more than 3"),
        (f'{OURS}.model.matches("a**")', "the pattern has groups"),
        (f'{OURS}.model.matches("[z-a]")', "bad character range"),
        (doubling(20), "a sum has more than"),
    ],
)
def test_a_card_that_is_not_selected_says_why(expression: str, words: str) -> None:
    check(expression)
    assert words in objection(expression, KIND)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("[1, 2].all(x, x > 0)", r"the function \.all\(\)"),
        ("[1, 2].exists(x, [1, 2].exists(y, x == y))", r"the function \.exists\(\)"),
        ("size([1, 2].map(x, x)) > 0", r"the function \.map\(\)"),
        ('timestamp("2020-01-01T00:00:00Z") == timestamp("2020-01-01T00:00:00Z")', r"the function timestamp\(\)"),
        ("card.memory > 1", "the variable 'card'"),
        ("1 / 0 == 1", "'/' at character 3 is not supported"),
        (f'{OURS}.uuid == "GPU-1"', "does not know uuid"),
        (f'"uuid" in {OURS}', "does not know uuid"),
        (f'"{names.DRIVER}/driverVersion" in {OURS}', "does not know driverVersion"),
        ('device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:3a"', "does not know pcieRoot"),
        *((text, "selector") for text in ("", "(", "true &&", "'", "a b", "\x00", "(" * (MAX_CHARACTERS // 2))),
    ],
)
def test_what_cannot_be_evaluated_here_is_refused_by_name(expression: str, words: str) -> None:
    with pytest.raises(NotSupported, match=words):
        check(expression)


def test_a_card_without_figures_lacks_their_attributes() -> None:
    bare = CardKind("A card", 1024)
    assert "no such key" in objection(f"{OURS}.tflops > 1", bare)
    assert objection(f"!has({OURS}.computeCapability) && !has({OURS}.numaNode) && has({OURS}.model)", bare) == ""


def test_selectors_are_a_selection_that_nobody_else_can_write() -> None:
    small = replace_memory(1024)
    select = (CardRequirement(key=EXPRESSION, operator="In", values=("true", f'{ROOM}.memory > quantity("2Gi")')),)
    assert (selects(select, KIND), selects(select, small)) == (True, False)
    assert mismatch(select, KIND) is None
    assert "is false" in (mismatch(select, small) or "")
    assert describe_selection(select, "") == f' with selectors true && {ROOM}.memory > quantity("2Gi")'
    with pytest.raises(InvalidDemand, match="cards have no attribute"):
        parse_selector(f"{EXPRESSION} = true", "field")


def replace_memory(mib: int) -> CardKind:
    return KIND._replace(memory_mib=mib)


# --- beside a library's evaluator -------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([f"{OURS}.tflops", f"{OURS}.numaNode", "0", "1", "20", f"size({OURS}.model)"])
TEXTS = st.sampled_from([f"{OURS}.model", f"{OURS}.architecture", "'Ampere'", "'A'", f"{OURS}.colour", "device.driver"])
VERSIONS = st.sampled_from([f"{OURS}.computeCapability", "semver('8.0.0')", "semver('7.5.1')", "semver('12.0.0')"])
AMOUNTS = st.sampled_from(
    [f"{ROOM}.memory", f"{ROOM}.cores", "quantity('80Gi')", "quantity('100')", "quantity('1.5k')"]
)
RELATIONS = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
ORDERS = st.sampled_from(["isGreaterThan", "isLessThan"])


def ordered(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    three = st.builds("{}.{}({})".format, values, ORDERS, values)
    return three | st.builds("{}.compareTo({}) {} 0".format, values, values, RELATIONS)


LEAVES = (
    st.builds("{} {} {}".format, NUMBERS, RELATIONS, NUMBERS)
    | st.builds("{} {} {}".format, TEXTS, st.sampled_from(["==", "!="]), TEXTS)
    | st.builds("{}.{}({})".format, TEXTS, st.sampled_from(["contains", "startsWith", "endsWith"]), TEXTS)
    | st.builds("{} in [{}, {}]".format, TEXTS, TEXTS, TEXTS)
    | ordered(VERSIONS)
    | ordered(AMOUNTS)
    | st.sampled_from([f"{OURS}.vcuda", "true", "false", f"has({OURS}.colour)", f"has({OURS}.model)"])
)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds("({} && {})".format, inner, inner)
        | st.builds("({} || {})".format, inner, inner)
        | st.builds("!({})".format, inner)
        | st.builds("({} ? {} : {})".format, inner, inner, inner)
    ),
    max_leaves=5,
)
(DEVICE,) = devices([CARD])


def of_library(expression: str) -> bool | None:
    """Return what cel-python makes of an expression about DEVICE; None for an error."""
    program = ENVIRONMENT.program(ENVIRONMENT.compile(expression), functions=FUNCTIONS)
    try:
        return bool(program.evaluate({"device": DEVICE_OF_LIBRARY}))
    except celpy.evaluation.CELEvalError:
        return None


def comparable(text: str) -> Any:
    """A quantity in thousandths, or a version, as a value of cel-python that has an order."""
    parts = text.split(".")
    if len(parts) == 3:
        return celtypes.IntType(sum(int(part) * 1000 ** (2 - at) for at, part in enumerate(parts)))
    return celtypes.IntType(int(parse_quantity(text) * 1000))


def published() -> Any:
    domain = celtypes.StringType(names.DRIVER)
    attributes = {
        celtypes.StringType(name): comparable(one.version) if one.version else celpy.adapter.json_to_cel(value_of(one))
        for name, one in (DEVICE.attributes or {}).items()
    }
    capacity = {celtypes.StringType(name): comparable(str(one.value)) for name, one in (DEVICE.capacity or {}).items()}
    found = {
        "driver": celtypes.StringType(names.DRIVER),
        "attributes": celtypes.MapType({domain: celtypes.MapType(attributes)}),
        "capacity": celtypes.MapType({domain: celtypes.MapType(capacity)}),
    }
    return celtypes.MapType({celtypes.StringType(name): value for name, value in found.items()})


def value_of(one: DeviceAttribute) -> Any:
    return next(value for value in (one.string, one.number, one.flag) if value is not None)


FUNCTIONS: dict[str, Any] = {
    "quantity": comparable,
    "semver": comparable,
    "compareTo": lambda left, right: celtypes.IntType((left > right) - (left < right)),
    "isGreaterThan": lambda left, right: celtypes.BoolType(left > right),
    "isLessThan": lambda left, right: celtypes.BoolType(left < right),
}
DEVICE_OF_LIBRARY = published()
ENVIRONMENT = celpy.Environment()


@given(EXPRESSIONS)
@settings(max_examples=300, deadline=None)
def test_a_library_agrees(expression: str) -> None:
    check(expression)
    found = objection(expression, KIND)
    assert {"": True, "is false": False}.get(found and found[-8:]) is of_library(expression), (expression, found)


WORDS = st.sampled_from(
    [OURS, ROOM, "device", ".model", ".memory", "[", "]", "(", ")", ",", "'a'", '"a"', "1", "1.5", "true", "null", "&&",
     "||", "!", "==", "<", "in", "+", "?", ":", "has(", "size(", "quantity(", "semver(", "cel.bind(x, ", "x", "dyn(",
     ".matches(", ".contains(", ".compareTo(", ".asInteger()", ".substring(", ".major()", ".allowed()", ".group("]
)  # fmt: skip
LIKE_CEL = st.lists(WORDS, max_size=20).map(" ".join)


@given(LIKE_CEL | st.text(max_size=40))
@settings(max_examples=500, deadline=None)
def test_any_text_is_evaluated_or_refused(text: str) -> None:
    try:
        check(text)
    except NotSupported:
        return
    assert isinstance(objection(text, KIND), str)


def grown(text: str, times: int, inner: str) -> str:
    """An expression in which `z` is a text eight times as long for each of `times`."""
    expression = f"cel.bind(z, {chr(97 + times)}, {inner})"
    for number in reversed(range(times)):
        before, after = chr(97 + number), chr(98 + number)
        expression = f"cel.bind({after}, {'+'.join([before] * 8)}, {expression})"
    return f"cel.bind(a, '{text}', {expression})"


def compared_lists(levels: int) -> str:
    """An expression that compares two lists, in which 8 ** levels numbers are, shared and not equal by identity."""
    expression = f"{chr(97 + levels)} == {chr(97 + levels).upper()}"
    for number in reversed(range(levels)):
        for name in (chr(97 + number).upper(), chr(97 + number)):
            made = chr(ord(name) + 1)
            expression = f"cel.bind({made},[{','.join([name] * 8)}],{expression})"
    return f"cel.bind(a,[1],cel.bind(A,[1],{expression}))"


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        (grown("aaaaaaaaaaaaaaaa", 1, "z.matches('a*a*a*b')"), "the text has more than 64 characters"),
        (grown("aaaaaaaaaaaaaaaa", 2, "z.matches('a*a*a*b')"), "a sum has more than 1000 parts"),
        (grown("9999999999999999", 3, "semver(z + '.1.1').major() == 1"), "a sum has more than 1000 parts"),
        (compared_lists(7), "a list in a list is not supported"),
    ],
)
def test_a_selector_of_few_characters_stops_no_extender(expression: str, problem: str) -> None:
    """One pattern on 1,024 letters took hours, and a version of 8,192 digits ended with another error."""
    assert len(expression) <= MAX_CHARACTERS
    check(expression)
    assert problem in objection(expression, KIND)


def test_a_selector_has_few_patterns() -> None:
    one = f'{OURS}.model.matches("a*a*a*b")'
    check(" || ".join([one] * MAX_MATCHES))
    with pytest.raises(NotSupported, match=f"more than {MAX_MATCHES} of .matches"):
        check(" || ".join([one] * (MAX_MATCHES + 1)))


def test_a_version_with_more_digits_than_numbers_have_is_an_error_of_the_expression() -> None:
    with pytest.raises(EvaluationError, match="more than 1024 characters"):
        semver(5000 * "9" + ".0.0")
