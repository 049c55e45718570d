"""The table of CUDA runtime functions: what the public headers declare, and what each function is to us.

headers     names and parameters of every exported symbol, from cuda_runtime_api.h
classes     what `classes.yaml` says of each
render      the files that the runtime is built from
"""
