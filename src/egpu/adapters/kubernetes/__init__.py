"""The cluster as our components follow it, over `egpu_base.kubernetes`.

followed    the core's scheduler cache, and the view of it, kept by reflectors
job_mix     the mix that an extender's prices follow, kept in its Lease
node_conditions   the condition ElasticGPUReady of a node
announced_usage   sources of usage that a kubeconfig names
"""
