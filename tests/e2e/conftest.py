"""Places for end-to-end tests, and one fork server for all clusters."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import forked_commands
from support.commands import Place


@pytest.fixture
def place() -> Iterator[Place]:
    """Where a test runs `egpu` commands. A short path: there will be sockets below it."""
    with tempfile.TemporaryDirectory(prefix="egpu-test-", dir="/tmp") as root:
        yield Place(Path(root))


@pytest.fixture(scope="module", autouse=True)
def imported_once() -> Iterator[None]:
    with forked_commands.imported_once():
        yield
