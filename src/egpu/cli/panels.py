"""The groups of commands in `egpu --help`. This module imports nothing: completion reads it with every TAB."""

from typing import Final

PANELS: Final = {
    "Get started": ("demo", "up", "run", "resize", "sim", "selftest"),
    "Inspect and plan": ("get", "top", "explain", "inspect", "simulate", "defrag", "bill", "export-trace", "version"),
    "Operate a cluster": ("cordon", "uncordon", "mig", "park", "wake", "move", "drain"),
    "Install and run components": (
        "install", "upgrade", "uninstall", "manifests", "doctor", "webhook", "extender", "agent", "shim", "controller",
        "dashboard", "broker", "serve", "certificate",
    ),
}  # fmt: skip
"""All commands. A command's function, or its group, has the command's name. Its module has that name too, unless
`MODULES` names another one."""

DEFAULT_BROKER: Final = "127.0.0.1:7433"
"""The default address of the pool's broker."""
