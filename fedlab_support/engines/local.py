"""Train on this machine: one worker thread per core, each one client at a time."""

from __future__ import annotations

import copy
import ctypes
import math
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from ..core.cancellation import stop_check
from ..core.messages import Broadcast, Tensors, nbytes, unwritten
from ..core.metrics import Scores
from ..core.rng import Stream, layer_noise, numpy_stream
from ..federation.federation import Federation
from ..federation.samples import Samples
from ..training.context import ClientContext, PrivateState
from ..training.learner import Learner
from ..training.loop import copied_result, train_client
from .contract import Evaluation, Failure, Job, SetupResult, TrainingResult
from .process import intra_op_threads, keep_freed_memory, one_intra_op_thread_here, tf32

EVALUATION_BATCH = 2000
"""Most samples per batch in evaluation."""

CORE_VALUES, GPU_VALUES = 125 * 28 * 28, EVALUATION_BATCH * 3 * 64 * 64
"""Image values per batch that fit the cache of a core, and the memory of a GPU."""

SHORT_SECONDS = 3e-3
"""Work shorter than this runs in the calling thread: threads would wait for the GIL."""

GRACE_SECONDS = 0.5
"""A client that checks its deadline ends by itself; this much later it has hung."""

CACHE_BYTES = 2_000_000_000
"""Most bytes in the caches of all clients; then the least recently used are dropped."""


