"""Slices of this machine's own GPUs, without a cluster.

book      the holders of each card's parts
holders   slices of the book, as values
fitting   chooses the cards for a slice; pure
run       a command inside a slice
guard     enforces the command's memory limit by the driver's account
election  elects the process that shares this machine's cards' time
sharing   takes part in that
rooms     elects the arbiter of slices that share the room of a card
looking   the thread in which `guard`, `sharing` and `rooms` look, while the command runs
"""
