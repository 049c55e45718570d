"""What things cost, beside what they could cost. Some of it runs what the tests make: a pool, a remote driver."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
