"""Simulated machines, from outside: made, found, moved in time, broken on purpose, removed.

    machine    a machine's directory: driver, device files, who keeps it
    loader_cache  how programs find its driver, as they find a real one
    models     the models of card, with their figures (`profiles/`)
    state      the bytes of its state
    shared_memory  where those are, and what becomes of machines left behind
    clock      its time, where that is moved by hand
    faults     what goes wrong with its cards

NOT here: how a card computes. That is `native/sim`, which shares the state with us.
"""
