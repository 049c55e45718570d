"""`egpu manifests`: what deploy/ installs, with a site's own choices, for `kubectl apply -f -`."""

import re
import sys
from typing import Annotated, Final, Literal

import typer

from egpu.adapters.installation import NAMESPACE, Site, as_yaml, installation, source
from egpu.cli.components import Vocabularies, optional_vocabularies
from egpu.errors import InvalidInput

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

Cdi = Literal["auto", "always", "never"]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]


def manifests(
    namespace: Annotated[str, typer.Option(help="Where everything is installed.")] = NAMESPACE,
    image: Annotated[str, typer.Option(help="Image of every component. Default: elastic-gpu and the version.")] = "",
    pull_policy: Annotated[PullPolicy | None, typer.Option(help="When nodes pull it. Default: Kubernetes'.")] = None,
    node_selector: Annotated[
        list[str],
        typer.Option(metavar="LABEL=VALUE", help="Nodes that get an agent. Default: elasticgpu.io/node=true."),
    ] = [],  # noqa: B006  typer wants a list, and does not change it
    runtime_class: Annotated[
        str, typer.Option(help="Runtime class of the agents, such as nvidia. Default: the nodes' own runtime.")
    ] = "",
    cdi: Annotated[Cdi | None, typer.Option(help="Slots are CDI devices. Default: where nodes can.")] = None,
    pool: Annotated[bool, typer.Option("--pool", help="Every agent takes part in the pool.")] = False,
    extender_remote: Annotated[
        bool, typer.Option("--extender-remote", help="kube-schedulers on several nodes ask the extender.")
    ] = False,
    vocabularies: Vocabularies = "",
) -> None:
    """Print the manifests of an installation on Kubernetes, for `kubectl apply -f -`."""
    chosen = {"pool.yaml": pool, "extender-remote.yaml": extender_remote}
    site = Site(
        namespace=namespace,
        image=image,
        pull_policy=pull_policy or "",
        node_selector=dict(_label(text) for text in node_selector),
        runtime_class=runtime_class,
        cdi=cdi or "",
        patches=[name for name, wanted in chosen.items() if wanted],
        vocabularies=optional_vocabularies(vocabularies),
    )
    if not _DNS_LABEL.fullmatch(namespace):
        raise InvalidInput("namespace", f"{namespace!r} is not a name of lower-case letters, digits and dashes")
    sys.stdout.write(as_yaml(installation(source(), site)))


def _label(text: str) -> tuple[str, str]:
    label, equals, value = text.partition("=")
    if not label or not equals:
        raise InvalidInput("node-selector", f"{text!r} is not LABEL=VALUE, such as elasticgpu.io/node=true")
    return label, value
