"""egpu-enter: private mounts that leave no trace, and a supervisor that nothing outlives."""

import ctypes
import errno
import os
import re
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from egpu.adapters import native
from egpu_base.system.processes import Process, start_time
from support.waiting import DEADLINE_SECONDS, wait_until

FAILED, NOT_FOUND = 125, 127
OPEN_TREE = 428
"""The number of the system call, on every architecture."""


def enter(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [native.path("egpu-enter"), *map(str, arguments)],
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
        **({"capture_output": True} | options),  # type: ignore[call-overload]
    )


@pytest.fixture
def mounts() -> None:
    probe = enter("--probe")
    if probe.returncode != 0:
        pytest.skip(probe.stdout.strip())


def test_the_probe_says_what_is_possible() -> None:
    probe = enter("--probe")
    assert probe.stdout.startswith("private mounts: yes" if probe.returncode == 0 else "no private mounts: ")


def refuse(call: int, error: int) -> None:
    """From now on, and in every program of this process, that system call does not exist (seccomp's BPF)."""
    libc = ctypes.CDLL(None, use_errno=True)
    load_number, if_equal, answer = 0x20, 0x15, 0x06
    code = b"".join(
        struct.pack("<HBBI", *instruction)
        for instruction in (
            (load_number, 0, 0, 0),
            (if_equal, 0, 1, call),
            (answer, 0, 0, 0x00050000 | error),
            (answer, 0, 0, 0x7FFF0000),  # any other is carried out
        )
    )
    room = ctypes.create_string_buffer(code)
    program = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(room))
    set_no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    if libc.prctl(set_no_new_privileges, 1, 0, 0, 0) or libc.prctl(set_seccomp, filter_mode, program, 0, 0):
        raise OSError(ctypes.get_errno(), "no filter")


@pytest.mark.usefixtures("mounts")
class TestOlderKernels:
    """Before Linux 5.2, and in gVisor, a tree of mounts cannot be held."""

    def test_what_is_shown_is_held_open(self, tmp_path: Path) -> None:
        """The second target covers the way to its source, and is read-only."""
        (tmp_path / "inner").mkdir()
        (tmp_path / "inner" / "file").write_text("hello")
        covered = tmp_path / "inner" / "deep" / "er"
        binds = ("--bind", tmp_path / "inner" / "file", "/opt/egpu-enter-test/file", "--ro-bind", tmp_path, covered)
        shell = f"cat /opt/egpu-enter-test/file {covered}/inner/file && ! touch {covered}/new"
        done = enter(*binds, "--", "sh", "-c", shell, preexec_fn=lambda: refuse(OPEN_TREE, errno.ENOSYS))
        assert (done.returncode, done.stdout) == (0, "hellohello"), done.stderr

    def test_the_probe_tries_what_is_used_later(self) -> None:
        assert enter("--probe", preexec_fn=lambda: refuse(OPEN_TREE, errno.ENOSYS)).returncode == 0
        done = enter("--probe", preexec_fn=lambda: refuse(OPEN_TREE, errno.EPERM))
        assert (done.returncode, done.stdout) == (
            1, "no private mounts: binding an open file: Operation not permitted\n",
        )  # fmt: skip


