"""What a moving session keeps of each operation: the table is complete, and says so where it is not."""

import re
from pathlib import Path

import pytest
from remote_codec import moves, ops

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "native/driver/moves.yaml"
OPERATIONS = list(ops.read(ROOT / "native/wire/ops.txt").ops)


def test_each_operation_of_the_wire_has_one_class() -> None:
    found = moves.classify(OPERATIONS, moves.read(TABLE))
    assert list(found) == OPERATIONS


@pytest.mark.parametrize("name", ["cuThingCreate", "NEW_FORM", "cudnnSetThingDescriptor", "cublasSetThing"])
def test_a_new_operation_needs_a_class(name: str) -> None:
    with pytest.raises(moves.MovesError, match=f"{name}: its classes in moves.yaml are"):
        moves.classify([*OPERATIONS, name], moves.read(TABLE))


def test_a_rule_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(moves.MovesError, match="cuStreamCreate, which is no operation"):
        moves.classify([n for n in OPERATIONS if n != "cuStreamCreate"], moves.read(TABLE))


def test_whatever_hands_out_an_object_is_kept_or_prevents_or_is_known_by_its_kind() -> None:
    """An operation that makes something that no frame rebuilds is `nothing` only if its kind prevents a move."""
    decoders = (ROOT / "native/executor/generated/decoders.c").read_text()
    makes = {
        match[1]: set(re.findall(r"handle_bind\(task, KIND_(\w+)", match[2]))
        for match in re.finditer(r"static CUresult decode_(\w+)\(.*?\{(.*?)\n\}", decoders, re.DOTALL)
    }
    found = moves.classify(OPERATIONS, moves.read(TABLE))
    rebuilt = {kind for name, kinds in makes.items() if found[name].label == "creates" for kind in kinds}
    allowed = ("creates", "prevents")
    unkept = {name for name, kinds in makes.items() if kinds & rebuilt and found[name].label not in allowed}
    assert unkept == set()


def test_settings_name_their_object() -> None:
    text = (ROOT / "native/executor/generated/moves.c").read_text()
    rules = re.findall(r'MOVES_(?:CHANGES|TELLS),\s+(0x\w+),\s+\d+,\s+"(\w+)"', text)
    by_name = {name: int(place, 16) for place, name in rules}
    assert by_name["cuFuncSetAttribute"] == 0
    assert by_name["cuStreamSetAttribute"] == 8  # behind the mask of pointers
    assert by_name["cuKernelSetAttribute"] == 16
    assert by_name["cuModuleGetGlobal_v2"] == 8  # what it answers is no part of the frame
    assert by_name["cuCtxSetLimit"] == moves.OF_CONTEXT
    assert by_name["cuDevicePrimaryCtxSetFlags_v2"] == moves.OF_SESSION
    assert by_name["cublasSetStream_v2"] == 0
