"""Settings of the whole process for training: threads, memory, and matrix products."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .contract import Job


def one_intra_op_thread_here() -> None:
    """Use one intra-op thread in the calling thread, until it ends.

    PyTorch fixes the number of a new thread when it is first read, so we read it here.
    More threads per worker would slow down all workers.
    """
    torch.set_num_threads(1)
    torch.get_num_threads()


def keep_freed_memory() -> None:
    """Let the C library reuse freed memory instead of returning it to the system.

    Training steps then cause no page faults. Two arenas suffice; by default every
    thread would have its own. Affects the whole process; glibc only.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    # constants of malloc.h
    trim_threshold, top_pad, mmap_threshold, arena_max = -1, -2, -3, -8
    mallopt(mmap_threshold, 2**30)
    mallopt(trim_threshold, 2**30)
    mallopt(top_pad, 2**26)
    mallopt(arena_max, 2)


class _Precision:
    """All ``tf32`` blocks of the process that are running."""

    lock = threading.Lock()  # protects ``count`` and ``before``
    count = 0
    before: tuple[str, ...] = ()  # the settings before the first of them


@contextmanager
def tf32(job: Job) -> Iterator[None]:
    """On a GPU, set the precision of float32 matrix products that the job asks for.

    The setting is the process's. Blocks of several threads may overlap if they ask for
    the same; the last one restores the setting before the first.
    """
    if job.federation.store.device.type != "cuda":
        yield
        return
    parts = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    wanted = "tf32" if job.training.precision == "tf32" else "ieee"
    with _Precision.lock:
        if _Precision.count == 0:
            _Precision.before = tuple(part.fp32_precision for part in parts)
        _Precision.count += 1
        for part in parts:
            part.fp32_precision = wanted
    try:
        yield
    finally:
        with _Precision.lock:
            _Precision.count -= 1
            if _Precision.count == 0:
                for part, precision in zip(parts, _Precision.before, strict=True):
                    part.fp32_precision = precision


class _Blocks:
    """All ``intra_op_threads`` blocks of the process that are running."""

    lock = threading.Lock()  # protects ``count`` and ``before``
    count = 0
    before = 1  # the setting before the first of them
    own = threading.local()  # the setting of each thread in its innermost block


@contextmanager
def intra_op_threads(num: int) -> Iterator[None]:
    """Use ``num`` intra-op threads inside the block, then restore the setting.

    Training and evaluation use one, so that results do not depend on the workers.
    Blocks of several threads may overlap: each restores the setting of the block around
    it or, without one, the setting before the first block. Worker threads set their own
    number.
    """
    around = getattr(_Blocks.own, "num", None)
    with _Blocks.lock:
        if _Blocks.count == 0:
            _Blocks.before = torch.get_num_threads()
        _Blocks.count += 1
    torch.set_num_threads(num)
    _Blocks.own.num = num
    try:
        yield
    finally:
        _Blocks.own.num = around
        with _Blocks.lock:
            _Blocks.count -= 1
            torch.set_num_threads(_Blocks.before if around is None else around)
