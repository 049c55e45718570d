"""Executors for containers without a GPU device, and the ways to them.

slot_executors  executors of this node's slots, on this node's cards (qGPU)
bridges         from this node's slots to executors on other nodes (the pool)
pod_service     executors on this node's cards for containers of other nodes, which connect by bridges (the pool)
"""
