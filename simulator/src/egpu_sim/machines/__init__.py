"""Simulated machines, from outside: create, open, steer, break and remove them.

    machine        a machine's directory: driver, device files, owner
    environment    variables by which programs and shells find its driver
    loader_cache   lets programs find its driver as they find a real one
    settings       what the environment chooses for new machines
    models         the models of card, with their figures (`profiles/`)
    state          the bytes of its state
    shared_memory  files of states, and removal of abandoned machines
    clock          its time, where a test sets it
    faults         failures of its cards

NOT here: how a card computes. That is `simulator/native/gpu`, which shares the state with this package.
"""
