"""`egpu demo`: a tour of the features on simulated GPUs, in a minute."""

import contextlib
import time
from typing import Annotated

import typer

from egpu.cli import views
from egpu.cli.embedding import steps
from egpu.cli.explain import explain_in, print_explanation
from egpu.cli.output import console, note, say, show
from egpu.cli.snapshot import load
from egpu_base.runtime.foreground import run_until_signal, until_cancelled

NODES, CARDS_PER_NODE, CPU_NODES = 2, 3, 1


def demo(
    profile: Annotated[str, typer.Option(help="GPU model to simulate, as in `egpu-sim profiles`.")] = "A100-80G",
    stay: Annotated[bool, typer.Option("--stay", help="Keep the cluster running afterwards, until Ctrl-C.")] = False,
) -> None:
    """Start a cluster of simulated GPUs, run the example manifests on it, and show the results.

    Exit code 1 if a result is not as expected.
    """
    from egpu_base.runtime import logs

    logs.configure("cluster", level="error")
    raise typer.Exit(run_until_signal(_demo(profile, stay=stay), note=note))


async def _demo(profile: str, *, stay: bool) -> int:
    from egpu.core.policies.registry import Policies
    from egpu.laptop import manifests
    from egpu.laptop.cluster import ClusterConfig, cluster
    from egpu.laptop.demo import SCENES, Outcome, Scene, Stage, refusal

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
                console.print("    [red]not the expected result[/]")

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
        _head("An invalid demand: refused, with the field's name", "refused/demand.yaml")
        tell("refused/demand.yaml", await refusal(stage, "refused/demand.yaml"))
        for name, view in (("gpus", views.gpus(snapshot)), ("pods", views.pods(snapshot, None))):
            console.print(f"\n[dim]$ egpu get {name}[/]")
            show(view)
        for title in failed:
            note(title, label="failed:")
        done = "some results are not as expected" if failed else "all results are as expected"
        _say(f"\nDone {_since(began)}: {done}. To try your own manifests: egpu up")
        if stay and not failed:
            note(f"the cluster runs until Ctrl-C. To use it: export KUBECONFIG={running.kubeconfig}")
            await until_cancelled()
    return 1 if failed else 0


def _head(title: str, manifest: str) -> None:
    console.print(f"\n[bold]{title}[/]")
    console.print(f"    [dim]$ kubectl create -f examples/{manifest}[/]", highlight=False)


def _say(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def _since(began: float) -> str:
    return f"after {time.monotonic() - began:.1f} s"
