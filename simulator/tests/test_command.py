"""`egpu-sim` as people call it: a program on a machine of its own, a shell with a machine, a cluster alone."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from egpu_sim.machines.shared_memory import list_machines
from support.waiting import DEADLINE_SECONDS, wait_until

EGPU_SIM = [sys.executable, "-c", "from egpu_sim.cli import main; main()"]


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Machines' directories go here. A short path: there will be sockets below it."""
    with tempfile.TemporaryDirectory(prefix="egpu-sim-test-", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def called(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run([*EGPU_SIM, *arguments], env=environment, capture_output=True, text=True, check=False)


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in which `egpu-sim` is ours."""
    program = folder / "bin" / "egpu-sim"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from egpu_sim.cli import main; main()" "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    return subprocess.run(["bash", "-ec", script], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("run", "--profile", "H100-80G", "--", "egpu-sample-vectoradd"), 0, ""),
        (("run", "--", "sh", "-c", "exit 7"), 7, ""),
        (("run", "--", "sh", "-c", "kill -TERM $$"), 143, ""),
        (("run", "--", "no-such-program"), 125, "error: no-such-program: No such file or directory"),
        (("run", "--profile", "GTX", "--", "true"), 2, "error: profile: 'GTX' is not known; known are A100-40G"),
        (("rm", "nothing"), 2, "error: no machine nothing; `egpu-sim list` lists all"),
        (("stop",), 2, "error: EGPU_SIM_MACHINE is not set: this shell has no machine"),
        (("stop", "/tmp"), 2, "error: DIRECTORY: /tmp has no machine of `egpu-sim start`"),
        (("up", "--profile", "GTX"), 2, "error: profile: 'GTX' is not known"),
    ],
)
def test_exit_codes_and_errors(arguments: tuple[str, ...], code: int, message: str, own_folder: Path) -> None:
    done = called(*arguments)
    assert (done.returncode, done.stderr[: len(message)]) == (code, message)
    assert list(own_folder.glob("egpu-sim-*")) == []


def test_a_machine_ends_with_its_program(own_folder: Path) -> None:
    done = called("run", "--cards", "2", "--", "sh", "-c", 'nvidia-smi -L; readlink "${LD_LIBRARY_PATH%%:*}/machine"')
    *cards, state = done.stdout.splitlines()
    assert len(cards) == 2, done.stderr
    assert not Path(state).exists()


def test_a_signal_reaches_the_program() -> None:
    script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done"
    with subprocess.Popen([*EGPU_SIM, "run", "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.send_signal(signal.SIGTERM)
        assert running.wait() == 9


def test_a_shell_keeps_its_machine_until_it_stops_it(own_folder: Path) -> None:
    script = """
        before=$(env | grep -v '^_=')
        eval "$(egpu-sim start --profile T4 --cards 2)"
        nvidia-smi -L
        egpu-sample-vectoradd
        if eval "$(egpu-sim start)"; then exit 3; fi
        directory=$EGPU_SIM_MACHINE
        eval "$(egpu-sim stop)"
        test ! -e "$directory"
        diff <(echo "$before" | sort) <(env | grep -vE '^(_|before|directory)=' | sort)
    """
    done = shell(script, own_folder)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stdout.count("Tesla T4 (UUID") == 2
    assert "vectoradd: 100000 elements on Tesla T4, 0 wrong: ok" in done.stdout
    assert 'error: this shell has a machine already; end it first: eval "$(egpu-sim stop)"' in done.stderr
    assert not [one for one in list_machines() if str(own_folder) in str(one.path)]


def test_a_shell_without_a_machine_fails(own_folder: Path) -> None:
    done = shell('eval "$(egpu-sim start --profile GTX)"; echo went on', own_folder)
    assert (done.returncode, done.stdout) == (1, "")


def test_later_steps_of_a_github_job_use_the_machine(own_folder: Path) -> None:
    files = {"GITHUB_ENV": str(own_folder / "env"), "GITHUB_PATH": str(own_folder / "path")}
    done = called("start", "--github", "--profile", "T4", **files)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    given = dict(line.split("=", 1) for line in Path(files["GITHUB_ENV"]).read_text().splitlines())
    folders = Path(files["GITHUB_PATH"]).read_text().splitlines()[::-1]
    later = {**os.environ, **given, "PATH": ":".join([*folders, os.environ["PATH"]])}
    shown = subprocess.run(["nvidia-smi", "-L"], env=later, capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("GPU 0: Tesla T4")
    assert called("stop", **given).returncode == 0
    assert called("start", "--github").stderr.startswith("error: --github: GITHUB_ENV and GITHUB_PATH are not set")


def test_a_cluster_without_a_product_runs_a_pod_and_ends_with_ctrl_c(own_folder: Path) -> None:
    log = own_folder / "log"
    with log.open("w") as said:
        command = [*EGPU_SIM, "up", "--nodes", "1", "--cards", "1", "--profile", "T4"]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True)
    try:
        assert running.stdout is not None
        name, _, kubeconfig = running.stdout.readline().strip().partition("=")
        assert name == "export KUBECONFIG", log.read_text()

        def kubectl(*arguments: str) -> str:
            command = ["kubectl", "--kubeconfig", kubeconfig, *arguments]
            return subprocess.run(command, capture_output=True, text=True, check=False).stdout

        kubectl("run", "hello", "--image=any", "--restart=Never", "--command", "--", "echo", "hello")
        wait_until(lambda: kubectl("get", "pod", "hello", "-o", "jsonpath={.status.phase}") == "Succeeded", "the pod")
        assert kubectl("logs", "hello") == "hello\n"
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=DEADLINE_SECONDS) == 0
    finally:
        running.kill()
        running.wait()
    assert list(own_folder.iterdir()) == [log]
    assert "ready after" in log.read_text()
