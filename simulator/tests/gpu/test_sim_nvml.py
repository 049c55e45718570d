"""The simulated NVML, through nvidia-ml-py."""
# ruff: noqa: E501  statements of the programs inside read better on one line

from egpu_sim.machines.machine import Machine
from support.simulated_gpu import Program, run
from support.waiting import wait_until

CARDS = ("H100-80G", 8)


def test_cards(sim: Machine) -> None:
    said = run(
        sim,
        """
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(3)
        same = [n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h))),
                n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(n.nvmlDeviceGetPciInfo(h).busId))]
        m, m2 = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
        say([n.nvmlDeviceGetCount(), n.nvmlDeviceGetName(h), n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetMinorNumber(h), same,
             m.total == m2.total == m.free, n.nvmlDeviceGetCudaComputeCapability(h), n.nvmlDeviceGetMigMode(h),
             n.nvmlDeviceGetEccMode(h), n.nvmlSystemGetCudaDriverVersion(), n.nvmlSystemGetDriverVersion(),
             n.nvmlDeviceGetEnforcedPowerLimit(h), n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM), n.nvmlDeviceGetArchitecture(h),
             n.nvmlDeviceGetNvLinkState(h, 0), n.nvmlDeviceGetNvLinkState(h, 17)])
        """,
    )
    assert said == [
        8, "NVIDIA H100 80GB HBM3", sim.cards[3].uuid, 3, [3, 3], True, [9, 0], [0, 0], [1, 1], 13000, "580.95.05",
        700000, 1980, 9, 1, 0,
    ]  # fmt: skip


def test_errors(sim: Machine) -> None:
    assert run(
        sim,
        """
        def error(call, *arguments):
            try: call(*arguments)
            except n.NVMLError as e: return [type(e).__name__, str(e)]
        early = error(n.nvmlDeviceGetCount)
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(0)
        late = [error(n.nvmlDeviceGetHandleByIndex, 8), error(n.nvmlDeviceGetHandleByUUID, "GPU-0"), error(n.nvmlDeviceGetMigDeviceHandleByIndex, h, 0),
                error(n.nvmlDeviceGetFanSpeed, h), error(n.nvmlDeviceGetNvLinkState, h, 18)]
        n.nvmlShutdown()
        say([early] + late + [error(n.nvmlShutdown)])
        """,
    ) == [
        ["NVMLError_Uninitialized", "Uninitialized"],
        ["NVMLError_InvalidArgument", "Invalid Argument"],
        ["NVMLError_NotFound", "Not Found"],
        ["NVMLError_NotSupported", "Not Supported"],
        ["NVMLError_NotSupported", "Not Supported"],
        ["NVMLError_InvalidArgument", "Invalid Argument"],
        ["NVMLError_Uninitialized", "Uninitialized"],
    ]


BUSY = """
context(2)
f = function(STORE.replace("DURATION", "30000"), "store")
a = upload(np.zeros(1, np.uint32))
say(os.getpid())
while True: ok(launch(f, 1, 1, a, (1, ctypes.c_uint32)))
"""

READ = """
n.nvmlInit()
h, idle = n.nvmlDeviceGetHandleByIndex(2), n.nvmlDeviceGetHandleByIndex(0)
try: samples = n.nvmlDeviceGetProcessUtilization(h, int(time.time() * 1e6) - 500_000)
except n.NVMLError_NotFound: samples = []
say([n.nvmlDeviceGetUtilizationRates(h).gpu, n.nvmlDeviceGetUtilizationRates(idle).gpu, sorted([s.pid, s.smUtil] for s in samples),
     n.nvmlDeviceGetPowerUsage(h) > n.nvmlDeviceGetPowerUsage(idle)])
"""


def test_utilisation_follows_the_work(sim: Machine) -> None:
    """The card's own, and each process's part of it, whatever else this computer is doing (hence the polling)."""
    with Program(sim, BUSY) as first:
        pid = first.hear()
        wait_until(lambda: run(sim, READ) == [100, 0, [[pid, 100]], True])
        with Program(sim, BUSY) as second:
            other = second.hear()

            def halves() -> bool:
                card, _, samples, _ = run(sim, READ)
                parts = dict(samples)
                return (
                    card == 100
                    and all(abs(parts.get(p, 0) - 50) <= 5 for p in (pid, other))
                    and sum(parts.values()) <= 101
                )

            wait_until(halves)
    wait_until(lambda: run(sim, READ) == [0, 0, [], False])
