"""Never a byte over the limit: eight processes allocate through every path at once and are killed at random stores.

EGPU_STORM_ROUNDS=20000 makes it longer and holds the survivors to 100 ms, EGPU_STORM_SEED another storm.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.slices import LIBRARY, MIB, SANITIZER, SOURCES, Slice, build_driver, compile_interposer

ROUNDS = int(os.environ.get("EGPU_STORM_ROUNDS", "300" if SANITIZER else "1000"))
BY_HAND = "EGPU_STORM_ROUNDS" in os.environ
SEED = int(os.environ.get("EGPU_STORM_SEED", "20261"))
WORKERS = 8


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Slice]:
    driver = tmp_path / "driver"
    driver.mkdir()
    build_driver(driver)
    deadly = driver / f"deadly-{LIBRARY}"
    compile_interposer(deadly, "-DEGPU_KILL_POINTS", SOURCES / "kill_point.c")
    slice_directory = tmp_path / "slice"
    slice_directory.mkdir()
    box = Slice(driver, slice_directory, library=deadly)
    yield box
    box.close()


@pytest.mark.timeout(900)
def test_no_byte_over_the_limit_whoever_is_killed_and_whenever(box: Slice) -> None:
    limit = 64 * MIB
    box.limit(limit)
    ledger = box.ledger()
    ledger.write_bytes(struct.pack("<q", limit) + ledger.read_bytes()[8:])
    child = box.start(ROUNDS, WORKERS, SEED, program="storm", FAKE_LEDGER=str(ledger))
    output, errors = child.communicate(timeout=800)
    assert errors == ""
    assert child.returncode == 0, output
    words = output.split()
    found = dict(zip(words[0::2], words[1::2], strict=True))
    assert int(found["storm"]) == ROUNDS
    assert int(found["over"]) == 0, "bytes that the living held beyond the limit, as the driver saw it"
    assert found["accounts"] == found["kept"], "the survivors' account is exactly what they hold"
    assert 0 <= float(found["exact_ms"]) <= (100 if BY_HAND and not SANITIZER else 60_000)
    assert int(found["notes"]) > 50 * ROUNDS, "they did allocate"
    totals = box.usage().devices[0]
    assert totals.refusals > 0, "the limit was reached"
    assert totals.reaped_bytes > 0