@pytest.mark.usefixtures("mounts")
class TestMounts:
    def test_a_path_that_does_not_exist_is_shown_and_leaves_no_trace(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("hello")
        target = "/opt/egpu-enter-test/deep/file"
        done = enter("--bind", tmp_path / "file", target, "--", "cat", target)
        assert (done.returncode, done.stdout) == (0, "hello")
        assert not Path("/opt/egpu-enter-test").exists()

    def test_even_at_the_root(self, tmp_path: Path) -> None:
        (tmp_path / "one").write_text("1")
        script = (
            "cat /egpu-enter-test/a/one /egpu-enter-test/b/c/one && touch /egpu-enter-test/a/two && test -d /usr/bin"
        )
        binds = ("--bind", tmp_path, "/egpu-enter-test/a", "--ro-bind", tmp_path, "/egpu-enter-test/b/c")
        done = enter(*binds, "--", "sh", "-c", script)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "11"
        assert (tmp_path / "two").exists(), "a bind is the thing itself"
        assert not Path("/egpu-enter-test").exists()

    def test_a_read_only_bind_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "policy").write_text("limits")
        done = enter(
            "--ro-bind", tmp_path / "policy", tmp_path / "policy", "--", "sh", "-c", f"echo > {tmp_path}/policy"
        )
        assert done.returncode != 0
        assert "Read-only file system" in done.stderr
        assert (tmp_path / "policy").read_text() == "limits"

    def test_neighbours_of_a_made_mount_point_stay(self, tmp_path: Path) -> None:
        (tmp_path / "there").write_text("x")
        (tmp_path / "link").symlink_to("there")
        (tmp_path / "file").write_text("y")
        done = enter(
            "--bind", tmp_path / "file", tmp_path / "new" / "file", "--",
            "sh", "-c", f"cat {tmp_path}/there {tmp_path}/link {tmp_path}/new/file",
        )  # fmt: skip
        assert done.stdout == "xxy"
        assert not (tmp_path / "new").exists()

    def test_a_mount_may_cover_the_sources_of_others_and_the_way_to_everything(self, tmp_path: Path) -> None:
        """Also the directory of the run, that of its log, /dev, and the current one."""
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_text(name)
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "log").symlink_to(tmp_path / "log")
        binds = ("--bind", tmp_path / "one", tmp_path, "--bind", tmp_path / "two", "/dev")
        script = f"cat {tmp_path}/file /dev/file; pwd"
        options = ("--chdir", "/", "--supervise", tmp_path / "run")
        done = enter(*binds, *options, "--", "sh", "-c", script, cwd=tmp_path / "two")
        assert done.returncode == 0, done.stderr
        wait_until((tmp_path / "run" / "exit").exists)
        (line,) = [line for line in (tmp_path / "log").read_text().splitlines() if "onetwo" in line]
        assert line.endswith("onetwo/")

    def test_parents_are_mounted_before_what_is_in_them(self, tmp_path: Path) -> None:
        """In any order of the options. A missing directory is made in the writable bind, for all who have it."""
        for name in ("outer", "inner", "deepest"):
            (tmp_path / name).mkdir()
            (tmp_path / name / name).touch()
        at = "/opt/egpu-enter-test"
        binds = ("--bind", tmp_path / "deepest", f"{at}/a/b/c", "--bind", tmp_path / "inner", f"{at}/a/b",
                 "--bind", tmp_path / "outer", at)  # fmt: skip
        done = enter(*binds, "--", "sh", "-c", f"ls {at} {at}/a/b {at}/a/b/c; touch {at}/new")
        assert done.stdout.split() == [
            f"{at}:", "a", "outer", f"{at}/a/b:", "c", "inner", f"{at}/a/b/c:", "deepest",
        ]  # fmt: skip
        assert (tmp_path / "outer" / "new").exists(), "the outer one stays the thing itself"
        assert (tmp_path / "outer" / "a" / "b").is_dir()

    def test_a_mount_point_in_a_read_only_bind_leaves_no_trace(self, tmp_path: Path) -> None:
        for name in ("outer", "inner"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_text(name)
        at = "/opt/egpu-enter-test"
        binds = ("--ro-bind", tmp_path / "outer", at, "--bind", tmp_path / "inner", f"{at}/in")
        done = enter(*binds, "--", "cat", f"{at}/file", f"{at}/in/file")
        assert done.stdout == "outerinner", done.stderr
        assert os.listdir(tmp_path / "outer") == ["file"]

    @pytest.mark.parametrize("target", ["/", "/proc", "/usr/..", "/proc/"])
    def test_the_root_and_proc_cannot_be_covered(self, target: str, tmp_path: Path) -> None:
        done = enter("--bind", tmp_path, target, "--", "true")
        assert (done.returncode, done.stdout) == (FAILED, "")
        assert f"cannot mount at {target}: a command needs / and /proc" in done.stderr

    def test_a_preload_survives_a_cleared_environment(self, tmp_path: Path) -> None:
        library = tmp_path / "libnothing.so"
        subprocess.run(["gcc", "-shared", "-o", library, "-x", "c", "/dev/null"], check=True)
        listed = Path("/etc/ld.so.preload")
        before = listed.read_text() if listed.exists() else None
        done = enter(
            "--preload",
            library,
            "--",
            "env",
            "-i",
            "/bin/sh",
            "-c",
            "grep -c libnothing.so /proc/self/maps; cat /etc/ld.so.preload",
        )
        count, *lines = done.stdout.splitlines()
        assert int(count) > 0, done.stderr
        assert lines[-1] == str(library)
        assert before is None or lines[: len(before.splitlines())] == before.splitlines()
        assert (listed.read_text() if listed.exists() else None) == before

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--bind", "/nonesuch", "/mnt/x"], "cannot open /nonesuch: No such file or directory"),
            (["--bind", "/etc/passwd", "/usr"], "/usr is a directory"),
            (["--bind", "relative", "/x"], "want an absolute path"),
            (["--preload", "/a b.so"], "cannot name a path with a space"),
            (["--chdir", "/nonesuch"], "cannot enter /nonesuch"),
        ],
    )
    def test_what_cannot_be_done_runs_nothing(self, arguments: list[str], message: str, tmp_path: Path) -> None:
        done = enter(*arguments, "--", "touch", tmp_path / "ran")
        assert done.returncode == FAILED
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "ran").exists()

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
    def test_an_ordinary_user_gets_the_same_in_a_user_namespace(self, tmp_path: Path) -> None:
        file = Path("/dev/shm") / f"egpu-enter-test-{os.getpid()}"
        file.write_text("hello")
        try:
            command = ["--bind", file, "/opt/egpu-enter-test/file", "--preload", "/lib/nonesuch.so", "--"]
            shell = ["sh", "-c", "id -u; cat /opt/egpu-enter-test/file /etc/ld.so.preload"]
            done = subprocess.run(
                [
                    *["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"],
                    native.path("egpu-enter"),
                    *command,
                    *shell,
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            if "no private mounts" in done.stderr:
                pytest.skip(done.stderr)
            assert done.stdout == "65534\nhello/lib/nonesuch.so\n"
        finally:
            file.unlink()


def test_environment_and_directory() -> None:
    done = enter(
        "--clear-env", "--env", "A=b=c", "--env", "B=", "--env", "PATH=/usr/bin:/bin", "--unset-env", "B",
        "--chdir", "/usr", "--", "sh", "-c", "pwd; env | grep -v -e ^PWD -e ^_ | sort",
    )  # fmt: skip
    assert done.stdout == "/usr\nA=b=c\nPATH=/usr/bin:/bin\n"


def test_statuses_are_those_of_a_shell() -> None:
    assert enter("--", "sh", "-c", "exit 7").returncode == 7
    assert enter("--", "nonesuch").returncode == NOT_FOUND
    assert enter("--", "/etc/passwd").returncode == 126
    assert enter().returncode == FAILED
    assert enter("--what", "--", "true").returncode == FAILED


LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (stdout|stderr) ([FP]) (.*)")


def logged(directory: Path) -> list[re.Match[str]]:
    """What a supervised command has said: stream, tag and text of each line."""
    found = [LINE.fullmatch(line) for line in (directory / "log").read_text().splitlines()]
    assert None not in found, "no line of the CRI's log format"
    return [line for line in found if line is not None]


class TestSupervise:
    def pid(self, directory: Path) -> tuple[Process, Process]:
        """The command and its supervisor."""
        fields = [int(word) for word in (directory / "pid").read_text().split()]
        return Process(fields[0], fields[1]), Process(fields[2], fields[3])

    def ended(self, directory: Path) -> tuple[int, int]:
        wait_until((directory / "exit").exists)
        status, number, when = (directory / "exit").read_text().split()
        assert abs(int(when) / 1e9 - time.time()) < 60
        return int(status), int(number)

    def test_it_returns_at_once_and_tells_the_end(self, tmp_path: Path) -> None:
        assert enter("--supervise", tmp_path / "c", "--", "sh", "-c", "echo out; echo err >&2; exit 7").returncode == 0
        command, _supervisor = self.pid(tmp_path / "c")
        assert self.ended(tmp_path / "c") == (7, 0)
        assert [line.groups() for line in logged(tmp_path / "c")] == [("stdout", "F", "out"), ("stderr", "F", "err")]
        assert not command.is_alive()

    def test_a_command_that_does_not_exist_ends_like_in_a_shell(self, tmp_path: Path) -> None:
        assert enter("--supervise", tmp_path / "c", "--", "nonesuch").returncode == 0
        assert self.ended(tmp_path / "c") == (127, 0)
        assert "cannot run nonesuch" in (tmp_path / "c" / "log").read_text()

    def test_a_long_line_comes_in_parts_and_the_last_needs_no_end(self, tmp_path: Path) -> None:
        script = "head -c 40000 /dev/zero | tr '\\0' x; echo; printf end"
        enter("--supervise", tmp_path / "c", "--", "sh", "-c", script)
        assert self.ended(tmp_path / "c") == (0, 0)
        *parts, last = [line.groups() for line in logged(tmp_path / "c")]
        assert [tag for _, tag, _ in parts] == ["P", "P", "F"]
        assert "".join(text for _, _, text in parts) == "x" * 40000
        assert last == ("stdout", "F", "end")

    def test_a_termination_signal_is_forwarded(self, tmp_path: Path) -> None:
        enter(
            "--supervise",
            tmp_path / "c",
            "--",
            "sh",
            "-c",
            "trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done",
        )
        wait_until(lambda: "ready" in (tmp_path / "c" / "log").read_text())
        os.kill(self.pid(tmp_path / "c")[1].pid, signal.SIGTERM)
        assert self.ended(tmp_path / "c") == (3, 0)

    def test_a_signal_that_ends_the_command_is_told(self, tmp_path: Path) -> None:
        enter("--supervise", tmp_path / "c", "--", "sleep", "1000")
        os.kill(self.pid(tmp_path / "c")[0].pid, signal.SIGKILL)
        assert self.ended(tmp_path / "c") == (128 + 9, 9)

    def test_nothing_outlives_the_command(self, tmp_path: Path) -> None:
        script = "setsid sh -c 'echo $$; exec sleep 1000' & sleep 0.2; (setsid sleep 1001 &) ; exit 0"
        enter("--supervise", tmp_path / "c", "--", "sh", "-c", script)
        assert self.ended(tmp_path / "c") == (0, 0)
        (said,) = logged(tmp_path / "c")
        assert start_time(int(said[3])) == 0

    def test_a_killed_supervisor_takes_the_command_with_it(self, tmp_path: Path) -> None:
        enter("--supervise", tmp_path / "c", "--", "sleep", "1000")
        command, supervisor = self.pid(tmp_path / "c")
        assert command.is_alive()
        os.kill(supervisor.pid, signal.SIGKILL)
        wait_until(lambda: not command.is_alive())
        assert not (tmp_path / "c" / "exit").exists(), "no exit file: nobody saw how it ended"

    def test_a_directory_that_cannot_be_written_is_an_error_at_once(self) -> None:
        done = enter("--supervise", "/proc/nonesuch", "--", "true")
        assert done.returncode == FAILED
        assert done.stderr.count("\n") == 1


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Starts a supervised `sleep` with these options of egpu-enter; answers its process."""
    directories: list[Path] = []

    def start(*options: object) -> int:
        directory = tmp_path / f"run-{len(directories)}"
        done = enter(*options, "--supervise", directory, "--", "sleep", "1000")
        assert done.returncode == 0, done.stderr
        directories.append(directory)
        return int((directory / "pid").read_text().split()[0])

    yield start
    for directory in directories:
        os.kill(int((directory / "pid").read_text().split()[2]), signal.SIGTERM)
        wait_until((directory / "exit").exists)


class TestJoin:
    """Another command beside one that runs, as in `kubectl exec`."""

    @pytest.mark.usefixtures("mounts")
    def test_it_sees_the_mounts_of_the_other(self, running: Callable[..., int], tmp_path: Path) -> None:
        (tmp_path / "file").write_text("inside\n")
        target = "/opt/egpu-enter-test/file"
        pid = running("--bind", tmp_path / "file", target)
        done = enter("--join", pid, "--", "cat", target)
        assert (done.returncode, done.stdout) == (0, "inside\n"), done.stderr
        assert enter("--", "cat", target).returncode == 1, "nobody else sees them"

    def test_its_streams_and_its_end_are_the_command_s(self, running: Callable[..., int]) -> None:
        done = enter("--join", running(), "--", "sh", "-c", "cat; echo error >&2; exit 7", input="hello\n")
        assert (done.returncode, done.stdout, done.stderr) == (7, "hello\n", "error\n")
        assert enter("--join", running(), "--", "sh", "-c", "kill -9 $$").returncode == 128 + 9

    def test_nothing_outlives_it(self, running: Callable[..., int]) -> None:
        done = enter("--join", running(), "--", "sh", "-c", "setsid sh -c 'echo $$; exec sleep 1000' & sleep 0.2")
        assert start_time(int(done.stdout)) == 0

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_it_ends_when_it_is_no_longer_wanted(self, running: Callable[..., int], number: signal.Signals) -> None:
        command = [
            native.path("egpu-enter"),
            "--join",
            str(running()),
            "--",
            "sh",
            "-c",
            "trap '' TERM HUP; echo $$; cat",
        ]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            inner = Process.of(int(process.stdout.readline()))
            process.send_signal(number)
            assert process.wait(DEADLINE_SECONDS) == FAILED
        assert not inner.is_alive()

    def test_a_terminal_is_its_controlling_one(self, running: Callable[..., int]) -> None:
        master, slave = os.openpty()
        try:
            command = ["--join", running(), "--terminal", "--", "sh", "-c", "echo $(tty) > /dev/tty"]
            done = enter(*command, stdin=slave, stdout=slave, stderr=slave, capture_output=False)
            assert done.returncode == 0
            assert os.read(master, 100).decode().strip() == os.ttyname(slave)
        finally:
            os.close(master)
            os.close(slave)

    def test_what_cannot_be_joined_is_said(self, running: Callable[..., int]) -> None:
        for wrong in ("nobody", "0x1", "-1", ""):
            done = enter("--join", wrong, "--", "true")
            assert (done.returncode, "want a process id" in done.stderr) == (FAILED, True)
        done = enter("--join", 2**22 + 1, "--", "true")
        assert (done.returncode, "cannot open" in done.stderr) == (FAILED, True)
        assert "--terminal" in enter("--join", running(), "--terminal", "--", "true", stdin=subprocess.DEVNULL).stderr
