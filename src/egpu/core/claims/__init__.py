"""The life of claims, and of the cards and slices that they hold.

    lifecycle   what to do about a claim, a card or slice, or a class
    actions     the actions, as values
    conditions  the conditions of a claim, and since when they hold
    absence     missing nodes and cards of an object, and for how long

Not here: which cards a claim gets (`egpu.core.placement`), and executing actions (`egpu.apps.controller`).
"""
