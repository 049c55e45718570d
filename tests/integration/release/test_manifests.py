"""`egpu manifests` prints what kubectl's own kustomize makes of deploy/."""

import re
import shutil
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from egpu.adapters.installation import Document
from egpu.cli.app import app
from integration.kubectl import ROOT, Kubectl, debian_kubectl

DEPLOY = ROOT / "deploy"
OWN = shutil.which("kubectl", path="/usr/local/bin:/usr/bin:/bin")


OF_THE_CLUSTER = {
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


def by_name(text: str) -> dict[str, Document]:
    found = [one for one in yaml.safe_load_all(text) if one]
    for one in found:
        if one["kind"] in OF_THE_CLUSTER:
            one["metadata"].pop("namespace", None)  # from kustomize, older than the kind; API servers drop it
        if one["kind"] == "DaemonSet" and not one["spec"]["template"]["spec"].get("nodeSelector"):
            one["spec"]["template"]["spec"].pop("nodeSelector", None)  # kustomize leaves out an empty one
    named = {f"{one['kind']} {one['metadata'].get('namespace', '')}/{one['metadata']['name']}": one for one in found}
    assert len(named) == len(found)
    return named


def printed(*options: str) -> dict[str, Document]:
    done = CliRunner().invoke(app, ["manifests", *options])
    assert done.exit_code == 0, done.output
    return by_name(done.stdout)


@pytest.mark.parametrize("binary", [None, *([OWN] if OWN else [])], ids=lambda binary: "own" if binary else "1.20")
def test_kustomize_agrees(binary: str | None, tmp_path: Path) -> None:
    kubectl = Kubectl(Path(binary) if binary else debian_kubectl(), tmp_path / "none", tmp_path)
    assert by_name(kubectl("kustomize", str(DEPLOY))) == printed()


@pytest.mark.skipif(OWN is None, reason="Debian's kubectl knows no patches with a target, and there is no other")
def test_kustomize_agrees_about_what_is_in_comments(tmp_path: Path) -> None:
    """Every patch taken in, and another namespace and image."""
    folder = tmp_path / "deploy"
    shutil.copytree(DEPLOY, folder)
    file = folder / "kustomization.yaml"
    text = re.sub(r"^# (components:|patches:|  .*)$", r"\1", file.read_text(), flags=re.MULTILINE)
    text = text.replace("namespace: elastic-gpu-system", "namespace: gpus")
    file.write_text(text.replace("newTag: 0.1.0", "newName: registry.example/elastic-gpu\n    newTag: dev"))
    assert [patch["path"] for patch in yaml.safe_load(file.read_text())["patches"]] == [
        "pool.yaml",
        "existing/extender-remote.yaml",
    ]
    kubectl = Kubectl(Path(str(OWN)), tmp_path / "none", tmp_path)
    values = tmp_path / "values.yaml"
    values.write_text("criticalPodsQuota: true\nsecurityContextConstraints: true\n")
    options = (
        f"--values={values}",
        "--namespace=gpus",
        "--image=registry.example/elastic-gpu:dev",
        "--pool",
        "--extender-remote",
        "--scheduler=existing",
    )
    assert by_name(kubectl("kustomize", str(folder))) == printed(*options)


@pytest.mark.parametrize(
    ("option", "said"),
    [("--namespace=Not_A_Name", "Not_A_Name"), ("--node-selector=gpu", "LABEL=VALUE"), ("--pull-policy=Now", "Now")],
)
def test_what_cannot_be_is_refused(option: str, said: str) -> None:
    done = CliRunner().invoke(app, ["manifests", option])
    assert done.exit_code != 0
    assert done.stdout == ""
    assert said in f"{done.exception}{done.output}"


def test_the_agents_runtime_class_and_cdi() -> None:
    agent = printed("--runtime-class=nvidia", "--cdi=never")["DaemonSet elastic-gpu-system/elastic-gpu-agent"]
    pod = agent["spec"]["template"]["spec"]
    assert pod["runtimeClassName"] == "nvidia"
    assert [text for text in pod["containers"][0]["args"] if text.startswith("--cdi=")] == ["--cdi=never"]


def test_a_file_of_values_is_the_charts_and_options_change_it(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("agent: {runtimeClass: nvidia, cdi: never}\nwebhook: {tolerations: [{operator: Exists}]}\n")
    found = printed(f"--values={file}", "--cdi=always")
    agent, webhook = (
        found[f"{kind} elastic-gpu-system/elastic-gpu-{name}"]["spec"]["template"]["spec"]
        for kind, name in (("DaemonSet", "agent"), ("Deployment", "webhook"))
    )
    assert (agent["runtimeClassName"], webhook["tolerations"]) == ("nvidia", [{"operator": "Exists"}])
    assert "--cdi=always" in agent["containers"][0]["args"]
    file.write_text("webhok: {}\n")
    done = CliRunner().invoke(app, ["manifests", f"--values={file}"])
    assert done.exit_code != 0
    assert "webhok" in f"{done.exception}{done.output}"
