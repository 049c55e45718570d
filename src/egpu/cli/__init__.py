"""The command line: `egpu`, and the same as `kubectl egpu`.

    app             every command by name, and what all of them share
    panels          the commands as help groups them
    completion      what a shell completes, without the rest
    examples        what each command's help ends with
    demo            everything, on simulated GPUs
    up              the embedded cluster
    embedding       what those two share
    run             a command in a slice of a local GPU, or of a pool's
    sim             simulated machines in shared memory
    resize          other limits for a lease
    get             what there is, what is given out, to whom
    views           tables for `get`
    selecting       which of their rows it shows, and what they come to
    watching        which of them changed
    layout          texts in columns
    cordon          a card takes nothing new, or does again
    mig             what to cut cards in MIG mode into
    explain         why a pod is where it is, or is not
    top             nodes, cards and slices, live on a terminal
    top_rows        … what it lists
    top_sources     … from where: the cluster, or one namespace
    top_screen      … its keys and its lines, without a terminal
    dashboard       the cluster as a web page
    inspect         what a slice may use and uses, for people and scripts
    inspection      that, read from its files
    inspection_views   its tables
    manifests       what `deploy/` holds, for this site
    selftest        whether this machine's GPUs can be shared, tried
    selfchecks      what it tries
    trial           the programs with which it tries that
    findings        what those that examine something found
    doctor          what is missing on a cluster, and how to mend it
    simulate        what a policy would have made of a workload
    plots           charts of that
    defrag          which pods to move
    bill            GPU time that is lost
    export_trace    a live cluster as a trace
    snapshot        a cluster read once, for those that look at it
    components      the processes of an installation
    pool            the processes of a pool, and what is asked of its broker
    output          tables for people, JSON and YAML for scripts
    interruption    what Ctrl-C does, and when
    surroundings    what terminal, disk and machine refuse, in a sentence

Results go to stdout, everything else to stderr. Exit codes: 0 done; 1 it failed; 2 the command line was wrong.
"""

import os
from typing import Final

from egpu.cli.interruption import ends_at_once

ASKS: Final = "_EGPU_COMPLETE"
"""In the environment of a process whom a shell asks what may be completed."""


def main() -> None:
    """Entry point of `egpu` and `kubectl-egpu`."""
    ends_at_once()
    if ASKS in os.environ:
        from egpu.cli.completion import offered

        if offered():
            return
    from egpu.cli.app import run_app

    run_app()
