"""Print what NVML shows while this process holds memory, as one JSON line: nvml_view.py [MIB [SECONDS]]

NVML is asked SECONDS after this process took MIB.
"""

import ctypes
import json
import os
import sys
import time

import pynvml as nvml

report = {"pid": os.getpid()}


def ask(name, function, *arguments):
    try:
        report[name] = function(*arguments)
    except Exception as error:
        report[name] = f"{type(error).__name__}: {error}"


def memory(handle, version=None):
    found = nvml.nvmlDeviceGetMemoryInfo(handle, version=version) if version else nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"total": found.total, "used": found.used, "free": found.free, "reserved": getattr(found, "reserved", None)}


def processes(function, handle):
    return [{"pid": one.pid, "bytes": one.usedGpuMemory} for one in function(handle)]


cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100
ask(
    "cuda",
    lambda: [
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(wanted << 20)),
    ],
)
time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
nvml.nvmlInit()
ask("driver", nvml.nvmlSystemGetDriverVersion)
ask("count", nvml.nvmlDeviceGetCount)
handle = nvml.nvmlDeviceGetHandleByIndex(0)
ask("name", nvml.nvmlDeviceGetName, handle)
ask("memory", memory, handle)
ask("memory_v2", memory, handle, getattr(nvml, "nvmlMemory_v2", None))
ask("bar1", lambda: nvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Total)
ask("compute", processes, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
ask("graphics", processes, nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
ask("mps", lambda: processes(nvml.nvmlDeviceGetMPSComputeRunningProcesses, handle))
ask(
    "detail",
    lambda: [
        {"pid": one.pid, "bytes": one.usedGpuMemory} for one in nvml.nvmlDeviceGetRunningProcessDetailList(handle, 0, 0)
    ],
)
ask("utilisation", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
ask("process_utilisation", lambda: [(one.pid, one.smUtil) for one in nvml.nvmlDeviceGetProcessUtilization(handle, 0)])
ask("minor", nvml.nvmlDeviceGetMinorNumber, handle)
report["ok"] = isinstance(report["memory"], dict)
print(json.dumps(report))
