"""Visit a cohort on this machine: one worker thread per core, one client at a time."""

from __future__ import annotations

import copy
import ctypes
import math
import os
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..core.cancellation import stop_check
from ..core.messages import Broadcast, copies, nbytes
from ..core.metrics import Scores, task
from ..core.rng import Stream, layer_noise, numpy_stream
from ..federation.federation import Federation, Samples
from ..training.local import Learner, PrivateState, train_client
from .contract import Evaluation, Failure, Job, SetupResult, TrainingResult

EVALUATION_VALUES, EVALUATION_BATCH = 125 * 28 * 28, 2000
"""Values of pictures per batch on a CPU, what fits a core's cache; most samples."""

SHORT = 3e-3
"""Seconds of work for which a thread of its own does not pay: they share one lock."""

CACHE_BYTES = 2_000_000_000
"""What all clients' caches together may hold before the oldest are dropped."""


class Caches:
    """Every client's recomputable tensors; the longest unused go when too large."""

    def __init__(self, limit: int = CACHE_BYTES):
        self.limit, self._held = limit, OrderedDict()

    def of(self, client_id: int) -> dict:
        """The cache of one client."""
        cache = self._held.setdefault(client_id, {})
        self._held.move_to_end(client_id)
        return cache

    def trim(self) -> None:
        """Drop empty caches, and the oldest until the limit holds."""
        sizes = {
            client: nbytes({k: v for k, v in cache.items() if isinstance(v, Tensor)})
            for client, cache in self._held.items()
        }
        total = sum(sizes.values())
        for client, size in sizes.items():
            if size == 0 or total > self.limit:
                del self._held[client]
                total -= size


