"""What holds containers to their slices while they run, by writing their policy pages anew.

    shares     how a card's time is divided between its containers at one moment; pure
    compute    looks at who is active, many times a second, and grants each its share of the time
    memory     holds containers and executors to what the driver says that they hold, and ends who stays over it

The limits themselves are written when a slot is prepared (`egpu.apps.agent.slots`).
"""
