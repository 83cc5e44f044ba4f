"""Loaded by every Python process of an engine, and by no other (e2e/vllm sets PYTHONPATH).

On a machine with few processors vLLM's processes starve each other: its workers spin on sched_yield for a second after
every step, and NIXL's progress thread polls without a pause. Transfers then take seconds at random, and leases run out.
Both are given a pause here. Besides, an engine's processes end with the one that started them, so that a test that is
killed leaves none behind; and they are forked, as vLLM does it everywhere but on CPUs: there each is a new Python, and
nine tenths of an engine's start are imports, made three times.
"""

import ctypes
import os
import signal
import socket
import sys
import time
from importlib.machinery import SourceFileLoader

PR_SET_PDEATHSIG = 1
YIELD_SECONDS = 0.0002
BUSY, PAUSED = b"pthrDelay = 0", b"pthrDelay = 1000"  # microseconds between two polls
SPAWN, FORK = (b'os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "%s"' % way for way in (b"spawn", b"fork"))
# What the copy engine of the offloading connector needs a GPU for; offload_cpu.py copies instead.
OFFLOADING = [
    (b"import torch\n", b"import torch, offload_cpu\n"),
    (b"assert gpu_tensor.is_cuda or gpu_tensor.is_xpu", b"pass"),
    (b"current_platform.Stream()", b"offload_cpu.Stream()"),
    (b"torch.Event(enable_timing=True)", b"offload_cpu.Event()"),
    (b"stream.wait_stream(current_platform.current_stream())", b"pass"),
    (b"with current_platform.stream(stream):", b"with stream:"),
    (b"ops.swap_blocks_batch", b"offload_cpu.swap"),
]
DEVICE, BIND = b"torch.accelerator.current_device_index()", b"current_platform.set_device(self.device_id)"


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def leave_port():
    """Leaves the port of the API to the process that serves it.

    A new Python would not have it. vLLM, when it is told to end, looks for what else is at its port, and ends badly if
    that ends meanwhile. The number stays taken, for whoever in here still knows it.
    """
    ports = [int(a.removeprefix("--port=")) for a in sys.argv if a.startswith("--port=")]
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            s = socket.socket(fileno=fd)
        except OSError:
            continue  # it is no socket
        served = s.family == socket.AF_INET and s.getsockname()[1] in ports
        s.detach()
        if served:
            os.dup2(nothing, fd)
    os.close(nothing)


class EditingLoader:
    """Has NIXL's Python modules configure their agents with a pause, vLLM fork, and Mooncake's and the offloading connector do without a GPU."""

    plain = SourceFileLoader.get_code

    @staticmethod
    def get_code(loader, name):
        if name.startswith("nixl") and name.endswith("_api"):
            edits = [(BUSY, PAUSED)]
        elif name == "vllm.platforms.cpu":
            edits = [(SPAWN, FORK)]
        elif name.endswith(".mooncake.mooncake_connector"):
            edits = [(DEVICE, b"0"), (BIND, b"None")]
        elif name.endswith(".kv_offload.cpu.spec"):
            edits = [(b"if not (current_platform.is_cuda_alike() or current_platform.is_xpu()):", b"if False:")]
        elif name.endswith(".kv_offload.cpu.gpu_worker"):
            edits = OFFLOADING
        else:
            return EditingLoader.plain(loader, name)
        path = loader.get_filename(name)
        code = loader.get_data(path)
        for edit in edits:
            code = code.replace(*edit)
        return compile(code, path, "exec")


end_with_parent()
os.register_at_fork(after_in_child=end_with_parent)
os.register_at_fork(after_in_child=leave_port)
os.sched_yield = lambda: time.sleep(YIELD_SECONDS)
SourceFileLoader.get_code = EditingLoader.get_code
