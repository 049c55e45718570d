"""`egpu manifests`: the manifests of deploy/ with a site's settings, for `kubectl apply -f -`."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from msgspec.structs import replace

from egpu.adapters.installation import NAMESPACE, as_yaml, installation, source
from egpu.adapters.values import AS_DEPLOYED, REMOTE_OF_OWN, parse
from egpu.cli.components import Vocabularies, listed, optional_vocabularies
from egpu_base.errors import InvalidInput

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

Cdi = Literal["auto", "always", "never"]
SchedulerMode = Literal["own", "existing"]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]


def manifests(
    values: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="YAML file with values of the Helm chart. Other options override it.",
        ),
    ] = None,
    namespace: Annotated[str, typer.Option(help="Namespace of the installation.")] = NAMESPACE,
    image: Annotated[str, typer.Option(help="Image of all components. Default: elastic-gpu:VERSION.")] = "",
    pull_policy: Annotated[
        PullPolicy | None, typer.Option(help="Image pull policy. Default: that of Kubernetes.")
    ] = None,
    node_selector: Annotated[
        list[str],
        typer.Option(metavar="LABEL=VALUE", help="Nodes that run an agent. Default: nodes with NVIDIA's cards."),
    ] = [],
    runtime_class: Annotated[
        str, typer.Option(help="Runtime class of the agents, such as nvidia. Default: the nodes' default runtime.")
    ] = "",
    cdi: Annotated[Cdi | None, typer.Option(help="Use of CDI devices, as for `egpu agent`. Default: auto.")] = None,
    pool: Annotated[bool, typer.Option("--pool", help="Let pods use cards of other nodes (the pool).")] = False,
    scheduler: Annotated[
        SchedulerMode | None,
        typer.Option(
            help="own: run a second kube-scheduler, for GPU pods. existing: use the cluster's kube-scheduler."
        ),
    ] = None,
    scheduler_tag: Annotated[
        str, typer.Option(metavar="TAG", help="Version of the second kube-scheduler, never newer than the cluster's.")
    ] = "",
    schedulers: Annotated[
        str, typer.Option(metavar="NAMES", help="Further schedulers that ask the extender, joined by commas.")
    ] = "",
    extender_remote: Annotated[
        bool, typer.Option("--extender-remote", help="Let existing kube-schedulers on several nodes use the extender.")
    ] = False,
    vocabularies: Vocabularies = "",
) -> None:
    """Print the manifests of an installation on Kubernetes, for `kubectl apply -f -`."""
    if not _DNS_LABEL.fullmatch(namespace):
        raise InvalidInput("namespace", f"{namespace!r} is not a valid name. Use lower-case letters, digits and dashes")
    given = parse(values.read_text(), what=f"--values {values}") if values else AS_DEPLOYED
    nodes = dict(_label(text) for text in node_selector)
    chosen = replace(
        given,
        image=replace(given.image, **_given(pull_policy=pull_policy)),
        agent=replace(
            given.agent,
            **_given(
                node_selector=nodes,
                runtime_class=runtime_class,
                cdi=cdi,
                pool=pool,
            ),
        ),
        scheduler=replace(given.scheduler, **_given(mode=scheduler, tag=scheduler_tag, others=listed(schedulers))),
        extender=replace(given.extender, **_given(remote=extender_remote)),
        vocabularies=optional_vocabularies(vocabularies) or given.vocabularies,
    )
    if chosen.extender.remote and chosen.scheduler.mode == "own":
        raise InvalidInput("extender-remote", REMOTE_OF_OWN)
    sys.stdout.write(as_yaml(installation(source(), chosen, namespace=namespace, image=image)))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value}


def _label(text: str) -> tuple[str, str]:
    label, equals, value = text.partition("=")
    if not label or not equals:
        raise InvalidInput("node-selector", f"{text!r} is not LABEL=VALUE. Example: example.com/gpu=true")
    return label, value
