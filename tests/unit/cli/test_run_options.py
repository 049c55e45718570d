"""`egpu run` refuses options that would have no effect, and names what the user may have meant."""

import pytest
from typer.testing import CliRunner

from egpu.adapters.local.holders import SliceRequest
from egpu.adapters.slices.pages import Mode
from egpu.adapters.slices.work import Kind
from egpu.cli.app import app
from egpu.cli.run import in_words
from egpu_sim.machines.models import suggestion


def said(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["run", *arguments, "--", "true"], env=environment)
    return done.exit_code, " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "17", "--simulate", "T4"], "--gpus: 17 is not between 1 and 16"),
        (["--no-ptx"], "--ptx needs --pool. A local slice keeps the compilers' output"),
        (["--secret-file", "secret"], "--secret-file needs --pool. A local slice uses no broker"),
        (["--tls-ca", "ca"], "--tls-ca needs --pool"),
        (["--memory", "lots", "--simulate", "T4"], "write a number of MiB such as 4096, or an amount with a"),
        (["--memory", "500m", "--simulate", "T4"], "'500m' is not a whole number of MiB"),
        (["--simulate", "H100"], "no profile 'H100' (did you mean H100-"),
        (["--simulate", "A100-80"], "did you mean A100-80G"),
        (["--simulate", "H10O-80G"], "did you mean H100-80G"),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_refused(arguments: list[str], words: str) -> None:
    code, message = said(*arguments)
    assert (code, words in message) == (2, True), message


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        (Mode.CAP, Kind.LATENCY, "Guaranteed: 30 % of the card's time, latency work"),
        (Mode.SHARE, Kind.BATCH, "Burstable: 30 % of the card's time and up to 100 % while others are idle, batch"),
    ],
)
def test_a_slice_is_described_by_its_guarantee_its_limit_and_its_kind(mode: Mode, kind: Kind, words: str) -> None:
    assert in_words(SliceRequest(core=30, memory_mib=1024, mode=mode, kind=kind)).startswith(words)


def test_nothing_alike_is_no_suggestion() -> None:
    assert suggestion("Voodoo2") == suggestion("") == ""
