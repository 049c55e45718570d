"""What the real server demands of a CustomResourceDefinition, each rule in its words.

    rules             the definition as a whole: group, names, versions, columns, subresources, conversion
    structural        schemas must be structural: every field has a type outside of the logical junctors
    openapi           what of OpenAPI is not allowed, and which extensions go together
    defaults          defaults must keep the rules that the schema gives
    patterns          patterns must be what Go's regular expressions know
    expressions       rules in CEL must be well-formed and cheap
    expression_types  reads one rule: it may name only fields that there are

NOT the resources that a definition adds: those are `egpu.embedded.apiserver.crd`.
"""

from egpu.embedded.apiserver.definitions.rules import validate, validate_update

__all__ = ["validate", "validate_update"]
