"""Visit a cohort in worker processes: for models so small that threads gain nothing."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import replace
from typing import Any

import cloudpickle
import loky
import numpy as np
import torch
from loky.backend.context import LokyContext
from loky.process_executor import TerminatedWorkerError
from torch import Tensor

from ..core.cancellation import stop_check
from ..core.messages import Broadcast
from ..core.torchvision_compat import import_torchvision
from ..training.local import PrivateState
from .contract import Answer, Failure, Job, SetupUpload
from .local import LocalEngine

IDLE_SECONDS = 300
"""How long a worker process without work stays."""

LOOK_SECONDS = 0.1
"""Between two looks whether somebody wants the round to end."""

ASKED = 3
"""How often a process is asked for the same visit when processes die of it."""

MOST_JOBS = 2
"""Jobs that a worker process keeps at hand, each with its data: runs may take turns."""

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "LOKY_MAX_MEMORY_LEAK_SIZE": "1e15"}
"""One thread an operation; and no process is replaced because it has grown."""

CONTEXT = LokyContext()
"""How processes start; joblib registers another version's under the same name."""

QUICK = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool)
"""Types of tensors that travel as NumPy arrays: an order of magnitude faster."""


class ProcessEngine(LocalEngine):
    """Worker processes that are local engines of one worker each.

    Threads share the interpreter's lock, which small models hold most of the time.
    Processes do not, but take a second or two to start and hold PyTorch once more each,
    as well as data and model of the last two runs; all runs of this process share them.
    The same results as :class:`LocalEngine`, to the last bit.

    Methods, models and data are pickled on their way, what a notebook defines included.
    What a client's cache held may be computed again, since clients change their
    process. Measuring goes on in threads.
    """

    def open(self, job: Job) -> None:
        """Take on a job, and let the processes start meanwhile.

        Raises ValueError on a GPU, and for what cannot be pickled.
        """
        device = job.federation.store.device
        if device.type != "cpu":
            raise ValueError(
                f"worker processes train on the cpu, found a run on {device}; use "
                "engine='local' or engine='stacked'"
            )
        _refuse_unsendable(job)
        super().open(job)
        self._name, self._pool = uuid.uuid4().hex, _pool(self.workers)
        self._luggage = (_Torchvision() if "torchvision" in sys.modules else None, job)
        self._starting = [
            self._submit(_take_on, *self._luggage) for _ in range(self.workers)
        ]

    def client_setup(
        self, client_ids: Sequence[int], broadcast: Broadcast
    ) -> dict[int, SetupUpload]:
        """What each client says once, before round 1, and what it keeps."""
        return self._dealt("client_setup", client_ids, lambda some: (some, broadcast))

    def train(
        self, broadcasts: dict[int, Broadcast], private: dict[int, PrivateState]
    ) -> dict[int, Answer]:
        """Visit every client that has a broadcast."""

        def given(some: list[int]) -> tuple[dict, dict]:
            """What one process needs for some clients."""
            own = {i: private[i] for i in some if i in private}
            return {i: broadcasts[i] for i in some}, own

        return self._dealt("train", broadcasts, given)

    def _dealt(self, hook: str, ids: Iterable[int], given: Callable) -> dict:
        """Answers of all clients, whose visits are dealt to the processes."""
        self._begin()
        ordered, answers = self.job.large_first(ids), {}
        shares = deal(ordered, self.job.federation.sizes, self.workers)
        for i in self._ask(hook, given, shares, answers):
            # alone: the one of whom a process dies takes nobody along
            for _ in range(1, ASKED):
                if not self._ask(hook, given, [[i]], answers):
                    break
        return {i: answers[i] for i in ordered}

    def _ask(self, hook: str, given: Callable, shares: list, answers: dict) -> list:
        """Add the answers of all shares; returns clients whose process has died."""
        died = []
        for luggage in ((), self._luggage):
            work = {
                self._submit(_visit, hook, given(share), *luggage): share
                for share in shares
            }
            self._wait(work)
            shares = []
            for future, share in work.items():
                error = future.exception()
                if isinstance(error, TerminatedWorkerError):
                    died += share
                if error is not None:
                    answers |= dict.fromkeys(share, Failure.of(error))
                elif said := future.result():
                    answers |= restored(*said)
                else:
                    shares.append(share)  # the process lacks the job
        return died

    def _begin(self) -> None:
        """Once: wait for the processes; RuntimeError when they cannot do the job."""
        starting, self._starting = self._starting, []
        self._wait(starting)
        for future in starting:
            error = future.exception()
            if error is not None and not isinstance(error, TerminatedWorkerError):
                raise RuntimeError(
                    "expected worker processes to take on the job, which they cannot; "
                    "what they said stands above; use engine='local'"
                ) from error

    def _submit(self, function: Callable, *given: Any) -> Future:
        """``function(name, *given)`` in a process, started again if it has died."""
        try:
            return self._pool.submit(function, self._name, *given)
        except RuntimeError:  # broken, or shut down
            self._pool = _pool(self.workers)
            return self._pool.submit(function, self._name, *given)

    def _wait(self, work: Iterable[Future]) -> None:
        """Until all is done, or somebody wants no more of it."""
        check = stop_check()
        try:
            check()
            while wait(work, LOOK_SECONDS).not_done:
                check()
        except KeyboardInterrupt:
            self._pool.shutdown(kill_workers=True)
            raise
        finally:
            for future in work:
                future.cancel()  # what has begun ends, and nobody looks at it


