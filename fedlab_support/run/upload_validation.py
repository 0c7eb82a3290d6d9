"""What a run believes: clients' words are checked before the server sees them."""

from __future__ import annotations

from collections import Counter

from ..core.history import History
from ..core.messages import (
    Broadcast,
    Message,
    Tensors,
    expect_alike,
    expect_tensors,
    nbytes,
    refuse_nan,
    validate,
)
from ..engines import Answer, Failure, Faults, Job
from ..engines.contract import SetupUpload
from .traffic import record_absence, record_broadcasts, record_message


def accepted_setup_uploads(
    job: Job, answers: dict[int, SetupUpload], record: History
) -> dict[int, Tensors]:
    """What clients said once, by client; the others are out of the run, with a row."""
    admitted = {}
    for i, answer in sorted(answers.items()):
        try:
            said = _unless_failed(answer)
            expect_tensors("an introduction", said)
            refuse_nan(said)
            job.method.check_upload(said, job.model)
        except Exception as error:
            record_absence(record, 0, i, error)
            continue
        admitted[i] = said
        record.add_wire(0, i, "up", setup_upload=nbytes(said))
    for i, error in _odd_ones(admitted).items():
        record_absence(record, 0, i, error)
        del admitted[i]
    return admitted


def accepted_messages(
    job: Job,
    broadcasts: dict[int, Broadcast],
    answers: dict[int, Answer],
    record: History,
    faults: Faults | None = None,
) -> list[Message]:
    """The messages that may be aggregated, by client; the others get a row each.

    Who fails on purpose by ``faults`` is recorded without a warning.
    """
    record_broadcasts(record, broadcasts)
    form = job.method.upload_spec(job.model)
    admitted, refused = {}, {}
    for i, told in broadcasts.items():
        try:
            admitted[i] = _admitted(job, told, i, answers[i], form, record)
        except Exception as error:
            refused[i] = error
    if form is None:
        refused |= _odd_ones({i: m.upload for i, m in admitted.items()})
    for i, told in broadcasts.items():
        if i in refused:
            warn = faults is None or not faults.draw(job.seed, told.round, i)
            record_absence(record, told.round, i, refused[i], warn)
        else:
            for name, value in admitted[i].metrics.items():
                record.add(told.round, "train", name, float(value), client=i)
    return [message for i, message in admitted.items() if i not in refused]


def _admitted(job: Job, told: Broadcast, client: int, answer, form, record) -> Message:
    message = _unless_failed(answer)
    if not isinstance(message, Message):
        raise ValueError(f"expected a message, found {type(message).__name__}")
    expect_tensors("weights", message.weights)
    expect_tensors("a report", message.upload)
    record_message(record, told.round, client, message)
    validate(message, told.weights, client, int(job.federation.sizes[client]))
    if form is not None:
        expect_alike("a report", message.upload, form)
    if form != {}:
        job.method.check_upload(message.upload, job.model)
    for value in message.metrics.values():
        float(value)  # raises where it is none
    return message


def _odd_ones(said: dict[int, Tensors]) -> dict[int, ValueError]:
    """Clients whose tensors are not like those of most, and in what; rows may be more.

    Of two forms that are as usual the one with more tensors counts.

    Only names, types and the shapes of rows are compared: what nobody but the clients
    knows beforehand.
    """
    forms = {i: _form_of_rows(tensors) for i, tensors in said.items()}
    times = Counter(forms.values())
    usual = max(times, key=lambda form: (times[form], len(form)), default=None)
    return {
        i: ValueError(f"expected rows as most clients send, {usual}, found {form}")
        for i, form in forms.items()
        if form != usual
    }


def _form_of_rows(tensors: Tensors) -> tuple:
    """Name, type and shape of one row of each tensor."""
    return tuple(
        (name, str(value.dtype), value.ndim, tuple(value.shape[1:]))
        for name, value in sorted(tensors.items())
    )


def _unless_failed(answer: SetupUpload | Answer):
    if isinstance(answer, Failure):
        raise ValueError(answer.reason)
    return answer[0]
