"""Commands that tests run as forks end, speak and are ended as commands that were started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import forked_commands
from support.waiting import DEADLINE_SECONDS, wait_until


@pytest.mark.parametrize("arguments", [("version",), ("get", "cows"), ("get", "gpus"), ("explain", "--help")])
def test_a_fork_says_and_returns_the_same_as_a_start(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    forked = forked_commands.run(arguments, env=env, timeout=DEADLINE_SECONDS, cwd=tmp_path)
    started = subprocess.run(
        [sys.executable, "-m", "egpu", *arguments], env=env, cwd=tmp_path, check=False,
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)
    assert forked.args == started.args


def test_a_fork_has_its_own_directory_and_environment(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("{{{")
    for name in ("here", "there"):
        env = {"KUBECONFIG": name}
        done = forked_commands.run(["get", "gpus"], env=env, timeout=DEADLINE_SECONDS, cwd=tmp_path)
        assert done.returncode == 1
        assert ("Configuration file there not found" in done.stderr) == (name == "there")
        assert ("while parsing" in done.stderr) == (name == "here")


def test_a_fork_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    mark = str(tmp_path / "ready")
    command = ["broker", "--listen", "127.0.0.1:0", "--secret-file", mark]
    with pytest.raises(subprocess.TimeoutExpired) as raised:
        forked_commands.run(command, env={"HOME": str(tmp_path)}, timeout=1)
    assert raised.value.cmd[-1] == mark
    done = forked_commands.run(["version"], env={"HOME": str(tmp_path)}, timeout=DEADLINE_SECONDS, check=True)
    assert done.stdout


def test_a_running_fork_is_read_signalled_and_waited_for(tmp_path: Path) -> None:
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_text("0123456789abcdef" * 2)
    command = ["broker", "--listen", "127.0.0.1:0", "--secret-file", "secret"]
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        running = forked_commands.popen(command, env={}, cwd=tmp_path, stdout=subprocess.PIPE, stderr=stderr)
    assert isinstance(running, forked_commands.ForkedPopen)
    assert running.stdout is not None
    wait_until(lambda: "broker starts" in log.read_text(), log.read_text)
    assert running.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(0.01)
    running.terminate()
    assert running.wait(DEADLINE_SECONDS) == 0
    assert running.stdout.read() == ""
    running.stdout.close()
    running.kill()  # it has ended: nothing happens


def test_a_wrong_status_is_raised_when_it_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        forked_commands.run(["get", "cows"], env={"HOME": str(tmp_path)}, timeout=DEADLINE_SECONDS, check=True)


def test_a_variable_that_counts_at_a_start_makes_it_one(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PYTHONVERBOSE": "1"}
    done = forked_commands.run(["version"], env=env, timeout=DEADLINE_SECONDS)
    assert "import 'egpu'" in done.stderr
