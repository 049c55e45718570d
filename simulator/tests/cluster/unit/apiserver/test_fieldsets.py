"""Sets of fields: written and read, compared, merged and taken away."""

from hypothesis import given
from hypothesis import strategies as st

from egpu_sim.cluster.apiserver.kinds.schema import compile_schema
from egpu_sim.cluster.apiserver.patching import fieldsets
from egpu_sim.cluster.trees import Json

TEXT: Json = {"type": "string"}
SCHEMA = compile_schema(
    {
        "type": "object",
        "properties": {
            "one": {"type": "string"},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
            "atomic": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
            "list": {"type": "array", "items": {"type": "string"}},
            "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "keyed": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["k", "p"],
                "items": {
                    "type": "object",
                    "properties": {"k": TEXT, "p": {**TEXT, "default": "T"}, "v": TEXT},
                },
            },
        },
    }
)  # fmt: skip
NAMES = st.sampled_from(["a", "b", "c"])
MAPS = st.dictionaries(NAMES, NAMES, min_size=1)
KEYED = st.dictionaries(NAMES, NAMES, min_size=1).map(
    lambda held: [{"k": key, "v": value} for key, value in held.items()]
)
OBJECTS: st.SearchStrategy[Json] = st.fixed_dictionaries(
    {},
    optional={
        "one": NAMES,
        "map": MAPS,
        "atomic": MAPS,
        "list": st.lists(NAMES, min_size=1),
        "set": st.lists(NAMES, min_size=1, unique=True),
        "keyed": KEYED,
    },
)


def test_the_wire_has_what_the_documentation_shows() -> None:
    obj = {
        "one": "x",
        "map": {"a": "1"},
        "atomic": {"a": "1"},
        "list": ["x"],
        "set": ["s"],
        "keyed": [{"k": "a", "v": "1"}],
    }
    assert fieldsets.to_wire(fieldsets.fields_of(SCHEMA, obj)) == {
        "f:one": {},
        "f:map": {"f:a": {}},
        "f:atomic": {},
        "f:list": {},
        "f:set": {'v:"s"': {}},
        "f:keyed": {'k:{"k":"a","p":"T"}': {".": {}, "f:k": {}, "f:v": {}}},
    }
    assert fieldsets.shown(("f:keyed", 'k:{"k":"a","p":"T"}', "f:v")) == '.keyed[k="a",p="T"].v'
    assert fieldsets.shown(("f:set", 'v:"s"')) == '.set[="s"]'


@given(OBJECTS)
def test_what_is_written_is_read_again(obj: Json) -> None:
    fields = fieldsets.fields_of(SCHEMA, obj) if obj else frozenset[fieldsets.Path]()
    assert fieldsets.from_wire(fieldsets.to_wire(fields)) == fields


@given(OBJECTS, OBJECTS)
def test_a_merge_has_all_that_was_wanted_and_changes_nothing_else(live: Json, wanted: Json) -> None:
    result = fieldsets.merged(SCHEMA, live, wanted)
    assert fieldsets.merged(SCHEMA, result, wanted) == result
    touched, removed = fieldsets.changes(SCHEMA, live, result)
    asked = fieldsets.fields_of(SCHEMA, wanted) if wanted else frozenset[fieldsets.Path]()
    assert touched <= asked
    assert removed == frozenset()


@given(OBJECTS, OBJECTS)
def test_what_is_taken_away_is_gone_and_what_is_kept_stays(obj: Json, other: Json) -> None:
    mine = fieldsets.fields_of(SCHEMA, obj) if obj else frozenset[fieldsets.Path]()
    theirs = fieldsets.fields_of(SCHEMA, other) if other else frozenset[fieldsets.Path]()
    both = fieldsets.merged(SCHEMA, obj, other)
    left = fieldsets.without(SCHEMA, both, mine - theirs, theirs)
    found = fieldsets.fields_of(SCHEMA, left) if left else frozenset[fieldsets.Path]()
    assert theirs <= found
    assert not found & (mine - theirs)


@given(OBJECTS)
def test_nothing_changes_from_a_thing_to_itself(obj: Json) -> None:
    assert fieldsets.changes(SCHEMA, obj, obj) == (frozenset(), frozenset())
