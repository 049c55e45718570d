"""`egpu install`, `egpu upgrade` and `egpu uninstall`: an installation on Kubernetes, with one command each."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from egpu.adapters.installation import NAMESPACE, Document, installation, source
from egpu.adapters.values import AS_DEPLOYED, Values, parse
from egpu.cli.components import Kubeconfig
from egpu.cli.embedding import steps
from egpu.cli.install_output import show_done, show_plan, show_removal, show_survey
from egpu.cli.output import EXIT_FAILED, Format, note
from egpu_base.errors import InvalidInput, Refused, Unavailable
from egpu_base.kubernetes import Client

if TYPE_CHECKING:
    from egpu.apps.install import Plan, Survey
    from egpu.apps.install.plan import Doing

WAIT_SECONDS = 300.0
"""Image pulls of a first installation take minutes."""

ValuesFile = Annotated[
    Path | None,
    typer.Option(
        "--values", metavar="FILE", exists=True, dir_okay=False, help="YAML file with values of the Helm chart."
    ),
]
Namespace = Annotated[str, typer.Option(help="Namespace of the installation.")]
Image = Annotated[str, typer.Option(help="Image of all components. Default: the one in the values.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and change nothing.")]
Wait = Annotated[float, typer.Option("--wait", metavar="SECONDS", min=1, help="Time limit for all waits together.")]
Try = Annotated[bool, typer.Option("--try/--no-try", help="Run a test pod on one node of each GPU model.")]
TrialClass = Annotated[
    str,
    typer.Option("--runtime-class", metavar="NAME", help="Runtime class of the test pods. Default: none."),
]
Output = Annotated[Format, typer.Option("-o", "--output", metavar="FORMAT", help="table (for people), json or yaml.")]


@dataclass(frozen=True)
class _Asked:
    """The options of a command."""

    kubeconfig: Path | None
    namespace: str
    values: Path | None
    image: str
    dry_run: bool
    wait: float
    trial: bool
    output: Format
    label_nodes: bool = False
    trial_class: str = ""


def install(
    kubeconfig: Kubeconfig = None,
    namespace: Namespace = NAMESPACE,
    values: ValuesFile = None,
    image: Image = "",
    dry_run: DryRun = False,
    wait: Wait = WAIT_SECONDS,
    trial: Try = True,
    trial_class: TrialClass = "",
    output: Output = Format.TABLE,
    label_nodes: Annotated[
        bool,
        typer.Option("--label-nodes", help="Label GPU nodes that the agents would not find: elasticgpu.io/node=true."),
    ] = False,
) -> None:
    """Install on Kubernetes: check the cluster, write all objects, wait, run test pods. After an error, repeat it."""
    asked = _Asked(kubeconfig, namespace, values, image, dry_run, wait, trial, output, label_nodes, trial_class)
    asyncio.run(_with_client(asked, "install"))


def upgrade(
    kubeconfig: Kubeconfig = None,
    namespace: Namespace = NAMESPACE,
    values: ValuesFile = None,
    image: Image = "",
    dry_run: DryRun = False,
    wait: Wait = WAIT_SECONDS,
    trial: Try = True,
    trial_class: TrialClass = "",
    output: Output = Format.TABLE,
) -> None:
    """Upgrade an installation to this version. Its values stay, unless you give --values. After an error, repeat it."""
    asked = _Asked(kubeconfig, namespace, values, image, dry_run, wait, trial, output, trial_class=trial_class)
    asyncio.run(_with_client(asked, "upgrade"))


async def _with_client(asked: _Asked, doing: "Doing") -> None:
    async with _connected(asked.kubeconfig) as client:
        await _write(client, asked, doing)


def _connected(kubeconfig: Path | None) -> Client:
    try:
        return Client.from_kubeconfig(kubeconfig)
    except InvalidInput as error:
        raise Unavailable(f"{' '.join(str(error).split())}. Name a cluster with --kubeconfig") from error


async def _write(client: Client, asked: _Asked, doing: "Doing") -> None:
    from egpu.apps.install import Deadline, Objects, Shape, label_nodes, plan, survey, trials, waiting_nodes
    from egpu.apps.install import install as write

    objects = Objects(client)
    documents = await _documents(objects, asked)
    found = await survey(client, asked.namespace, documents)
    planned = await plan(objects, documents, found, doing=doing)
    _show_plan(asked, found, planned)
    if planned.obstacles:
        raise Refused(f"nothing was changed: {'; '.join(planned.obstacles)}")
    if asked.dry_run:
        return
    if asked.label_nodes and found.unserved:
        await label_nodes(objects, found)
        found = await survey(client, asked.namespace, documents)
    deadline = Deadline(asked.wait)
    with steps() as progress:
        done = await write(objects, documents, deadline=deadline, progress=progress, prune=True)
        tried = (
            await trials(
                client,
                asked.namespace,
                Shape(_image(documents), runtime_class=asked.trial_class, pull_secrets=_pull_secrets(documents)),
                deadline=deadline,
                progress=progress,
            )
            if asked.trial and any(node.served for node in found.gpu_nodes)
            else None
        )
    show_done(done, found, tried, asked.output, waiting=await waiting_nodes(client))
    if tried and not all(one.works for one in tried):
        raise typer.Exit(EXIT_FAILED)


def _show_plan(asked: _Asked, found: "Survey", planned: "Plan") -> None:
    """Show cluster and plan: for people always, for programs only as the result of a dry run."""
    if asked.output.for_people:
        show_survey(found)
    if asked.output.for_people or asked.dry_run:
        show_plan(planned, found, asked.output)


async def _documents(objects: Any, asked: _Asked) -> list[Document]:
    """Return the objects of the installation, with the record of its values. Values that are not given stay as they
    were."""
    from egpu.apps.install import read_record, record, scheduler_tag

    before = await read_record(objects, asked.namespace)
    given = _values(asked.values)
    kept = before.values if before is not None else AS_DEPLOYED
    values = given if given is not None else kept
    if values.scheduler.mode == "own" and not values.scheduler.tag:
        values = replace(values, scheduler=replace(values.scheduler, tag=await scheduler_tag(objects)))
    image = asked.image or (before.image if before is not None and given is None else "")
    documents = installation(source(), values, namespace=asked.namespace, image=image)
    return [*documents, record(values, namespace=asked.namespace, image=image)]


def _values(file: Path | None) -> Values | None:
    return None if file is None else parse(file.read_text(), what=f"--values {file}")


def _agents_pod(documents: list[Document]) -> Document:
    (agent,) = (one for one in documents if one["kind"] == "DaemonSet" and one["metadata"]["name"].endswith("-agent"))
    return agent["spec"]["template"]["spec"]


def _image(documents: list[Document]) -> str:
    """Return the image of the agents."""
    return str(_agents_pod(documents)["containers"][0]["image"])


def _pull_secrets(documents: list[Document]) -> list[dict[str, str]]:
    """Return the Secrets with which the agents' image is pulled."""
    return _agents_pod(documents).get("imagePullSecrets", [])


