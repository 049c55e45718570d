"""`egpu demo` as a newcomer runs it."""

import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import generate_excerpt
import pytest
import walk_docs

from egpu.laptop.demo import SCENES
from egpu_sim.machines.machine import profiles
from support.commands import Place
from support.waiting import DEADLINE_SECONDS, wait_until

PROMISED = (
    # each example manifest, and what came of it
    "cuda-vector-add: vectoradd: 100000 elements",
    "vcuda-pod: vectoradd: 100000 elements",
    "test-cuda-1: vectoradd: 100000 elements",
    "qgpu-pod: vectoradd: 100000 elements",
    "pool-slice: vectoradd: 100000 elements",
    "notebook: matmul: ",
    # exactly at the limit of the slice
    "allocated 1677721600 bytes (1600 MiB)",  # a context has the rest
    "CUDA_ERROR_OUT_OF_MEMORY",
    "of its time: ok",
    # card by card
    "tenant-4 runs on node-",
    "does-not-fit is Pending: 0/3 nodes are available",
    "compute free, 60 % needed",
    "spec.containers[app].resources.limits[elasticgpu.io/gpu-core]: 150 percent is neither",
    # the tables
    "NODE     CARD   MODEL",
    "pod default/tenant-1",
    "all results are as expected",
)


@pytest.fixture(scope="module")
def demo() -> Iterator[tuple[Place, subprocess.CompletedProcess[str]]]:
    """One demo for all tests; its shared memory is looked for while it runs."""
    with tempfile.TemporaryDirectory(prefix="egpu-test-", dir="/tmp") as root:
        place = Place(Path(root))
        process = place.start("demo")
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            place.look()
            lines.append(line)
        code = process.wait(DEADLINE_SECONDS)
        process.stdout.close()
        yield place, subprocess.CompletedProcess("demo", code, "".join(lines), place.stderr())


def test_the_demo_shows_what_it_promises(demo: tuple[Place, subprocess.CompletedProcess[str]]):
    _, done = demo
    assert done.returncode == 0, done.stdout + done.stderr
    missing = [words for words in PROMISED if words not in done.stdout]
    assert not missing, done.stdout
    manifests = [f"examples/{scene.manifest}" for scene in SCENES]
    seeds = {f"examples/{path.name}" for path in Path(__file__).parents[2].glob("examples/seed-*.yaml")}
    assert seeds <= set(manifests)
    assert [name for name in manifests if name not in done.stdout] == []


def test_the_readme_shows_what_the_demo_prints(demo: tuple[Place, subprocess.CompletedProcess[str]]):
    readme = walk_docs.blocks("README.md", (walk_docs.ROOT / "README.md").read_text())
    (step,) = next(block for block in readme if block.text.startswith("$ make demo")).steps()
    assert walk_docs.difference(step, demo[1].stdout, excerpt=True) == ""
    generated = generate_excerpt.filled(step, demo[1].stdout)
    assert walk_docs.pattern(generated) == walk_docs.pattern(step.printed.strip() + "\n"), "only figures are others"
    words = {word for word in generated.split() if "…" not in word}
    assert words <= set(demo[1].stdout.split()), "and they are this run's"


def test_piped_output_is_plain_text(demo: tuple[Place, subprocess.CompletedProcess[str]]):
    _, done = demo
    assert "\x1b" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "… waiting until every component is ready" in done.stderr


def test_the_demo_leaves_nothing_behind(demo: tuple[Place, subprocess.CompletedProcess[str]]):
    """At its very end, not a moment later."""
    place, done = demo
    assert done.returncode == 0
    seen = sorted(path.name if path.name == "run" else path.name.rpartition("-")[0] for path in place.shared)
    what = "of each of three machines, its cards and what its kubelet keeps in memory: not seen while they ran"
    assert seen == ["egpu-sim-node-1", "egpu-sim-node-2", "egpu-sim-node-3", *["run"] * 3], what
    assert place.left_behind() == []


def test_the_smallest_card_and_the_shared_memory_that_docker_gives_are_enough(place: Place):
    smallest = min(profiles(), key=lambda name: profiles()[name].memory_mib)
    small = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh"]
    if subprocess.run([*small, "true"], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here: a /dev/shm of 64 MiB cannot be tried")
    done = place.run("demo", "--profile", smallest.lower(), inside=small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all results are as expected" in done.stdout
    assert place.left_behind() == []


def test_an_unknown_profile_is_a_usage_error(place: Place):
    done = place.run("demo", "--profile", "GTX-9000")
    assert done.returncode == 2, done.stderr
    assert "profile" in done.stderr
    assert "A100-80G" in done.stderr
    assert "Traceback" not in done.stderr
    assert place.left_behind() == []


@pytest.mark.parametrize("step", ["API server", "starting a kubelet", "waiting until"])
def test_ctrl_c_in_the_middle_of_the_start_leaves_nothing(place: Place, step: str):
    process = place.start("demo")
    wait_until(lambda: step in place.stderr() or process.poll() is not None)
    assert process.poll() is None
    place.look()
    process.send_signal(signal.SIGINT)
    code = process.wait(DEADLINE_SECONDS)
    assert process.stdout is not None
    process.stdout.close()
    assert "Traceback" not in place.stderr(), place.stderr()
    assert code == 130
    assert place.left_behind() == []
