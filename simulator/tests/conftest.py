"""Fixtures of several files. Nothing here may need the product: `make test` runs these tests without it."""

from support.simulated_fixtures import api, sim

__all__ = ["api", "sim"]