def uninstall(
    kubeconfig: Kubeconfig = None,
    namespace: Namespace = NAMESPACE,
    keep_claims: Annotated[
        bool,
        typer.Option(
            "--keep-claims", help="Keep definitions (CRDs), claims, classes and cards for a new installation."
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Uninstall even if pods have cards. Programs that use an executor end.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    dry_run: DryRun = False,
    wait: Wait = WAIT_SECONDS,
    output: Output = Format.TABLE,
) -> None:
    """Remove an installation from Kubernetes, with the agents' entries in Node objects. After an error, repeat it."""
    asked = _Asked(kubeconfig, namespace, None, "", dry_run, wait, False, output)
    asyncio.run(_uninstall_at(asked, keep_claims=keep_claims, force=force, yes=yes))


async def _uninstall_at(asked: _Asked, *, keep_claims: bool, force: bool, yes: bool) -> None:
    from egpu.apps.install import REMOVING, Deadline, Objects, Removal, survey, uninstall, users

    async with _connected(asked.kubeconfig) as client:
        objects = Objects(client)
        documents = await _documents(objects, asked)
        found = await survey(client, asked.namespace, documents, verbs=REMOVING)
        if found.installer == "Helm":
            raise Refused("Helm installed Elastic GPU here: helm uninstall it, then run this command for the rest")
        if found.rights:
            raise Refused(f"you may not {', '.join(found.rights[:5])}: use a kubeconfig with the role cluster-admin")
        wanted = Removal(asked.namespace, documents, keep_claims=keep_claims, force=force)
        if asked.dry_run:
            there = [one for one in documents if await objects.find(one) is not None]
            show_removal(wanted, asked.output, would=there, users=await users(client))
            return
        if not yes:
            _confirm(found)
        deadline = Deadline(asked.wait)
        with steps() as progress:
            await uninstall(client, wanted, deadline=deadline, progress=progress)
        show_removal(wanted, asked.output)


def _confirm(found: "Survey") -> None:
    """Ask on a terminal. Raises InvalidInput where nobody can answer, or the answer is no."""
    question = f"Remove Elastic GPU from this cluster (Kubernetes {found.version}, {found.nodes} nodes)?"
    if not sys.stdin.isatty():
        raise InvalidInput("yes", "nobody can be asked here. Use --yes to uninstall without a question")
    if not typer.confirm(question, err=True):
        note("nothing was changed")
        raise typer.Exit(EXIT_FAILED)
