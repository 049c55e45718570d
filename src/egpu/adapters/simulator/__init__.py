"""Simulated machines, from outside: made, found, moved in time, broken on purpose, removed.

    machine    a machine's directory: driver, device files, who keeps it
    loader_cache  how programs find its driver, as they find a real one
    state      the bytes of its state, and the models of card (`profiles/`)
    clock      its time, where that is moved by hand
    faults     what goes wrong with its cards

NOT here: how a card computes. That is `native/sim`, which shares the state with us.
"""
