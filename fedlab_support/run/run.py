"""A run: one method on one federation, its state and its history."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm

from ..core.checks import COUNT, Range, checked
from ..core.history import History
from ..core.messages import Message, Tensors
from ..core.metrics import Scores
from ..core.naming import name_of
from ..engines import Engine, Evaluation, Faults, Job, open_engine
from ..engines.process import intra_op_threads
from ..federation.federation import Federation
from ..federation.samples import Samples
from ..federation.selection import check_selection, everyone
from ..methods import FedAvg
from ..training.context import PrivateState
from ..training.learner import Learner
from ..training.privacy import Privacy
from ..training.settings import LocalTraining
from .building import built, check_pieces, initial_state
from .checkpoint import keeping
from .evaluation import measure
from .round import play, set_up, unwritten_state
from .summary import as_text, describe, latest_score, save_network
from .traffic import record_node_evaluation

if TYPE_CHECKING:
    import pandas as pd

WHOLE = Range(at_least=0)
FEDERATION = Range(
    holds=lambda given: isinstance(given, Federation),
    allowed="a Federation",
    hint="as in Federation.build(data, iid(data, clients=10))",
)
FUNCTIONS = Range(
    holds=lambda given: isinstance(given, list | tuple) and all(map(callable, given)),
    allowed="a list of functions of the run",
)
FOLDER = Range(
    holds=lambda given: (
        isinstance(given, str | Path) and given != "" and not Path(given).is_file()
    ),
    allowed="the name of a folder",
)


def _is_true(answer: object) -> bool:
    """Whether a callback answers True, a flag of Python, NumPy or PyTorch."""
    is_flag = getattr(answer, "dtype", type(answer)) in (bool, torch.bool)
    return is_flag and bool(answer)


class Run:
    """One method on one federation, round by round.

    method:          an instance of FedAvg or of a subclass.
    federation:      the clients, and the splits to evaluate on.
    model:           a factory: image shape (C, H, W), number of classes → network.
    training:        settings of local training; LocalTraining() if None.
    select:          which clients participate, ``(roster, rng) -> client numbers``; all
                     by default.
    seed:            runs with equal seeds give equal numbers on one kind of CPU.
    workers:         threads of the engine; None: one per core, or one if "stacked".
    device:          "cpu", "cuda", or another of PyTorch's with float64 (not "mps").
    evaluate_every:  rounds between evaluations; the last round of a fit is evaluated.
    name:            of the run in tables and figures; method and seed by default.
    engine:          "local": one client per thread; "stacked": all clients at once;
                     "auto": stacked where that is possible and faster; or an engine.
    min_clients:     with fewer accepted messages the server keeps its weights.
    deadline:        seconds that a client may train; slower clients are left out.
    faults:          clients that fail on purpose.
    privacy:         clipping and noise on every message.
    max_update:      leaves out a message of which a part (update, buffers or an
                     uploaded tensor) is more than this many times as large as usual
                     (see ``bounds``); None accepts any finite size.
    on_failure:      "leave out": a client whose training fails is left out of the round
                     with a warning, unless all fail with the same mistake, which is
                     raised. "raise": the first error of a client is raised.

    Raises ValueError here, before any training, for whatever can be checked by then.

    After each round, ``messages`` (accepted uploads), ``wire``, ``history``, ``server``
    and ``model`` show the result.
    """

    @checked(
        federation=FEDERATION,
        seed=WHOLE,
        workers=COUNT,
        evaluate_every=COUNT,
        min_clients=COUNT,
        deadline=Range(above=0),
        max_update=Range(above=1),
        on_failure=Range(one_of=("leave out", "raise")),
    )
    def __init__(
        self,
        method: FedAvg,
        federation: Federation,
        model: Callable[[tuple[int, int, int], int], nn.Module],
        training: LocalTraining | None = None,
        select: Callable | None = None,
        seed: int = 0,
        *,
        workers: int | None = None,
        device: str | torch.device = "cpu",
        evaluate_every: int = 1,
        name: str = "",
        engine: str | Engine = "local",
        min_clients: int = 1,
        deadline: float | None = None,
        faults: Faults | None = None,
        privacy: Privacy | None = None,
        max_update: float | None = 100.0,
        on_failure: str = "leave out",
    ):
        check_pieces(model, select, min_clients, len(federation))
        training = training or LocalTraining()
        if training.augment is not None:
            training.augment.check(method)
        method.check_federation(federation)
        method.check_training(training)
        self.federation = federation.on(device)
        self.select, self.seed = select or everyone(), int(seed)
        self.evaluate_every = int(evaluate_every)
        check_selection(self.select, len(federation))
        self.model_name = name_of(model)
        self.model = built(model, method, self.federation, training, self.seed)
        self.model.to(device)
        self._shown = Learner(self.model)
        if training.batch_size < self._shown.smallest_batch:
            raise ValueError(
                "BatchNorm needs batches of at least two samples, found batch_size=1; "
                "raise batch_size or use norm='group'"
            )
        self.server, own = initial_state(method, self.model, len(federation))
        if privacy is not None:
            privacy.check(method, self.model, self.server)
        parts = method, self.model, self.federation, training, self.seed
        self.job = Job(*parts, own, deadline, privacy)
        self.min_clients, self.faults = int(min_clients), faults
        self.max_update, self.usual = max_update, {}
        self.raises_at_once = on_failure == "raise"
        self.engine = open_engine(engine, self.job, workers)
        self._stepping = threading.Lock()
        self.messages: list[Message] = []
        self.private: dict[int, PrivateState] = {}
        self.reports: dict[int, Tensors] = {}
        self.clients = np.arange(len(federation))
        self.times_chosen = np.zeros(len(federation), dtype=np.int64)
        held_out = "+".join(federation.held_out_domains)
        label = name or f"{method.label}, seed {seed}"
        self.history = History(label, method.label, self.seed, held_out)
        self.has_started, self.must_measure, self.measured_round = False, True, -1
        self.rounds_restored = 0  # from a checkpoint, not yet counted by a fit

    # ---- rounds ---------------------------------------------------------------------
    @checked(rounds=COUNT, checkpoint=FOLDER, every=COUNT, callbacks=FUNCTIONS)
    def fit(
        self,
        rounds: int,
        progress: bool = True,
        checkpoint: str | Path | None = None,
        every: int = 1,
        callbacks: Sequence[Callable[[Run], object]] = (),
    ) -> History:
        """Run ``rounds`` more rounds and measure after the last.

        progress:    show a progress bar.
        checkpoint:  a folder for this run only. Weights, the clients' memories and the
                     history are saved there, and a new run continues from the newest
                     save, whose rounds count towards ``rounds``: start a killed script
                     again. The numbers are those of an uninterrupted run. None saves
                     nothing.
        every:       rounds between checkpoints; the last round is always saved.
        callbacks:   called with the run after each round, and after a checkpoint was
                     restored. If one returns True, this round is the last.

        Returns the history of all rounds so far. Raises ValueError, before training,
        for a checkpoint of another run or only damaged ones, and BlockingIOError when
        another run uses the folder.
        """
        with keeping(self, checkpoint, every) as keep:
            past = min(rounds, self.rounds_restored)
            self.rounds_restored -= past
            shown = {"disable": not progress, "desc": self.history.run}
            with tqdm(total=rounds, initial=past, **shown) as bar:
                ends = past == rounds and not self.rounds_restored
                is_last = past > 0 and self._ends(callbacks, ends)
                for done in range(past + 1, rounds + 1):
                    if is_last:
                        break
                    self.step(evaluate=done == rounds or None)
                    is_last = self._ends(callbacks, done == rounds)
                    keep(is_last)
                    bar.set_postfix_str(latest_score(self))
                    bar.update()
        return self.history

    def _ends(self, callbacks: Sequence[Callable[[Run], object]], ends: bool) -> bool:
        """Call all; if one returns True or ``ends``, evaluate the round, which ends."""
        answers = [call(self) for call in callbacks]
        if not (ends or any(map(_is_true, answers))):
            return False
        self.evaluate()
        return True

    @checked()
    def step(self, evaluate: bool | None = None) -> Run:
        """Run one round. If it is interrupted, the run stays as it was before.

        evaluate:  evaluate afterwards; None decides by ``evaluate_every``. An
                   interrupted evaluation is repeated before the next round.

        Raises RuntimeError while another thread is stepping this run.
        """
        if not self._stepping.acquire(blocking=False):
            raise RuntimeError(
                "another thread is stepping this run; use one run per thread"
            )
        try:
            with intra_op_threads(1), torch.enable_grad():  # in no_grad, too
                return self._step(evaluate)
        finally:
            self._stepping.release()

    def _step(self, evaluate: bool | None) -> Run:
        self._refuse_another_job()
        if not self.has_started:
            self._start()
        if self.must_measure:
            self.evaluate()
        done = play(self)
        self.server, self.messages, self.usual = done.server, done.messages, done.usual
        self.history.extend(done.record)
        for i, kept in done.private.items():
            if kept.weights or kept.memory or i in self.private:
                self.private[i] = kept
        self.reports.update({m.client: m.upload for m in self.messages if m.upload})
        self.times_chosen[done.cohort] += 1
        is_due = self.server.round % self.evaluate_every == 0
        self.must_measure = is_due if evaluate is None else evaluate
        self.show_weights()
        if self.must_measure:
            self.evaluate()
        return self

    def _start(self) -> None:
        """Exchange the setup uploads and replies, once before round 1."""
        record = self.history.empty()
        self.server, self.clients, self.private = set_up(self, record)
        self.has_started = True
        self.history.extend(record)

    def _refuse_another_job(self) -> None:
        if self.engine.job is not self.job:
            raise RuntimeError("the engine has another run's job; use one per run")

    def show_weights(self) -> None:
        """Load into ``model`` the weights that a new client would use."""
        self._shown.eval()
        self._shown.load(self.state_of(None))

    # ---- measurement ----------------------------------------------------------------
    def evaluate(self) -> None:
        """Evaluate the server's weights on every split and record it, once a round."""
        if self.measured_round == self.server.round:
            return
        with unwritten_state(self.server):
            rows = list(measure(self))
        for row in rows:
            self.history.add(self.server.round, *row)
        if not self.engine.holds_clients:
            sent = self.server.round, self.state_of(None)
            for owners in (self.federation.with_val, self.federation.with_test):
                asked = np.intersect1d(owners, self.clients).tolist()
                record_node_evaluation(self.history, *sent, asked)
        self.measured_round, self.must_measure = self.server.round, False

    @checked(client_id=WHOLE)
    def scores(self, samples: Samples, client_id: int | None = None) -> Scores:
        """Loss and score of each of ``samples`` (N,) with one client's weights.

        client_id:  None evaluates the weights that a new client would use.
        """
        if client_id is not None:
            self.federation.client(client_id)  # raises ValueError if there is none
        self._refuse_another_job()
        state = self.state_of(client_id)
        return self.engine.evaluate([Evaluation(state, samples)], self.server.round)[0]

    def state_of(self, client_id: int | None) -> Tensors:
        """The weights that predict for a client; None stands for a new client."""
        own = self.private.get(client_id, PrivateState()).weights
        state = self.method.evaluation_state(self.server, own, client_id)
        if missing := self.server.weights.keys() - state.keys():
            raise ValueError(
                f"{self.method.label}.evaluation_state must return all of the server's "
                f"weights, found no {min(missing)!r}; as in {{**server.weights, …}}"
            )
        return state

    # ---- inspection -----------------------------------------------------------------
    @property
    def method(self) -> FedAvg:
        """The method; for another, build another run."""
        return self.job.method

    @property
    def training(self) -> LocalTraining:
        """The settings of local training; for others, build another run."""
        return self.job.training

    @property
    def wire(self) -> pd.DataFrame:
        """Bytes sent: columns run, round, client, direction, part, bytes."""
        return self.history.wire()

    @checked(folder=FOLDER)
    def save(self, folder: str | Path) -> None:
        """Write the network, to be used with torch and safetensors alone.

        model.safetensors has the state of ``model``: the weights that a new client
        would use, with the layers that ``adapt`` of the method and of the augmentation
        added, as ``FedSR().adapt(network)`` does. model.json has what an input needs
        (image_shape, mean and std), the classes, the round, and ``describe()``.
        ``history.save`` writes the numbers. To continue training, use a checkpoint.
        """
        save_network(self, folder)

    def describe(self) -> dict:
        """The settings of the run as JSON values; equal runs have equal settings."""
        return describe(self)

    def __repr__(self) -> str:
        return as_text(self)
