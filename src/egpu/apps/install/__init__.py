"""An installation on Kubernetes, from outside: `egpu install`, `egpu upgrade` and `egpu uninstall`.

objects      objects at the API server: places, server-side apply, stages
record       the values of an installation, kept in the cluster
survey       a look at the cluster
plan         changes, obstacles and notes
readiness    waiting for parts
installing   writes everything, stage by stage
trying       a pod with a slice on each kind of card
nodes        labels nodes for agents, and cleans them of what agents wrote
removing     uninstalls
"""

from egpu.apps.install.installing import Done, install
from egpu.apps.install.nodes import label_nodes, waiting_nodes
from egpu.apps.install.objects import Objects
from egpu.apps.install.plan import Plan, plan
from egpu.apps.install.readiness import Deadline
from egpu.apps.install.record import Record, read_record, record
from egpu.apps.install.removing import Removal, uninstall, users
from egpu.apps.install.survey import REMOVING, Survey, scheduler_tag, survey
from egpu.apps.install.trying import Shape, Trial, trials

__all__ = [
    "REMOVING",
    "Deadline",
    "Done",
    "Objects",
    "Plan",
    "Record",
    "Removal",
    "Shape",
    "Survey",
    "Trial",
    "install",
    "label_nodes",
    "plan",
    "read_record",
    "record",
    "scheduler_tag",
    "survey",
    "trials",
    "uninstall",
    "users",
    "waiting_nodes",
]
