"""Elastic GPU on a laptop: its components over the simulated world. Nothing else of the product imports that world.

machines      simulated machines in the place of real cards
cluster       the product's components on a small Kubernetes: `egpu up`
late_imports  what those components import late
dashboard     its dashboard, and a user who may only look
installation  what deploy/ installs beside workloads
credentials   by which scheduler and extender know each other
manifests     objects from YAML files
demo          what `egpu demo` shows
"""

from importlib.util import find_spec

from egpu_base.errors import MissingExtra

if find_spec("egpu_sim") is None:
    raise MissingExtra("a simulated card or cluster", package="egpu-sim", extra="sim")
