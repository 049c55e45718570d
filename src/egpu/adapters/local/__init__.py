"""Slices of this machine's own GPUs, without a cluster.

book      who holds how much of which card
run       a command inside a slice
guard     what holds the command to its memory by what the driver says
election  which process of this machine shares out its cards' time
sharing   takes part in that
looking   the thread in which `guard` and `sharing` look, while the command runs
"""