class LocalEngine:
    """Worker threads that share the data and hold one model each.

    ``workers=1`` is the plain serial loop in the calling thread. Results do not depend
    on the number: every visit and evaluation runs with one intra-op thread, and the
    caller's setting is restored. PyTorch's kernels release the interpreter's lock, so
    threads are as fast as processes, without copies.
    """

    holds_clients, is_exact = True, True

    def __init__(self, workers: int | None = None):
        cores = (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        )
        self.workers = workers or cores or os.cpu_count() or 1
        self.caches = Caches()

    def open(self, job: Job) -> None:
        """Take on a job: one copy of the model per worker.

        Raises ValueError for TF32 without a GPU.
        """
        if (
            job.training.precision == "tf32"
            and job.federation.store.device.type != "cuda"
        ):
            raise ValueError(
                "precision 'tf32' is an arithmetic of GPUs, found a run on the cpu; "
                "use precision='float32' or 'bf16', or device='cuda'"
            )
        self.job, self._seconds = job, {}
        self.caches = Caches(self.caches.limit)  # another job's are of no use here
        keep_freed_memory()
        self._learners: queue.SimpleQueue = queue.SimpleQueue()
        for _ in range(self.workers):
            self._learners.put(Learner(copy.deepcopy(job.model), job.training.compile))

    def client_setup(
        self, client_ids: Sequence[int], broadcast: Broadcast
    ) -> dict[int, SetupResult]:
        """What each client says once, before round 1, and what it keeps.

        Nothing needs to travel down for this: every client can build the initial
        weights itself from the run's seed.
        """

        def client_setup(learner: Learner, client_id: int):
            """One client on one worker."""
            self.job.load(learner, broadcast.weights)
            cache = self.caches.of(client_id)
            context = self.job.context(broadcast, client_id, {}, cache)
            said = copies(self.job.method.client_setup(learner.eval(), context))
            own = learner.copies(self.job.private_names)
            kept = PrivateState(own, copies(context.memory))
            kept.refuse_nan()
            return said, kept

        return self._each(client_setup, client_ids)

    def train(
        self, broadcasts: dict[int, Broadcast], private: dict[int, PrivateState]
    ) -> dict[int, TrainingResult]:
        """Visit every client that has a broadcast; large clients start first."""

        def train(learner: Learner, client_id: int):
            """One client on one worker."""
            job, broadcast = self.job, broadcasts[client_id]
            own = private.get(client_id, PrivateState())
            job.load(learner, broadcast.weights, own.weights)
            cache = self.caches.of(client_id)
            context = job.context(broadcast, client_id, own.memory, cache)
            message, kept = train_client(
                job.method, learner, context, job.seed, job.private_names
            )
            return job.protect(message, broadcast), kept

        with tf32(self.job):
            return self._each(train, self.job.large_first(broadcasts))

    def evaluate(self, requests: Sequence[Evaluation], round: int) -> list[Scores]:
        """Loss and score of every sample, for each request.

        Raises ValueError when there is no sample to evaluate, and whatever the method's
        ``predict`` raises.
        """
        if not all(len(request.samples) for request in requests):
            raise ValueError("expected samples to evaluate, found an empty part")
        size = evaluation_batch(self.job.federation)
        is_shared = len(requests) == 1 and self.job.method.predicts_alone
        pieces = []
        for number, request in enumerate(requests):
            shares = self.workers if is_shared else 1
            share = -(-len(request.samples) // (size * shares)) * size
            for start in range(0, len(request.samples), share):
                pieces.append((number, start, start + share))

        def evaluate(learner: Learner, piece: tuple[int, int, int]) -> Scores:
            number, start, stop = piece
            samples = requests[number].samples
            self.job.load(learner, requests[number].weights)
            part = Samples(samples.store, samples.rows[start:stop])
            return self._scores(learner.eval(), part, size, round, start // size)

        found = self._each(evaluate, pieces, forgiving=False)
        parts: list[list[Scores]] = [[] for _ in requests]
        for number, start, stop in pieces:
            parts[number].append(found[number, start, stop])
        return [
            Scores(
                np.concatenate([scores.loss for scores in part]),
                np.concatenate([scores.score for scores in part]),
            )
            for part in parts
        ]

    @torch.inference_mode()
    def _scores(self, model, samples: Samples, size, round, first_batch) -> Scores:
        measured, method = task(samples.store.data.task), self.job.method
        batches, index, losses, scores = samples.batches(size), [], [], []
        if not method.predicts_alone:
            batches = samples.mixed(numpy_stream(self.job.seed, "evaluate"))
        for number, batch in enumerate(batches, start=first_batch):
            with layer_noise(Stream(self.job.seed, "evaluate", round, number)):
                output = method.predict(model, batch.x)
            index.append(batch.index)
            losses.append(measured.losses(output, batch.y))
            scores.append(measured.score(output, batch.y))
        place = slice(None) if method.predicts_alone else torch.cat(index).argsort()
        found = (torch.cat(each)[place].cpu().numpy() for each in (losses, scores))
        return Scores(*found)

    def _each(
        self, function: Callable, items: Sequence, forgiving: bool = True
    ) -> dict:
        """``function(learner, item)`` for every item, on the workers.

        ``forgiving``: an error of one visit stays with that visit, and Stopped ends all
        of them once somebody asks for it; measuring goes on to its end.
        """
        check = stop_check()

        def call(item):
            """Borrow a model."""
            if forgiving:
                check()
            learner, began = self._learners.get(), time.thread_time()
            try:
                return function(learner, item)
            except Exception as error:
                if not forgiving:
                    raise
                return Failure.of(error)
            finally:
                self._learners.put(learner)
                self._seconds[function.__name__] = time.thread_time() - began

        is_short = self._seconds.get(function.__name__, SHORT) < SHORT
        with one_intra_op_thread():
            if self.workers == 1 or len(items) == 1 or is_short:
                results = [call(item) for item in items]
            else:
                with ThreadPoolExecutor(
                    self.workers, initializer=one_intra_op_thread_here
                ) as pool:
                    results = list(pool.map(call, items))
        self.caches.trim()
        return dict(zip(items, results, strict=True))


def one_intra_op_thread_here() -> None:
    """One thread per operation of the calling thread, as long as it lives.

    PyTorch settles a new thread's number when it is first asked for, by what was set
    last anywhere: so ask. A second team of threads would slow down all others, too.
    """
    torch.set_num_threads(1)
    torch.get_num_threads()


def evaluation_batch(federation: Federation) -> int:
    """Samples per batch when nothing is trained."""
    if federation.store.device.type != "cpu":
        return EVALUATION_BATCH
    values = math.prod(federation.data.image_shape)
    return min(EVALUATION_BATCH, max(32, EVALUATION_VALUES // values))


def keep_freed_memory() -> None:
    """Ask the C library to keep what is freed: a step then meets no fresh pages.

    And to keep it in two places, not in one for every thread that ever trained. A
    setting of the whole process, of glibc only; elsewhere nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    # as malloc.h numbers them
    trim_threshold, top_pad, mmap_threshold, arena_max = -1, -2, -3, -8
    mallopt(mmap_threshold, 2**30)
    mallopt(trim_threshold, 2**30)
    mallopt(top_pad, 2**26)
    mallopt(arena_max, 2)


@contextmanager
def tf32(job: Job) -> Iterator[None]:
    """On a GPU, products of float32 matrices as the job's precision says."""
    parts = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    before = [part.fp32_precision for part in parts]
    is_gpu = job.federation.store.device.type == "cuda"
    wanted = "tf32" if job.training.precision == "tf32" else "ieee"
    try:
        for part in parts if is_gpu else ():
            part.fp32_precision = wanted
        yield
    finally:
        for part, precision in zip(parts, before, strict=True):
            part.fp32_precision = precision


@dataclass
class _Threads:
    """The process's setting before the first of all blocks that are running.

    ``own``: each thread's setting in the block that it is in.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    own: threading.local = field(default_factory=threading.local)
    inside: int = 0
    before: int = 1


_THREADS = _Threads()


@contextmanager
def intra_op_threads(num: int) -> Iterator[None]:
    """``num`` threads per operation inside the block; the caller's setting comes back.

    Blocks may overlap in several threads: each leaves with the setting that held before
    the first of them, or with that of the block around it. The engine's own threads set
    one for themselves.
    """
    around = getattr(_THREADS.own, "num", None)
    with _THREADS.lock:
        if _THREADS.inside == 0:
            _THREADS.before = torch.get_num_threads()
        _THREADS.inside += 1
    torch.set_num_threads(num)
    _THREADS.own.num = num
    try:
        yield
    finally:
        _THREADS.own.num = around
        with _THREADS.lock:
            _THREADS.inside -= 1
            torch.set_num_threads(_THREADS.before if around is None else around)


one_intra_op_thread = partial(intra_op_threads, 1)
"""What visits and evaluations run under: results do not depend on the workers."""
