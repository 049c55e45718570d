"""What this machine is and allows. One JSON line; nothing is changed."""

import ctypes
import errno
import fcntl
import glob
import json
import mmap
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile

libc = ctypes.CDLL(None, use_errno=True)
SPARE = [tempfile.mkstemp()[1] for _ in range(2)]
report = {
    "ok": True,
    "python": sys.version.split()[0],
    "kernel": platform.release(),
    "libc": " ".join(platform.libc_ver()),
    "cores": os.cpu_count(),
    "uid": os.getuid(),
}


def lines(path):
    with open(path) as file:
        return file.read().splitlines()


def said(*command, seconds=20):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        return (done.stdout or done.stderr).strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"


def in_child(what):
    """Runs `what` in a forked child, because it changes the process; its answer as text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(what()).encode()[:400])
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode()[:400])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return answer or "died"


def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *arguments)
    return "yes" if result >= 0 else f"no: {errno.errorcode.get(ctypes.get_errno(), ctypes.get_errno())}"


def ofd_lock():
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
        fcntl.fcntl(file.fileno(), 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))  # F_OFD_SETLK
    return "yes"


def wipe_on_fork():
    page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    page[0] = 1
    page.madvise(18)  # MADV_WIPEONFORK
    return "yes" if in_child(lambda: page[0]) == "0" else "no: not wiped"


def tree():
    """unshare, then open_tree and move_mount, as egpu-enter does them."""
    if libc.unshare(0x20000) != 0:
        return f"no: unshare: {errno.errorcode.get(ctypes.get_errno())}"
    if libc.mount(None, b"/", None, ctypes.c_ulong(0x4000 | 0x80000), None) != 0:
        return "no: private mounts"
    opened = libc.syscall(428, -100, SPARE[0].encode(), 1 | 0o2000000)
    if opened < 0:
        return f"no: open_tree: {errno.errorcode.get(ctypes.get_errno())}"
    moved = libc.syscall(429, opened, b"", -100, SPARE[1].encode(), 4 | 0x10)
    return "yes" if moved == 0 else f"no: move_mount: {errno.errorcode.get(ctypes.get_errno())}"


def sealed():
    handle = os.memfd_create("probe", 3)
    os.ftruncate(handle, 4096)
    fcntl.fcntl(handle, 1033, 2 | 4 | 1)
    return "yes"


def fixed_address():
    libc.mmap.restype = ctypes.c_void_p
    at = libc.mmap(ctypes.c_void_p(0x600000000000), 1 << 21, 3, 0x22 | 0x100000, -1, 0)
    return "yes" if at == 0x600000000000 else f"no: {at:#x}" if at else "no"


def flags_of(path):
    """DT_FLAGS_1 of a shared library (8: NODELETE) and its size."""
    with open(path, "rb") as file:
        head = file.read(64)
        offset, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
        for i in range(count):
            file.seek(offset + i * size)
            kind, _, at, _, _, length = struct.unpack_from("<IIQQQQ", file.read(56))
            if kind == 2:
                file.seek(at)
                table = file.read(length)
                tags = dict(struct.iter_unpack("<qQ", table))
                return {
                    "nodelete": bool(tags.get(0x6FFFFFFB, 0) & 8),
                    "flags_1": tags.get(0x6FFFFFFB, 0),
                    "bytes": os.path.getsize(path),
                }
    return None


for name, test in {
    "ofd_lock": ofd_lock,
    "wipe_on_fork": wipe_on_fork,
    "mount_tree": lambda: in_child(tree),
    "sealed_memfd": sealed,
    "fixed_address": fixed_address,
    "user_namespace": lambda: in_child(lambda: call(272, 0x10000000)),
    "memfd_create": lambda: call(319, b"x", 1),
}.items():
    try:
        report[name] = test()
    except Exception as error:
        report[name] = f"no: {type(error).__name__}: {error}"
for path in SPARE:
    os.unlink(path)


def landlock():
    """Its ABI, as Landlock says."""
    ctypes.set_errno(0)
    abi = libc.syscall(ctypes.c_long(444), None, ctypes.c_size_t(0), 1)
    return abi if abi >= 0 else f"no: {errno.errorcode.get(ctypes.get_errno())}"


def listener():
    """Whether seccomp can notify another process (what `session_calls` needs)."""
    sizes = (ctypes.c_uint16 * 3)()
    ctypes.set_errno(0)
    return (
        "yes"
        if libc.syscall(ctypes.c_long(317), 3, 0, sizes) == 0
        else f"no: {errno.errorcode.get(ctypes.get_errno())}"
    )


SONAMES = (
    "libcudart.so.13",
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcudnn.so.9",
    "libcufft.so.12",
    "libcurand.so.10",
    "libcusolver.so.12",
    "libcusparse.so.12",
    "libcusparseLt.so.0",
    "libnccl.so.2",
    "libnvrtc.so.13",
    "libnvJitLink.so.13",
)
PACKAGES = (
    "torch",
    "triton",
    "jax",
    "jax-cuda13-plugin",
    "cupy-cuda13x",
    "numba",
    "numba-cuda",
    "cuda-core",
    "cuda-bindings",
    "transformers",
    "accelerate",
    "numpy",
    "nvidia-cublas",
    "nvidia-cudnn-cu13",
    "nvidia-nccl-cu13",
    "nvidia-cuda-runtime",
    "nvidia-ml-py",
    "onnxruntime",
    "pytest",
    "pydantic",
    "typer",
    "msgspec",
)


def libraries():
    """Where NVIDIA's libraries lie: in the toolkit, for the loader, in Python's packages."""
    import site

    cached = said("sh", "-c", "ldconfig -p || /sbin/ldconfig -p")
    folders = sorted({path for base in site.getsitepackages() for path in glob.glob(f"{base}/nvidia/*/lib")})
    found = {}
    for name in SONAMES:
        packaged = [f"{folder}/{name}" for folder in folders if os.path.exists(f"{folder}/{name}")]
        found[name] = {
            "toolkit": os.path.exists(f"/usr/local/cuda/lib64/{name}"),
            "loader": f"{name} " in cached,
            "package": packaged[:1],
            "real": [os.path.basename(os.path.realpath(path)) for path in packaged[:1]],
        }
    return {"folders": folders, "files": {folder: len(os.listdir(folder)) for folder in folders}, **found}


def versions():
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


for name, test in {
    "landlock": landlock,
    "seccomp_listener": listener,
    "libraries": libraries,
    "versions": versions,
}.items():
    try:
        report[name] = test()
    except Exception as error:
        report[name] = f"no: {type(error).__name__}: {error}"
report["mounts"] = [
    line
    for line in lines("/proc/mounts")
    if re.search(r" (/|/tmp|/run|/dev/shm|/opt|/usr/local/nvidia\S*|/sys/fs/cgroup) ", line)
]
report["cuda_folder"] = [
    os.path.realpath("/usr/local/cuda"),
    os.path.realpath("/usr/local/cuda/lib64"),
    len(glob.glob("/usr/local/cuda/lib64/*.so*")),
]
report["dev"] = sorted(os.path.basename(path) for path in glob.glob("/dev/nvidia*"))
report["dev_shm"] = said("df", "-m", "/dev/shm").splitlines()[-1:]
report["proc_driver"] = os.path.exists("/proc/driver/nvidia/version")
report["ld_library_path"] = os.environ.get("LD_LIBRARY_PATH", "")
report["ld_so_preload"] = os.path.exists("/etc/ld.so.preload")
report["ldconfig"] = [
    line.strip()
    for line in said("sh", "-c", "ldconfig -p || /sbin/ldconfig -p").splitlines()
    if re.search(r"libcuda\.so\.1|libnvidia-ml\.so\.1", line)
]
report["tools"] = {
    tool: bool(shutil.which(tool))
    for tool in ("gcc", "nvcc", "cmake", "ninja", "nvidia-smi", "nvidia-modprobe", "cuobjdump", "gdb", "cuda-gdb")
}
report["cgroup"] = said("sh", "-c", "cat /sys/fs/cgroup/cgroup.controllers 2>/dev/null; cat /proc/self/cgroup")[:200]
report["nvidia_smi"] = said(
    "nvidia-smi",
    "--query-gpu=name,driver_version,memory.total,memory.reserved,memory.used,compute_mode,mig.mode.current,"
    "persistence_mode,clocks.sm,clocks.max.sm,pstate",
    "--format=csv,noheader",
)[:300]
report["dev_modes"] = {os.path.basename(path): oct(os.stat(path).st_mode & 0o777) for path in glob.glob("/dev/nvidia*")}
report["memory_gib"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1)
report["model"] = next(
    (line.partition(":")[2].strip() for line in lines("/proc/cpuinfo") if line.startswith("model name")), ""
)
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    mapped = {line.split()[-1] for line in lines("/proc/self/maps") if "libcuda.so" in line}
    report["libcuda"] = {path: flags_of(path) for path in mapped}
    pointer, context, version = ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_int()
    codes = [
        cuda.cuInit(0),
        cuda.cuDriverGetVersion(ctypes.byref(version)),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)),
    ]
    report["cuda"] = {"codes": codes, "version": version.value, "pointer": hex(pointer.value)}
    spans = [line.split()[0].split("-") for line in lines("/proc/self/maps")]
    report["cuda"]["reserved"] = [f"{a}-{b}" for a, b in spans if int(b, 16) - int(a, 16) > 1 << 30][:12]
    report["cuda"]["open_files"] = len(os.listdir("/proc/self/fd"))
    report["cuda"]["threads"] = len(os.listdir("/proc/self/task"))
    report["cuda"]["sockets"] = [line.split()[-1] for line in lines("/proc/net/unix") if "cuda" in line][:4]
    report["cuda"]["libraries"] = sorted(
        {os.path.basename(line.split()[-1]) for line in lines("/proc/self/maps") if "nvidia" in line and ".so" in line}
    )
except Exception as error:
    report |= {"ok": False, "error": f"{type(error).__name__}: {error}"}
print(json.dumps(report))
