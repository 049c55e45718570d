"""Paths of this machine that a container needs, and that one of its volumes covers."""

from pathlib import Path

import pytest

from egpu_sim.cluster.kubelet.covered import PLACE, Covered
from egpu_sim.cluster.kubelet.runtime import Bind


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """`hidden` and `memory`, with a file each, and links in `hidden` and `elsewhere` to directories of `memory`."""
    for name in ("hidden", "memory", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "hidden/run").symlink_to(tmp_path / "memory")
    (tmp_path / "elsewhere/run").symlink_to(tmp_path / "hidden/run")
    return tmp_path


def covered(disk: Path, *names: str) -> Covered:
    return Covered([Bind("/volume", str(disk / name)) for name in names])


@pytest.mark.parametrize("path", ["elsewhere/file", "memory/file", "memory"])
def test_a_path_beside_the_volumes_is_seen_as_it_is(disk: Path, path: str) -> None:
    one = covered(disk, "hidden")
    assert one.shown(disk / path) == str(disk / path)
    assert one.binds == []


def test_a_covered_file_is_shown_in_a_place_of_its_own(disk: Path) -> None:
    one = covered(disk, "hidden")
    shown = one.shown(disk / "hidden/file")
    assert shown.startswith(f"{PLACE}/")
    assert one.binds == [Bind(str(disk / "hidden/file"), shown)]


@pytest.mark.parametrize("path", ["hidden/run/file", "elsewhere/run/file", "hidden/run"])
def test_a_path_through_a_covered_link_is_seen_at_its_target(disk: Path, path: str) -> None:
    one = covered(disk, "hidden")
    assert one.shown(disk / path) == str((disk / path).resolve())
    assert one.binds == []


@pytest.mark.parametrize("path", ["hidden/run/file", "elsewhere/run/file", "memory/file"])
def test_a_path_whose_target_is_covered_has_a_place_too(disk: Path, path: str) -> None:
    one = covered(disk, "memory", "hidden")
    shown = one.shown(disk / path)
    assert one.binds == [Bind(str(disk / "memory/file"), shown)]


def test_links_lead_anew_to_what_a_container_sees(disk: Path) -> None:
    links = disk / "elsewhere/links"
    links.mkdir()
    (links / "dev").symlink_to(disk / "hidden/run/file")
    (links / "other").symlink_to(disk / "elsewhere/file")
    covered(disk, "hidden").link_anew(links)
    assert (links / "dev").readlink() == disk / "memory/file"
    assert (links / "other").readlink() == disk / "elsewhere/file"
