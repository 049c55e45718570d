"""The generator of the remote pair: the driver functions that go over the wire, and the C that carries them."""
