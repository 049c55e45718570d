"""The generator of the remote pair: which driver functions go over the wire, and the C that carries them."""
