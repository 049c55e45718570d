"""Certificates of the pool replaced while everybody runs, as docs/start/pool.md says."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from egpu.adapters.pool import authority
from egpu.adapters.pool.security import Role


def renewed(pki: Path, bearers: Sequence[tuple[Role, str]]) -> None:
    """New certificates of the same authority."""
    for role, name in bearers:
        authority.issue(pki, role, name)


def new_authority(pki: Path, bearers: Sequence[tuple[Role, str]]) -> Iterator[str]:
    """Yields after each step what holds now."""
    fresh = pki.with_name(f"{pki.name}-fresh")
    shutil.rmtree(fresh, ignore_errors=True)
    renewed(fresh, bearers)
    both = (fresh / "ca.crt").read_bytes() + (pki / "ca.crt").read_bytes()
    _replace(pki / "ca.crt", both)
    yield "both authorities are trusted"
    for role, name in bearers:
        for ending in ("key", "crt"):
            _replace(pki / f"{role}-{name}.{ending}", (fresh / f"{role}-{name}.{ending}").read_bytes())
    yield "certificates are of the new one"
    for name in ("ca.key", "ca.crt"):
        _replace(pki / name, (fresh / name).read_bytes())
    yield "only the new one is trusted"


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}")
    draft.write_bytes(content)
    draft.chmod(0o600)
    draft.rename(path)
