"""Example command lines, printed at the end of each command's `--help`."""

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "demo": ("egpu demo", "egpu demo --profile T4 --stay"),
    "up": ("egpu up --nodes 3 --gpus 4 --profile A100-80G --profile T4", "egpu up --vocabularies hami"),
    "run": (
        "egpu run --core 30 --memory 2GiB -- python train.py",
        "egpu run --simulate T4 -- nvidia-smi",
        "egpu run --pool gpus.example:7433 --memory 2GiB -- python train.py",
    ),
    "resize": ("egpu resize LEASE --memory 4GiB --within 30",),
    "sim": ("egpu sim list", "egpu sim rm --all"),
    "sim list": ("egpu sim list -o wide",),
    "sim rm": ("egpu sim rm --all",),
    "selftest": ("egpu selftest --simulate A100-80G",),
    "get": (
        "egpu get gpus -w",
        "egpu get gpus --free --model a100 -l zone=a",
        "egpu get pods -n team-a -o json",
        "egpu get leases --pool gpus.example:7433",
    ),
    "top": ("egpu top", "egpu top --filter A100 | cat"),
    "explain": ("egpu explain pod trainer", "egpu explain claim team-a/notebook", "egpu explain node node-1"),
    "inspect": ("egpu inspect", "egpu inspect SLICE -o json"),
    "simulate": ("egpu simulate --policy default,fgd,best-fit --seed 42", "egpu simulate --add 2:A100:8:96000:786432"),
    "defrag": ("egpu defrag trainer -n team-a", "egpu defrag --raise-share --trace"),
    "bill": ("egpu bill --by namespace", "egpu bill --usage metrics.txt -o csv"),
    "export-trace": ("egpu export-trace --nodes nodes.csv --pods pods.csv",),
    "version": ("egpu version -o json",),
    "cordon": ("egpu cordon node-1/0",),
    "uncordon": ("egpu uncordon node-1/0",),
    "park": ("egpu park SLICE",),
    "wake": ("egpu wake SLICE",),
    "move": ("egpu move LEASE --check", "egpu move LEASE --to gpu-2"),
    "drain": ("egpu drain gpu-1", "egpu drain gpu-1 --undo"),
    "mig": ("egpu mig plan",),
    "mig plan": ("egpu mig plan", "egpu mig plan --mix mix.json -o json"),
    "install": ("egpu install --image registry.example/elastic-gpu:1", "egpu install --dry-run"),
    "upgrade": ("egpu upgrade --image registry.example/elastic-gpu:2",),
    "uninstall": ("egpu uninstall --keep-claims",),
    "manifests": ("egpu manifests --image registry.example/elastic-gpu:1 | kubectl apply -f -",),
    "doctor": ("egpu doctor", "egpu doctor trainer -n team-a", "egpu doctor --bundle report.tar.gz"),
    "webhook": ("egpu webhook --webhook-listen 0.0.0.0:8443",),
    "extender": ("egpu extender --node-policy binpack",),
    "agent": ("egpu agent --node node-1",),
    "shim": ("egpu shim --state-dir /var/lib/elasticgpu",),
    "controller": ("egpu controller --namespace elastic-gpu-system",),
    "dashboard": ("egpu dashboard --listen 127.0.0.1:8085", "egpu dashboard --usage http://127.0.0.1:8083/metrics"),
    "broker": ("egpu broker --listen 127.0.0.1:7433",),
    "serve": ("egpu serve --broker 127.0.0.1:7433 --simulate T4 --gpus 2",),
    "certificate": ("egpu certificate server node-1 --directory pki",),
}


def epilog(command: str) -> str:
    """Return the end of a command's help. Each line is a paragraph, because typer joins the lines of a paragraph."""
    return "\n\n".join(("[bold]Examples[/]", *(f"  {line}" for line in EXAMPLES[command])))
