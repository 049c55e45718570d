"""Places for end-to-end tests."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import Place


@pytest.fixture
def place() -> Iterator[Place]:
    """Where a test runs `egpu` commands. A short path: there will be sockets below it."""
    with tempfile.TemporaryDirectory(prefix="egpu-test-", dir="/tmp") as root:
        yield Place(Path(root))
