"""The command line: `egpu`, and the same as `kubectl egpu`.

    app          every command by name, and what all of them share
    up, demo     the embedded cluster
    run          a command in a slice of a local GPU, no cluster needed
    get, explain what a cluster looks like, and why
    components   the processes of an installation: webhook, extender, agent, controller
    output       tables for people, JSON and YAML for scripts

Results go to stdout, everything else to stderr. Exit codes: 0 done; 1 it failed; 2 the command line was wrong.
"""


def main() -> None:
    """Entry point of `egpu` and `kubectl-egpu`."""
    from egpu.cli.app import run_app  # noqa: PLC0415  nothing is imported before it is needed

    run_app()
