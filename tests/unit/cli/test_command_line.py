"""The command line without a cluster: help, versions and errors."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import egpu
from egpu.cli.app import PANELS, app, run_app

COMMANDS = [name for names in PANELS.values() for name in names]


class Call:
    """Run `egpu ARGUMENTS` in this process without a cluster. Returns exit code, stdout and stderr."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.delenv("KUBECONFIG", raising=False)

    def __call__(self, *arguments: str) -> tuple[object, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["egpu", *arguments])
        with pytest.raises(SystemExit) as ended:
            run_app()
        out, err = self._capsys.readouterr()
        return ended.value.code, out, err

    def wrong(self, code: int, *arguments: str) -> str:
        """Return its stderr. Check the exit code, an empty stdout and a stderr without traceback."""
        got, out, err = self(*arguments)
        assert (got, out) == (code, ""), out + err
        assert "Traceback" not in err
        assert "\x1b" not in err
        return err


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    return Call(monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_explains_itself(command: str):
    for flag in ("--help", "-h"):
        done = CliRunner().invoke(app, [*command.split(), flag])
        assert done.exit_code == 0
        assert "Usage:" in done.output
    assert {"demo", "up", "run", "get", "explain", "version"} <= set(COMMANDS)


def test_a_process_loads_only_the_module_of_its_command() -> None:
    script = """
import sys
from egpu.cli.app import app
try:
    app(["extender", "--help"])
except SystemExit:
    print([name for name in ("egpu.cli.doctor", "egpu.cli.simulate", "cryptography", "numpy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_agent_with_a_shim_refuses_options_of_executors(call: Call) -> None:
    assert "give --cgroup" in call.wrong(2, "agent", "--node", "n", "--shim", "--executor-memory", "4096")


def test_version():
    def out(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["version", *arguments])
        assert done.exit_code == 0
        return done.output

    assert out() == f"egpu {egpu.__version__}\n"
    assert json.loads(out("-o", "json")) == yaml.safe_load(out("-o", "yaml")) == {"version": egpu.__version__}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("get", "no kind is given. Use egpu get nodes|gpus|claims|pods"),
        ("get cows", "'cows' cannot be listed"),
        ("get pods -A -n default", "exclude each other"),
        ("get pods --watch", "kubectl get -w"),
        ("get gpus -o xml", "xml"),
        ("explain card n", "pod"),
        ("explain pod", "name"),
        ("up --nodes 0", "--nodes"),
        ("up --nodes many", "--nodes"),
        ("up --nodes 1000", "nodes"),
        ("up --gpus 99", "gpus"),
        ("up --profile GTX-9000", "A100-80G"),
        ("up --node-policy alphabetical", "binpack"),
        ("up --port 70000", "--port"),
        ("up --state-dir /proc/nowhere", "state-dir"),
        ("up --state-dir /etc", "/etc has other files"),
        ("up --state-dir /tmp/" + "deep/" * 20, "use a shorter path"),
        ("frobnicate", "frobnicate"),
        ("extender --listen nonsense --kubeconfig /nope", "kubeconfig"),
    ],
)
def test_a_wrong_call_exits_2_with_a_reason(call: Call, arguments: str, words: str):
    assert words in call.wrong(2, *arguments.split())


@pytest.mark.parametrize("command", ["get gpus", "get pods -o json", "explain pod p"])
def test_no_cluster_is_one_clear_line(call: Call, tmp_path: Path, command: str):
    """Check that the error is one line without traceback, and says what to do."""
    refusing = tmp_path / "refusing"
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {"token": "t"}}]
    refusing.write_text(
        yaml.safe_dump({"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"})
    )
    garbage = tmp_path / "garbage"
    garbage.write_text("{{{")
    for kubeconfig, words in (
        (None, "egpu up"),
        (tmp_path / "missing", "missing"),
        (garbage, "garbage"),
        (refusing, "Check that the cluster of this kubeconfig still runs"),
    ):
        flags = [] if kubeconfig is None else ["--kubeconfig", str(kubeconfig)]
        text = call.wrong(1, *command.split(), *flags)
        assert words in text
        assert text.startswith("error: ")
        assert len(text.splitlines()) == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(shell: str):
    """Print the completion script for a shell, as that shell requests it."""
    environment = {"PATH": os.environ["PATH"], "_EGPU_COMPLETE": f"source_{shell}"}
    code = "import sys; sys.argv = ['egpu']; from egpu.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "_EGPU_COMPLETE" in done.stdout
    assert "\x1b" not in done.stdout


def called(*arguments: str, stdout: Any = subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "LC_", "EGPU_"))}
    program = [sys.executable, "-m", "egpu", *arguments]
    return subprocess.run(
        program, env={**kept, **environment}, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )


@pytest.mark.parametrize("arguments", [("version",), ("--help",), ("get", "--help"), ("version", "-o", "json")])
def test_a_full_disk_is_reported_in_one_line(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = called(*arguments, stdout=full)
    assert done.returncode == 1
    assert done.stderr.startswith("error: standard output: No space left on device; free some space")
    assert len(done.stderr.splitlines()) == 1


def test_a_full_disk_is_reported_without_buffering_too() -> None:
    with Path("/dev/full").open("w") as full:
        done = called("version", stdout=full, PYTHONUNBUFFERED="1")
    assert done.returncode == 1
    assert done.stderr.startswith("error: No space left on device; free some space")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
def test_help_works_in_a_limited_encoding(encoding: str) -> None:
    done = called("get", "--help", PYTHONIOENCODING=encoding, LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, "")
    assert "List cards, nodes, claims or pods" in done.stdout


def test_missing_characters_are_replaced(capfd: pytest.CaptureFixture[str]) -> None:
    script = "from egpu.cli.surroundings import prepare_streams as p; p(); print('██░ … 60 × 2 → é')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    assert capfd.readouterr().out == "##. ... 60 x 2 -> ?\n"


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EMFILE, errno.EADDRINUSE, errno.EIO])
def test_system_errors_come_with_a_remedy(call: Call, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "/some/where\x1b[2J")

    monkeypatch.setattr("egpu.cli.app.show_value", refused)
    said = call.wrong(1, "version", "-o", "json")
    assert said.startswith("error: /some/where")
    assert os.strerror(number) in said
    assert "; " in said
    monkeypatch.setenv("EGPU_TRACEBACK", "1")
    monkeypatch.setattr(sys, "argv", ["egpu", "version", "-o", "json"])
    with pytest.raises(OSError, match="/some/where"):
        run_app()


@pytest.mark.parametrize("command", ["get leases", "get servers", "resize lease-1 --core 30"])
def test_a_missing_broker_is_reported_at_once(call: Call, command: str) -> None:
    assert call.wrong(1, *command.split(), "--pool", "127.0.0.1:1") == (
        "error: 127.0.0.1:1 does not answer: Connection refused. Start a broker with `egpu broker`, "
        "or give its address with --pool\n"
    )


def test_a_missing_pool_secret_is_reported_before_the_program_starts(call: Call, tmp_path: Path) -> None:
    said = call.wrong(2, "run", "--pool", "127.0.0.1:1", "--memory", "1GiB", "--", "true")
    assert said.startswith(f"error: secret-file: cannot read {tmp_path}/.egpu/pool.secret: No such file or directory; ")
    assert "`egpu broker` makes it" in said
    assert len(said.splitlines()) == 1


READ_ONLY = 'mount -t tmpfs -o ro none "$0" && exec "$@"'


@pytest.mark.parametrize(
    ("place", "command", "code", "said"),
    [
        ("home", ["broker", "--listen", "127.0.0.1:0"], 1, "/.egpu: Read-only file system; use a writable directory"),
        (
            "home",
            ["serve", "--name", "a", "--simulate", "T4"],
            1,
            "/.egpu: Read-only file system; use a writable directory",
        ),
        (
            "/dev/shm",
            ["run", "--simulate", "T4", "--state-dir", "state", "--", "true"],
            125,
            "mount a tmpfs there that everybody can",
        ),
        ("/dev/shm", ["up", "--nodes", "1"], 1, "mount a tmpfs there that everybody can"),
        ("/dev/shm", ["demo"], 1, "mount a tmpfs there that everybody can"),
    ],
)
def test_a_read_only_directory_is_reported_with_a_remedy(
    tmp_path: Path, place: str, command: list[str], code: int, said: str
) -> None:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    home = tmp_path / "home"
    home.mkdir()
    at = home if place == "home" else place
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", READ_ONLY, at, sys.executable, "-m", "egpu", *command],
        cwd=tmp_path, env={**os.environ, "HOME": str(home), "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("…"))
    assert line.startswith("error: ")
    assert said in line


def test_the_version_option(call: Call) -> None:
    assert call("--version") == (0, f"egpu {egpu.__version__}\n", "")


def test_errors_of_egpu_run_do_not_go_to_stdout(tmp_path: Path) -> None:
    script = f"""
import structlog
from egpu.laptop import machines
from egpu.cli import main
from egpu_base.errors import Unavailable

def find_machine(*_, **__):
    structlog.get_logger("egpu").error("something went wrong beside the command")
    raise Unavailable("no machine")

machines.find_machine = find_machine
import sys
sys.argv = ["egpu", "run", "--state-dir", {str(tmp_path)!r}, "--", "true"]
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (125, "")
    assert "something went wrong" in done.stderr
