"""What is generated for the remote pair is up to date, and numbers on the wire are not used twice."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_generated_files_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/generate.py"), "--check", "remote"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_number_has_one_meaning() -> None:
    rows = [
        line.split() for line in (ROOT / "native/wire/ops.txt").read_text().splitlines() if not line.startswith("#")
    ]
    for what in ("op", "kind"):
        numbers = [number for kind, number, _ in rows if kind == what]
        names = [name for kind, _, name in rows if kind == what]
        assert len(set(numbers)) == len(numbers)
        assert len(set(names)) == len(names)


def test_the_executor_decodes_only_what_a_client_sends() -> None:
    """Above all no older form of a call whose newer one it keeps account of."""
    sources = [*(ROOT / "native/remote").glob("**/*.c"), ROOT / "native/remote/client.h"]
    text = "\n".join(source.read_text() for source in sources)
    sent = set(re.findall(r"\bCALL\((cu\w+)\)", text)) | set(re.findall(r"\bOP_(cu\w+)", text))
    decoded = set(re.findall(r"\[OP_(cu\w+)\]", (ROOT / "native/executor/generated/decoders.c").read_text()))
    forwarded = set(re.findall(r"\bforward_(cu\w+)\(", (ROOT / "native/remote/generated/stubs.h").read_text()))
    called = re.sub(r"(?m)^CUresult forward_\w+", "", text)  # without the stubs' own definitions
    filled = {name for pair in re.findall(r"(?m)^FILL\w*\((cu\w+), [\w ]+, (cu\w+)\)", text) for name in pair}
    assert len(decoded) > 150
    assert decoded <= sent
    assert {name for name in forwarded if f"forward_{name}(" not in called} <= filled
    assert "cuDevicePrimaryCtxRelease_v2" in decoded
    assert "cuDevicePrimaryCtxRelease" not in decoded


def test_counts_of_64_bits_are_bounded_before_a_length_is_made_of_them() -> None:
    """A count near 2⁶² times the size of an element is a short length again: the library would read far beyond it."""
    decoders = (ROOT / "native/executor/generated/library_decoders.c").read_text().split("static CUresult decode_")
    wide = [
        (text, count)
        for text in decoders
        for count in set(re.findall(r"\* \(uint64_t\)(\w+)\)", text))
        if f"int64_t {count} = 0;" in text
    ]
    assert wide
    assert [text.partition("(")[0] for text, count in wide if f"library_check_count(task, {count});" not in text] == []
