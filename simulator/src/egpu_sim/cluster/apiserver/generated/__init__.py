"""Messages of `kubernetes.proto` and `openapi.proto`, written by `scripts/generate_protos.py`."""
