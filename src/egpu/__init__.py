"""Elastic GPU: share GPUs on Kubernetes or on a laptop, behind one claim."""

__version__ = "0.1.0"
