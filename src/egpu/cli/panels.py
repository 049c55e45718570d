"""The commands, as `egpu --help` groups them. Nothing is imported here: completion reads it with every TAB."""

from typing import Final

PANELS: Final = {
    "Try and use": ("demo", "up", "run", "resize", "sim", "selftest"),
    "Look": ("get", "top", "explain", "inspect", "simulate", "defrag", "bill", "export-trace", "version"),
    "Look after a cluster": ("cordon", "uncordon", "mig"),
    "Processes of an installation": (
        "manifests", "doctor", "webhook", "extender", "agent", "shim", "controller", "dashboard", "broker", "serve",
        "certificate",
    ),
}  # fmt: skip
"""Every command. Its function, or its group of commands, has its name, and so has its module here, where `MODULES` says
no other."""

DEFAULT_BROKER: Final = "127.0.0.1:7433"
"""Where the pool's commands look for its broker."""
