"""`egpu-sim`: simulated GPUs for one program, for a shell or CI job, and for a small Kubernetes."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from egpu_base.errors import ElasticGPUError, InvalidInput
from egpu_base.runtime.foreground import run_until_signal, until_cancelled
from egpu_sim import __version__
from egpu_sim.machines import environment
from egpu_sim.machines import machine as machines
from egpu_sim.machines.shared_memory import list_machines, remove_unused

if TYPE_CHECKING:
    from egpu_sim.cluster.cluster import ClusterConfig

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_STARTED = 125
DEFAULT_PROFILE = "A100-80G"

Profile = Annotated[str, typer.Option(help="GPU model to simulate. `egpu-sim profiles` lists the models.")]
Cards = Annotated[int, typer.Option(min=1, max=16, help="Number of GPUs.")]

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Simulate NVIDIA GPUs: a CUDA driver, NVML, the CUDA libraries and a small Kubernetes, without a GPU."""
    if version:
        print(f"egpu-sim {__version__}")
        raise typer.Exit


@app.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The program and its arguments.")],
    profile: Profile = DEFAULT_PROFILE,
    cards: Cards = 1,
) -> None:
    """Run a program on a new simulated machine, and remove the machine when the program ends.

    The exit status is the program's own, 128 + N if signal N ended it, and 125 if it did not start.
    """
    with tempfile.TemporaryDirectory(prefix="egpu-sim-") as directory:
        machine = machines.create_machine(Path(directory) / "machine", profile, cards)
        try:
            status = _execute(command, environment.environment_of(machine, os.environ))
        finally:
            machines.destroy(machine)
    raise typer.Exit(status)


@app.command("start")
def start(
    profile: Profile = DEFAULT_PROFILE,
    cards: Cards = 1,
    github: Annotated[
        bool, typer.Option("--github", help="Print nothing, and set up the later steps of this GitHub Actions job.")
    ] = False,
) -> None:
    """Start a simulated machine for several commands, with eval "$(egpu-sim start)".

    Prints the shell commands that let every program started from this shell use the machine. The machine stays until
    eval "$(egpu-sim stop)" or a reboot.
    """
    if environment.MACHINE in os.environ:
        _fail('this shell has a machine already; end it first: eval "$(egpu-sim stop)"', EXIT_USAGE, shell=not github)
    directory = Path(tempfile.mkdtemp(prefix="egpu-sim-"))
    try:
        machine = machines.create_machine(directory, profile, cards, persistent=True)
        changes = environment.enter(machine, os.environ)
        if github:
            environment.write_github_files(changes, os.environ)
        else:
            sys.stdout.write(environment.shell_lines({name: value for name, (_, value) in changes.items()}))
    except ElasticGPUError as error:
        shutil.rmtree(directory)
        _fail(str(error), _code(error), shell=not github)
    if sys.stdout.isatty() and not github:
        _note('These commands changed nothing yet. Use: eval "$(egpu-sim start)"')


@app.command("stop")
def stop(
    directory: Annotated[
        Path | None, typer.Argument(envvar=environment.MACHINE, help="The machine's directory.", show_default=False)
    ] = None,
) -> None:
    """End the machine that `egpu-sim start` started, with eval "$(egpu-sim stop)".

    Prints the shell commands that restore the shell's variables.
    """
    if directory is None:
        _fail(f"{environment.MACHINE} is not set: this shell has no machine; `egpu-sim list` lists all", EXIT_USAGE)
    restored = environment.leave(directory, os.environ)
    try:
        machines.destroy(machines.open_machine(directory))
    except ElasticGPUError:  # its memory is gone: somebody removed it, or a reboot did
        shutil.rmtree(directory, ignore_errors=True)
    sys.stdout.write(environment.shell_lines(restored))


@app.command("profiles")
def profiles() -> None:
    """List the GPU models that can be simulated."""
    for name, profile in sorted(machines.profiles().items()):
        print(f"{name:16} {profile.name}, {profile.memory_mib} MiB")


@app.command("list")
def list_command() -> None:
    """List your simulated machines, with the memory that they use and their state.

    In use: a program runs on it. Kept: it waits for programs. Left: its owner is gone. Starting a machine removes it.
    """
    print(f"{'MACHINE':32} {'CARDS':>5} {'MEMORY':>12}   STATE")
    for one in list_machines():
        print(f"{one.name:32} {one.cards:5} {one.used_bytes >> 20:8} MiB   {one.state}")


