"""Moves of running pods: proposals only. Pure.

defrag   the fewest moves that let a demand in
raising  the moves that make more of the cluster usable
movable  which pods of a live cluster may move, and whether its ledger agrees
"""
