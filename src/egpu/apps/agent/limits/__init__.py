"""What holds containers to their slices while they run, by writing their policy pages anew.

    compute    shares out the cards' time (`egpu.adapters.slices.sharing`) among slots, and what else asks for it here
    driver     has the driver hold pods to their memory, where it can and their class wants that
    ended      gives back what ended programs of slices that several pods have still count for
    memory     holds containers and executors to what the driver says that they hold, and ends who stays over it

The limits themselves are written when a slot is prepared (`egpu.apps.agent.slots`).
"""