class Caches:
    """Recomputable tensors of every client; drops the least recently used."""

    def __init__(self):
        self.limit, self._held = CACHE_BYTES, OrderedDict()

    def of(self, client_id: int) -> dict:
        """The cache of one client."""
        cache = self._held.setdefault(client_id, {})
        self._held.move_to_end(client_id)
        return cache

    def trim(self) -> None:
        """Drop empty caches, and the least recently used until the limit holds."""
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

    workers:  number of threads; one per core if None. 1 is the plain serial loop in the
              calling thread.

    Results do not depend on the number of workers, because training and evaluation use
    one intra-op thread each; the caller's setting is restored. PyTorch's kernels
    release the GIL, so threads are as fast as processes and need no copies.
    """

    holds_clients, is_exact = True, True

    def __init__(self, workers: int | None = None):
        if not workers:
            from joblib import cpu_count  # knows a container's limit; slow to import

            workers = cpu_count()
        self.workers = workers

    def open(self, job: Job) -> None:
        """Prepare for a job: one copy of the model per worker.

        Raises ValueError for TF32 without a GPU.
        """
        is_gpu = job.federation.store.device.type == "cuda"
        if job.training.precision == "tf32" and not is_gpu:
            raise ValueError(
                "precision 'tf32' needs a GPU, found a run on the cpu; "
                "use precision='float32' or 'bf16', or device='cuda'"
            )
        self.job, self._seconds = job, {}
        self.caches = Caches()
        keep_freed_memory()
        self._learners: queue.SimpleQueue = queue.SimpleQueue()
        for _ in range(self.workers):
            self._learners.put(Learner(copy.deepcopy(job.model), job.training.compile))

    def client_setup(
        self, client_ids: Sequence[int], broadcast: Broadcast
    ) -> dict[int, SetupResult]:
        """The setup upload and private state of each client, once before round 1.

        Nothing is sent to clients: each can build the initial weights from the seed.
        """

        def client_setup(learner: Learner, client_id: int):
            """The setup upload and private state of one client."""
            context = self._context(learner, broadcast, client_id, PrivateState())
            upload = copied_result(self.job.method, "client_setup", learner, context)
            weights = learner.copies(self.job.initial_private)
            return upload, PrivateState.after_visit(weights, context.memory)

        with unwritten("what clients receive", [broadcast.weights]):
            return self._each(client_setup, client_ids)

    def train(
        self, broadcasts: dict[int, Broadcast], private: dict[int, PrivateState]
    ) -> dict[int, TrainingResult]:
        """Train every client that has a broadcast; large clients start first."""

        def train(learner: Learner, client_id: int):
            """The message and private state of one client."""
            job, broadcast = self.job, broadcasts[client_id]
            state = private.get(client_id, PrivateState())
            context = self._context(learner, broadcast, client_id, state)
            message, kept = train_client(
                job.method, learner, context, job.seed, job.initial_private
            )
            return job.protect(message, broadcast), kept

        with unwritten("what clients receive", received(broadcasts)):
            return self._each(train, self.job.large_first(broadcasts))

    def evaluate(self, requests: Sequence[Evaluation], round: int) -> list[Scores]:
        """Loss and score of every sample, for each request.

        Raises ValueError when there is no sample to evaluate, and whatever the method's
        ``predict`` raises.
        """
        if not all(len(request.samples) for request in requests):
            raise ValueError("expected samples to evaluate, found an empty part")
        size = evaluation_batch(self.job.federation)
        is_shared = len(requests) == 1 and self.job.method.predicts_per_image
        is_shared &= is_on_cpu(self.job.federation)
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

        found = self._each(evaluate, pieces, keep_failures=False)
        parts: list[list[Scores]] = [[] for _ in requests]
        for (number, _, _), scores in found.items():
            parts[number].append(scores)
        return [
            Scores(
                np.concatenate([scores.loss for scores in part]),
                np.concatenate([scores.score for scores in part]),
            )
            for part in parts
        ]

    def _context(
        self, learner: Learner, broadcast: Broadcast, client_id: int, own: PrivateState
    ) -> ClientContext:
        """The context of a client, whose weights are loaded into the learner."""
        self.job.load(learner, broadcast.weights, own.weights)
        cache = self.caches.of(client_id)
        return self.job.context(broadcast, client_id, own.memory, cache)

    @torch.inference_mode()
    def _scores(self, model, samples: Samples, size, round, first_batch) -> Scores:
        measured, method = samples.store.task, self.job.method
        batches, index, losses, scores = samples.batches(size), [], [], []
        if not method.predicts_per_image:
            batches = samples.domain_batches(numpy_stream(self.job.seed, "evaluate"))
        for number, batch in enumerate(batches, start=first_batch):
            with layer_noise(Stream(self.job.seed, "evaluate", round, number)):
                output = method.predict(model, batch.x)
            index.append(batch.index)
            losses.append(measured.losses(output, batch.y))
            scores.append(measured.score(output, batch.y))
        place = slice(None) if method.predicts_per_image else torch.cat(index).argsort()
        found = (torch.cat(each)[place].cpu().numpy() for each in (losses, scores))
        return Scores(*found)

    def _each(
        self, function: Callable, items: Sequence, keep_failures: bool = True
    ) -> dict:
        """``function(learner, item)`` for every item, on the workers.

        keep_failures:  return the error of an item as its Failure, and check before
                        each item whether the run was stopped; otherwise errors raise.
        """
        check = stop_check()

        def call(item):
            """The result of one item on a free learner, or its Failure."""
            if keep_failures:
                check()
            learner, began = self._learners.get(), time.thread_time()
            try:
                return function(learner, item)
            except (Exception, SystemExit) as error:
                kind = type(error)  # subclasses of SystemExit stop this process
                is_stop = isinstance(error, SystemExit) and kind is not SystemExit
                if not keep_failures or is_stop:
                    raise
                return Failure.of(error)
            finally:
                if self._learners.qsize() < self.workers:  # else it was replaced
                    self._learners.put(learner)
                self._seconds[function.__name__] = time.thread_time() - began

        is_short = self._seconds.get(function.__name__, SHORT_SECONDS) < SHORT_SECONDS
        with intra_op_threads(1), tf32(self.job):
            if self.job.deadline is not None and keep_failures:
                results = self._watched(call, items)
            elif self.workers == 1 or len(items) == 1 or is_short:
                results = [call(item) for item in items]
            else:
                with ThreadPoolExecutor(
                    self.workers, initializer=one_intra_op_thread_here
                ) as pool:
                    results = list(pool.map(call, items))
        self.caches.trim()
        return dict(zip(items, results, strict=True))

    def _watched(self, call: Callable, items: Sequence) -> list:
        """The results of ``call``; an item that runs past the deadline fails.

        Its thread gets a TimeoutError, which takes effect when it next runs Python. It
        is not waited for, and its model is replaced.
        """
        waiting, done = deque(items), queue.SimpleQueue()
        results, running, stopped = {}, {}, None
        limit = self.job.deadline + GRACE_SECONDS

        def work(item) -> None:
            """One item, in a thread of its own."""
            one_intra_op_thread_here()
            try:
                done.put((item, call(item), None))
            except BaseException as error:
                done.put((item, None, error))

        while waiting or running:
            while waiting and len(running) < self.workers:
                item = waiting.popleft()
                thread = threading.Thread(target=work, args=(item,), daemon=True)
                running[item] = thread, time.monotonic() + limit
                thread.start()
            first = min(end for _, end in running.values())
            with suppress(queue.Empty):
                wait = max(0.0, first - time.monotonic())
                item, result, error = done.get(timeout=wait)
                if running.pop(item, None) is not None:
                    results[item] = result
                    if error is not None:  # raised when running items have ended
                        stopped = error
                        waiting.clear()
            for item, (thread, end) in list(running.items()):
                if time.monotonic() > end:
                    del running[item]
                    raise_in(thread, TimeoutError)
                    results[item] = Failure("TimeoutError: it hung past its deadline")
                    model = copy.deepcopy(self.job.model)
                    self._learners.put(Learner(model, self.job.training.compile))
        if stopped is not None:
            raise stopped
        return [results[item] for item in items]


def raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    """Raise an exception in another thread, when it next runs Python."""
    number = ctypes.c_ulong(thread.ident)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(error))


def received(broadcasts: dict[int, Broadcast]) -> list[Tensors]:
    """The different dictionaries of tensors that clients receive."""
    trees = {id(t): t for b in broadcasts.values() for t in (b.weights, b.shared)}
    return list(trees.values())


def evaluation_batch(federation: Federation) -> int:
    """Samples per batch in evaluation."""
    limit = CORE_VALUES if is_on_cpu(federation) else GPU_VALUES
    values = math.prod(federation.data.image_shape)
    return min(EVALUATION_BATCH, max(32, limit // values))


def is_on_cpu(federation: Federation) -> bool:
    """Whether the images lie in the machine's memory."""
    return federation.store.device.type == "cpu"
