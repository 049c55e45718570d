"""The life of claims, and of the cards and slices that they hold.

    lifecycle   what is to be done about a claim, a card or slice, or a class
    actions     what can be done, as values
    conditions  what is said of a claim, and since when
    absence     what an object needs and is not there, and for how long

Not here: which cards a claim gets (`egpu.core.placement`), and doing it (`egpu.apps.controller`).
"""
