"""The part of CEL, Kubernetes' Common Expression Language, in which conditions and selectors are usually written.

    grammar   parses an expression, and compiles it to a function of its variables
    values    evaluates its operators and functions, on plain JSON
    types     quantities and semantic versions, and their functions

Anything else is refused, by name, before the expression is used.
"""
