"""Costs, beside what they could be at best. Some benchmarks use the tests' pool and remote driver."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
