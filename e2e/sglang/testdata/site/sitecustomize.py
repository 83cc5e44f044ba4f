"""Loaded by every Python process of an engine, and by no other (e2e/sglang sets PYTHONPATH).

Lets SGLang, whose wheel is built for GPUs, hand over KV caches on a machine without one:

- Its kernels are missing. A Llama on a CPU needs none of them, but SGLang imports them by name everywhere.
- NIXL gets the KV cache as memory of the machine, not of a GPU.
- An event of a GPU, for which prefill waits before it sends pages that it had cached, is one of the CPU.
- NIXL's progress thread pauses between two polls, so that it does not take a processor of a small machine.
- Of all models only the Llama is imported, and no image processor, and the processes are forked: an engine's start is nearly
  all imports, which each new Python makes again.

Besides, an engine's processes end with the one that started them, from their first moment on.
"""

import ctypes
import pkgutil
import signal
import sys
import types
from importlib.machinery import ModuleSpec, SourceFileLoader

PR_SET_PDEATHSIG = 1
KERNELS = "sgl_kernel"
SEARCHED = {"sglang.srt.models.": ("llama", "registry"), "sglang.srt.multimodal.processors.": ()}
EDITS = {  # module: (what its source has, what takes its place)
    "nixl_cu13._api": (b"pthrDelay = 0", b"pthrDelay = 1000"),  # microseconds
    "sglang.srt.entrypoints.engine": (b'set_start_method("spawn"', b'set_start_method("fork"'),
    "sglang.srt.disaggregation.nixl.conn": (b'"VRAM"', b'"DRAM"'),
    "sglang.srt.disaggregation.decode": (b'"VRAM"', b'"DRAM"'),
    "sglang.srt.disaggregation.prefill": (b"torch.cuda.Event()", b"torch.cpu.Event()"),
}


class Missing(types.ModuleType):
    """A module, class or function of the kernels. It can be imported and named, not called."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")

    def __call__(self, *_, **__):
        raise NotImplementedError(f"{self.__name__} needs a GPU")


class Kernels:
    """Finds and loads every module of the kernels."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return ModuleSpec(name, cls, is_package=True) if name.split(".")[0] == KERNELS else None

    @staticmethod
    def create_module(spec):
        return Missing(spec.name)

    @staticmethod
    def exec_module(module):
        pass


def edited(loader, name, plain=SourceFileLoader.get_code):
    if name not in EDITS:
        return plain(loader, name)
    old, new = EDITS[name]
    path = loader.get_filename(name)
    source = loader.get_data(path)
    if old not in source:
        raise ImportError(f"{path} does not contain {old}")
    return compile(source.replace(old, new), path, "exec")


def modules(path=None, prefix="", plain=pkgutil.iter_modules):
    found = plain(path, prefix)
    return found if prefix not in SEARCHED else (m for m in found if m.name.removeprefix(prefix) in SEARCHED[prefix])


ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
sys.meta_path.append(Kernels)
SourceFileLoader.get_code = edited
pkgutil.iter_modules = modules
