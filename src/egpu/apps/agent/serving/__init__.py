"""Executors for containers that have no GPU device, and the ways to them.

slots      executors of this node's slots, on this node's cards (qGPU)
bridges    from this node's slots to executors on other nodes (the pool)
pods       executors on this node's cards for containers of other nodes, which come in by bridges (the pool)
"""
