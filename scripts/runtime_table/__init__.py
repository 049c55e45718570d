"""The table of CUDA runtime functions: the declarations of the public headers, and the class of each function.

headers     names and parameters of every exported symbol, from cuda_runtime_api.h
classes     the classes of `classes.yaml`
render      the files that the runtime is built from
"""
