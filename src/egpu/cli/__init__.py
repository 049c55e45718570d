"""The command line: `egpu`, also installed as `kubectl egpu`.

    app             all commands by name, and their common options
    panels          the groups of commands in `egpu --help`
    completion      shell completion, without loading the command line
    examples        the example command lines at the end of each help text
    demo            a tour of the features, on simulated GPUs
    up              the embedded cluster
    embedding       their progress output
    run             a command in a slice of a local GPU or of a pool
    sim             simulated machines in shared memory
    resize          new limits for a running lease
    move            other cards for a running lease
    drain           moves all leases off a server of the pool
    get             lists of nodes, cards, claims, pods, leases and servers
    views           tables for `get`
    selecting       row selection and the summary line for `get`
    watching        changed rows for `get --watch`
    layout          columns of text on a terminal
    cordon          stops or allows new slices on a card
    park            moves the memory of a slice's idle programs off the card, and back
    mig             a plan of MIG instances
    delays          long kernels that delay latency work, from events of a pod
    explain         reasons why a pod or claim waits, or why it got its cards; the cards of a node
    own_words       … from its own status, for users of one namespace
    top             nodes, cards and slices, live on a terminal
    top_rows        … its rows
    top_sources     … its data: the whole cluster, or one namespace
    top_screen      … its keys and lines, without a terminal
    dashboard       the cluster as a web page
    inspect         limits and use of a slice, for people and scripts
    inspection      reads them from the slice's files
    inspection_views   tables for `inspect`
    manifests       the manifests of `deploy/`, with a site's settings
    install         installs on Kubernetes, upgrades and uninstalls
    install_output  its output
    selftest        a test of GPU sharing on this machine
    selfchecks      its checks
    thorough        its further checks, with --thorough
    trial           the programs that its checks start
    findings        results of `doctor` and `selftest`
    doctor          faults of an installation, and how to fix them
    doctor_cluster  the cluster as the checks of `doctor` see it
    doctor_pod      one pod, followed from its admission to CUDA
    bundle          a report for maintainers, without secrets
    redaction       … the parts of objects and logs that it may have
    simulate        a workload replayed under scheduling policies
    plots           charts of its results
    defrag          proposed pod moves
    bill            lost GPU time
    export_trace    a live cluster as a trace
    usage_options   the options for sources of GPU usage
    snapshot        one reading of a cluster, for several commands
    components      the processes of an installation
    pool            the processes of a pool, and requests to its broker
    output          tables for people, JSON and YAML for scripts
    interruption    the effect of Ctrl-C, before, during and after a command
    surroundings    errors of terminal, disk and machine in one sentence

Results go to stdout, everything else to stderr. Exit codes: 0 success; 1 failure; 2 wrong command line.
"""

import gc
import os
from typing import Final

from egpu.cli.interruption import ends_at_once

ASKS: Final = "_EGPU_COMPLETE"
"""The variable that a shell sets when it asks for completions."""
USUAL: Final = gc.get_threshold()
"""Python's own thresholds of the garbage collector. Long-running components use them."""
SELDOM: Final = (20_000, 50, 100)
"""Thresholds during imports, which make many objects and no garbage. A quarter of the time of a start went into
collections."""


def collect_as_usual() -> None:
    """Keep the imported modules out of the garbage collector, and collect other objects as often as Python does."""
    gc.freeze()
    gc.set_threshold(*USUAL)


def main() -> None:
    """Entry point of `egpu` and `kubectl-egpu`."""
    gc.set_threshold(*SELDOM)
    ends_at_once()
    if ASKS in os.environ:
        from egpu.cli.completion import offered

        if offered():
            return
    from egpu.cli.app import run_app

    run_app()
