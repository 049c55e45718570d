"""Slices of this machine's own GPUs, without a cluster.

book      the holders of each card's parts
run       a command inside a slice
guard     enforces the command's memory limit by the driver's account
election  elects the process that shares this machine's cards' time
sharing   takes part in that
looking   the thread in which `guard` and `sharing` look, while the command runs
"""
