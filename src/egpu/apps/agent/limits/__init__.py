"""Keeps containers inside their slices while they run, by rewriting their policy pages.

    compute         shares the cards' time (`egpu.adapters.slices.sharing`) among slots and other slices of the machine
    driver          lets the driver limit the memory of pods, if it can and their class asks for it
    ended_programs  returns memory that ended programs of shared slices still count for
    rooms           decides which slices have their memory on a card, where several share its room
    delay_events    tells pods that long kernels of one delay latency work of another
    park_events     tells pods for which others their memory was parked, and why
    overstays       tells pods that keep their memory from others, and ends programs after the patience of their class
    seldom          how long ago something was told
    memory          compares containers and executors with the driver's figures, and ends those that stay over the limit

The limits themselves are written when a slot is prepared (`egpu.apps.agent.slots`)."""