@app.command("rm")
def remove(
    names: Annotated[list[str], typer.Argument(metavar="MACHINE...", help="Names from `egpu-sim list`.")],
) -> None:
    """Remove machines and the contents of their memory. Machines in use stay."""
    found = {one.name: one for one in list_machines()}
    for name in names:
        if name not in found:
            _fail(f"no machine {name}; `egpu-sim list` lists all", EXIT_USAGE)
        if not remove_unused(found[name]):
            _fail(f"machine {name} is in use; end its programs first", EXIT_FAILED)


@app.command("up")
def up(
    nodes: Annotated[int, typer.Option(min=1, max=64, help="Number of nodes.")] = 2,
    cards: Annotated[int, typer.Option(min=0, max=16, help="Number of GPUs of each node.")] = 4,
    profile: Annotated[
        list[str],
        typer.Option(
            help="GPU model to simulate, as in `egpu-sim profiles`. Repeatable: nodes use the models in turn."
        ),
    ] = [DEFAULT_PROFILE],
    kubeconfig: Annotated[Path | None, typer.Option(help="Also write the kubeconfig to this file.")] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Directory for logs and state. Default: a temporary one, removed at the end.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the API server. 0: any free one.")] = 0,
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File that names a program for each image. The built-in table serves all other images.",
        ),
    ] = None,
) -> None:
    """Start a small Kubernetes with simulated GPUs, and keep it until Ctrl-C. Bring your own device plugin.

    It has an API server, controllers, a scheduler and a kubelet for each node. Containers are processes of this
    machine.
    """
    from egpu_base.runtime import logs
    from egpu_sim.cluster.cluster import ClusterConfig

    logs.configure("cluster", level="warning")
    config = ClusterConfig(
        nodes=nodes, cards_per_node=cards, profiles=tuple(profile), kubeconfig=kubeconfig, state_dir=state_dir,
        port=port, images=images,
    )  # fmt: skip
    config.check()
    raise typer.Exit(run_until_signal(_stay_up(config), note=_note))


async def _stay_up(config: "ClusterConfig") -> None:
    from egpu_sim.cluster.cluster import Components, started

    began = time.monotonic()
    async with started(config, Components(), lambda step: _note(f"… {step}")) as running:
        models, node = ", ".join(config.profiles), running.node_dir("node-1")
        _note(f"ready after {time.monotonic() - began:.1f} s: {config.nodes} × {config.cards_per_node} GPUs ({models})")
        _note(f"device plugins of node-1 register at {node / 'kubelet' / 'device-plugins' / 'kubelet.sock'}")
        _note(f"they find its GPUs with LD_LIBRARY_PATH={node / 'machine' / 'driver'}")
        print(f"export KUBECONFIG={config.kubeconfig or running.kubeconfig}", flush=True)
        await until_cancelled()


def _execute(command: list[str], variables: dict[str, str]) -> int:
    """Run a program to its end, and pass signals on to it."""
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        if number == signal.SIGINT:
            return  # a terminal sends Ctrl-C to the program itself
        received.append(number)
        if child is not None:
            child.send_signal(number)

    child = None
    # Before the program starts: it may be sent a signal at once. It does not inherit these handlers.
    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        child = subprocess.Popen(command, env=variables)
        for number in received:
            child.send_signal(number)
        status = child.wait()
    except OSError as error:
        _fail(f"{command[0]}: {error.strerror}", EXIT_NOT_STARTED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _note(message: str) -> None:
    print(message, file=sys.stderr)


def _fail(message: str, code: int, *, shell: bool = False) -> NoReturn:
    """Print an error and exit. In `eval "$(…)"` only the printed commands count: `shell` makes them fail."""
    _note(f"error: {message}")
    if shell:
        print("false")
    raise typer.Exit(code)


def _code(error: ElasticGPUError) -> int:
    return EXIT_USAGE if isinstance(error, InvalidInput) else EXIT_NOT_STARTED


def main() -> None:
    """Run the command line."""
    try:
        app()
    except ElasticGPUError as error:
        _note(f"error: {error}")
        sys.exit(_code(error))
