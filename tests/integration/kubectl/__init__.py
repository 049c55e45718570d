"""kubectl binaries for the tests: Debian's 1.20, unpacked into the tree's cache, and whatever the machine has."""

import contextlib
import fcntl
import shutil
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "kubectl-1.20"
PACKAGE = "kubernetes-client"


def debian_kubectl() -> Path:
    """Debian's kubectl 1.20, downloaded once and unpacked without installing. Fails the test when it cannot be had."""
    binary = CACHE / "usr" / "bin" / "kubectl"
    with _one_at_a_time():
        if not binary.is_file():
            _fetch()
    return binary


@contextlib.contextmanager
def _one_at_a_time() -> Generator[None]:
    """Test workers fetch once between them."""
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with CACHE.with_name("kubectl.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch() -> None:
    staging = CACHE.with_name(f"{CACHE.name}.staging")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        if subprocess.run(["apt-get", "download", PACKAGE], cwd=staging, capture_output=True, check=False).returncode:
            # A new machine has no package lists: use some of our own, which needs no rights and changes nothing of its.
            lists = CACHE.with_name("apt-lists")
            (lists / "partial").mkdir(parents=True, exist_ok=True)
            own = ["-o", f"Dir::State::Lists={lists}", "-o", "APT::Sandbox::User=root"]
            _run(["apt-get", *own, "update"], staging)
            _run(["apt-get", *own, "download", PACKAGE], staging)
        packages = sorted(staging.glob(f"{PACKAGE}_*.deb"))
        if not packages:
            pytest.fail(f"apt-get download {PACKAGE} left no package in {staging}")
        _run(["dpkg", "-x", str(packages[0]), "."], staging)
        packages[0].unlink()
        shutil.rmtree(CACHE, ignore_errors=True)
        staging.rename(CACHE)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _run(command: list[str], directory: Path) -> None:
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=180, check=False)
    except OSError as error:
        pytest.fail(f"these tests need Debian's {PACKAGE} package, and {command[0]} cannot be run: {error}")
    if done.returncode:
        pytest.fail(
            f"these tests need Debian's {PACKAGE} package: `{' '.join(command)}` failed "
            f"(is the machine online?): {done.stderr.strip()}"
        )


@dataclass(frozen=True)
class Kubectl:
    """One binary, pointed at one server."""

    binary: Path
    kubeconfig: Path
    home: Path

    @property
    def path(self) -> str:
        """Where it finds plugins."""
        return "/usr/bin:/bin"

    @property
    def environment(self) -> dict[str, str]:
        return {"KUBECONFIG": str(self.kubeconfig), "HOME": str(self.home), "PATH": self.path, "TZ": "UTC"}

    def run(self, *arguments: str, stdin: str | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run it; the caller looks at the exit code."""
        return subprocess.run(
            [str(self.binary), *arguments],
            input=stdin,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        """Run it and return what it prints; a failure fails the test with what it said."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout
