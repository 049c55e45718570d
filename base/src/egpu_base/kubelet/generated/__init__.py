"""Messages and stubs of `deviceplugin.proto` and `podresources.proto`, written by `scripts/generate_protos.py`."""
