"""`egpu demo`: everything this project does, on simulated GPUs, in a minute."""

import contextlib
import time
from typing import Annotated

import typer

from egpu.cli import views
from egpu.cli.embedding import run_until_signal, steps, until_cancelled
from egpu.cli.explain import explain_in, print_explanation
from egpu.cli.output import console, note, say, show
from egpu.cli.snapshot import load

NODES, CARDS_PER_NODE, CPU_NODES = 2, 3, 1


def demo(
    profile: Annotated[str, typer.Option(help="Model of the simulated GPUs.")] = "A100-80G",
    stay: Annotated[bool, typer.Option("--stay", help="Keep the cluster afterwards, until Ctrl-C.")] = False,
) -> None:
    """Start a cluster of simulated GPUs, run the example manifests on it, and show what happens.

    Exits with 1 if anything shown is not what it should be.
    """
    from egpu.runtime import logs

    logs.configure("cluster", level="error")
    raise typer.Exit(run_until_signal(_demo(profile, stay=stay)))


async def _demo(profile: str, *, stay: bool) -> int:
    from egpu.core.policies.registry import Policies
    from egpu.embedded import manifests
    from egpu.embedded.cluster import ClusterConfig, cluster
    from egpu.embedded.demo import SCENES, Outcome, Scene, Stage, refusal

    began = time.monotonic()
    failed: list[str] = []
    config = ClusterConfig(nodes=NODES, cards_per_node=CARDS_PER_NODE, cpu_nodes=CPU_NODES, profiles=(profile,))
    async with contextlib.AsyncExitStack() as stack:
        with steps() as progress:
            running = await stack.enter_async_context(cluster(config, progress))
        client = await stack.enter_async_context(running.client())
        stage = Stage(client, manifests.examples())
        cards = f"{NODES} nodes with {CARDS_PER_NODE} simulated {profile} each, and one without"
        _say(f"A cluster of {cards}, {_since(began)}.")

        def tell(title: str, outcome: Outcome) -> None:
            for line in outcome.proof:
                say(f"    {line}")
            if not outcome.ok:
                failed.append(title)
                console.print("    [red]this is not what it should be[/]")

        async def play(scene: Scene) -> None:
            _head(scene.title, scene.manifest)
            tell(scene.title, await stage.play(scene))

        for scene in SCENES:
            await play(scene)
        snapshot = await load(client)
        explanation = explain_in(snapshot, "default", "does-not-fit", policies=Policies.named())
        if explanation is not None:
            console.print("\n[dim]$ egpu explain pod does-not-fit[/]")
            print_explanation(explanation)
        _head("Not a demand that anybody can meet: refused, by field", "refused/demand.yaml")
        tell("refused/demand.yaml", await refusal(stage, "refused/demand.yaml"))
        for name, view in (("gpus", views.gpus(snapshot)), ("pods", views.pods(snapshot, None))):
            console.print(f"\n[dim]$ egpu get {name}[/]")
            show(view)
        for title in failed:
            note(title, label="failed:")
        done = "not everything was as it should be" if failed else "everything was as it should be"
        _say(f"\nDone {_since(began)}: {done}. To play on your own: egpu up")
        if stay and not failed:
            note(f"the cluster stays until Ctrl-C: export KUBECONFIG={running.kubeconfig}")
            await until_cancelled()
    return 1 if failed else 0


def _head(title: str, manifest: str) -> None:
    console.print(f"\n[bold]{title}[/]")
    console.print(f"    [dim]$ kubectl create -f examples/{manifest}[/]", highlight=False)


def _say(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def _since(began: float) -> str:
    return f"after {time.monotonic() - began:.1f} s"