def deal(ids: Iterable[int], sizes: np.ndarray, num: int) -> list[list[int]]:
    """Clients, large ones first, in at most ``num`` shares of about as many samples.

    Each goes to the share with the fewest samples so far.
    """
    shares: list[list[int]] = [[] for _ in range(num)]
    loads = [0] * num
    for i in ids:
        least = loads.index(min(loads))
        shares[least].append(i)
        loads[least] += int(sizes[i])
    return [share for share in shares if share]


def _pool(workers: int) -> Executor:
    """The processes, for all runs that this thread makes."""
    return loky.get_reusable_executor(
        workers,
        context=CONTEXT,
        timeout=IDLE_SECONDS,
        job_reducers={Tensor: reduced},
        result_reducers={Tensor: reduced},
        initializer=_attend,
        initargs=(os.getpid(),),
        env=ENVIRONMENT,
    )


def reduced(tensor: Tensor) -> tuple:
    """How a tensor is pickled: on the CPU as an array, laid out as it was."""
    if tensor.dtype in QUICK and tensor.device.type == "cpu":
        order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
        dense = tensor.detach().permute(order)
        if dense.is_contiguous() and not tensor.requires_grad:
            return _tensor, (dense.numpy(), tuple(tensor.shape), tensor.stride())
    return tensor.__reduce_ex__(4)


def _tensor(values: np.ndarray, shape: tuple, stride: tuple) -> Tensor:
    """The tensor, in memory of PyTorch's: sums may depend on where a tensor starts.

    NumPy copies: an operation of PyTorch would start threads of the one that receives,
    and two teams of threads slow down each other for good.
    """
    flat = torch.empty(values.size, dtype=torch.from_numpy(values).dtype)
    flat.numpy()[:] = values.ravel()
    return flat.as_strided(shape, stride)


def lightened(answers: dict) -> tuple[dict, dict[str, Tensor] | None]:
    """Answers without their messages' weights, and these side by side, (K, …) each.

    So they travel in an array per name, not per client and name. None in their place,
    and the answers as they are, where some weights are not like others.
    """
    said = {i: a for i, a in answers.items() if not isinstance(a, Failure)}
    trees = [message.weights for message, _ in said.values()]
    forms = {
        tuple((n, v.shape, v.dtype, v.is_contiguous()) for n, v in tree.items())
        for tree in trees
    }
    if len(forms) != 1 or not all(is_dense for *_, is_dense in next(iter(forms))):
        return answers, None
    rows = {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}
    for i, (message, kept) in said.items():
        answers[i] = replace(message, weights={}), kept
    return answers, rows


def restored(answers: dict, rows: dict[str, Tensor] | None) -> dict:
    """The answers that were lightened; each tensor again has a place of its own."""
    if rows is None:
        return answers
    said = [i for i, answer in answers.items() if not isinstance(answer, Failure)]
    columns = [[row.clone() for row in values.unbind()] for values in rows.values()]
    for i, *own in zip(said, *columns, strict=True):
        message, kept = answers[i]
        weights = dict(zip(rows, own, strict=True))
        answers[i] = replace(message, weights=weights), kept
    return answers


class _Torchvision:
    """Brings torchvision along, without which networks of timm cannot be unpickled."""

    def __reduce__(self):
        return import_torchvision, ()


def _refuse_unsendable(job: Job) -> None:
    """Raise ValueError unless the job, apart from its data, can be pickled."""
    try:
        cloudpickle.dumps(replace(job, federation=None))
    except Exception as error:
        raise ValueError(
            f"expected a job that can be sent to other processes, found: {error}; use "
            "engine='local'"
        ) from error


# ---- in a worker process ------------------------------------------------------------
_ENGINES: OrderedDict[str, LocalEngine] = OrderedDict()


def _attend(parent: int) -> None:
    """Leave interrupts to whoever gives the work, and end when it has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_outlive_not, args=(parent,), daemon=True).start()


def _outlive_not(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _take_on(name: str, _: Any, job: Job) -> None:
    """Open an engine for a job; the oldest goes when there are too many."""
    engine = LocalEngine(workers=1)
    engine.open(job)
    _ENGINES[name] = engine
    if len(_ENGINES) > MOST_JOBS:
        _ENGINES.popitem(last=False)


def _visit(name: str, hook: str, given: tuple, *luggage: Any) -> tuple | None:
    """What a hook of the engine answers, lightened; None where the job is not known."""
    if name not in _ENGINES:
        if not luggage:
            return None
        _take_on(name, *luggage)
    _ENGINES.move_to_end(name)
    answers = getattr(_ENGINES[name], hook)(*given)
    return lightened(answers) if hook == "train" else (answers, None)
