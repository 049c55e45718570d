"""The real server's rules of a CustomResourceDefinition, each in its words.

    rules             the definition as a whole: group, names, versions, columns, subresources, conversion
    structural        schemas must be structural: every field has a type outside of the logical junctors
    openapi           parts of OpenAPI that are not allowed, and extensions that go together
    defaults          defaults must obey the rules of the schema
    patterns          patterns must be valid in Go's regular expressions
    expressions       rules in CEL must be well-formed and cheap
    expression_types  parses one rule: it may name only fields that exist

NOT the resources that a definition adds: those are `egpu_sim.cluster.apiserver.kinds.crd`.
"""

from egpu_sim.cluster.apiserver.kinds.definitions.rules import validate, validate_update

__all__ = ["validate", "validate_update"]
