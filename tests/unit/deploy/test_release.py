"""A release has checksums of all that was made, and says what it lacks for the rest; long steps say how they go on."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import release

STAGE = Path(__file__).parents[3] / "scripts" / "stage.sh"


def fake_wheel(source: str, target: Path) -> Path:
    target.mkdir(exist_ok=True)
    made = target / f"{source.strip('.') or 'product'}.whl"
    made.write_text(source)
    return made


def test_without_the_image_s_tools_the_wheels_are_made_and_what_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "wheel", fake_wheel)
    monkeypatch.setattr(release, "missing", lambda: ["root", "mmdebstrap"])
    monkeypatch.setattr(sys, "argv", ["release.py", str(tmp_path / "dist"), ".", "base"])
    release.main()
    assert "lacks root, mmdebstrap" in capsys.readouterr().err
    sums = (tmp_path / "dist/SHA256SUMS").read_text().splitlines()
    assert sums == [f"{hashlib.sha256(text).hexdigest()}  {name}"
                    for text, name in ((b".", "product.whl"), (b"base", "base.whl"))]  # fmt: skip


def staged(command: str) -> subprocess.CompletedProcess[str]:
    asked = [str(STAGE), "counting", "sh", "-c", command]
    return subprocess.run(asked, capture_output=True, text=True, check=False)


def test_a_stage_is_one_line_and_shows_all_output_only_if_it_fails() -> None:
    done = staged("echo noise")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("counting: done in ")
    assert len(done.stdout.splitlines()) == 1
    failed = staged("echo the reason; exit 3")
    assert (failed.returncode, failed.stdout) == (3, "")
    assert failed.stderr.splitlines()[0] == "the reason"
    assert failed.stderr.splitlines()[1].startswith("counting: failed after ")
