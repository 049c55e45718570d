"""`egpu top` and `egpu bill` find the sources of usage in the kubeconfig of `egpu up`."""

from pathlib import Path

import pytest
import yaml

from egpu.adapters.kubernetes.announced_usage import UsageSources, announce, announced, given_or_announced

SOURCES = UsageSources(("http://127.0.0.1:1/metrics", "http://127.0.0.1:2/metrics"), Path("/state/token"))


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    file = tmp_path / "config"
    config = {
        "clusters": [
            {"name": "other", "cluster": {"server": "https://other"}},
            {"name": "ours", "cluster": {"server": "https://ours", "extensions": [{"name": "x", "extension": {}}]}},
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "me"}} for name in ("other", "ours")],
        "users": [{"name": "me", "user": {"token": "t"}}],
        "current-context": "ours",
    }
    file.write_text(yaml.safe_dump(config))
    return file


def test_the_sources_are_in_the_cluster_of_the_current_context(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = yaml.safe_load(kubeconfig.read_text())
    announce(kubeconfig, UsageSources(("http://earlier",)))
    announce(kubeconfig, SOURCES)
    assert announced(kubeconfig) == SOURCES
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    assert announced(None) == SOURCES
    assert kubeconfig.stat().st_mode & 0o777 == 0o600
    after = yaml.safe_load(kubeconfig.read_text())
    assert [one["name"] for one in after["clusters"][1]["cluster"]["extensions"]] == ["x", "elasticgpu.io/usage"]
    after["clusters"][1]["cluster"]["extensions"].pop()
    assert after == before
    assert given_or_announced(["http://mine"], None, kubeconfig) == UsageSources(("http://mine",))
    assert given_or_announced([], None, kubeconfig) == SOURCES


@pytest.mark.parametrize("text", [None, "", "{", "clusters: []", "current-context: ours", "clusters: 7"])
def test_a_kubeconfig_without_sources_has_none(kubeconfig: Path, text: str | None) -> None:
    if text is not None:
        kubeconfig.write_text(text)
    assert announced(kubeconfig) == UsageSources()
    assert announced(kubeconfig.with_name("missing")) == UsageSources()


def test_sources_of_a_wrong_kind_are_none(kubeconfig: Path) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    extension = {"name": "elasticgpu.io/usage", "extension": {"urls": "http://one"}}
    config["clusters"][1]["cluster"]["extensions"] = [extension]
    kubeconfig.write_text(yaml.safe_dump(config))
    assert announced(kubeconfig) == UsageSources()
