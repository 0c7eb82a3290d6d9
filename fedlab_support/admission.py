"""What a run believes: clients' words are checked before the server sees them."""

from __future__ import annotations

from .account import record_absence, record_broadcasts, record_message
from .engines import Answer, Failure, Faults, Job
from .engines.contract import Introduction
from .history import History
from .messages import (
    Broadcast,
    Message,
    Tensors,
    expect_alike,
    expect_tensors,
    nbytes,
    refuse_nan,
    validate,
)


def admit_introductions(
    job: Job, answers: dict[int, Introduction], record: History
) -> dict[int, Tensors]:
    """What clients said once, by client; the others are out of the run, with a row."""
    admitted = {}
    for i, answer in sorted(answers.items()):
        try:
            said = _unless_failed(answer)
            expect_tensors("an introduction", said)
            refuse_nan(said)
            job.method.check(said)
        except Exception as error:
            record_absence(record, 0, i, error)
            continue
        admitted[i] = said
        record.add_parts(0, i, "up", introduction=nbytes(said))
    return admitted


def admit_messages(
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
    messages = []
    for i, told in broadcasts.items():
        try:
            messages.append(_admitted(job, told, i, answers[i], record))
        except Exception as error:
            warn = faults is None or not faults.draw(job.seed, told.round, i)
            record_absence(record, told.round, i, error, warn)
    return messages


def _admitted(job: Job, told: Broadcast, client: int, answer, record) -> Message:
    message = _unless_failed(answer)
    if not isinstance(message, Message):
        raise ValueError(f"expected a message, found {type(message).__name__}")
    expect_tensors("weights", message.weights)
    expect_tensors("a report", message.report)
    record_message(record, told.round, client, message)
    validate(message, told.weights, client, int(job.federation.sizes[client]))
    if (form := job.method.report_form(job.model)) is not None:
        expect_alike("a report", message.report, form)
    job.method.check(message.report)
    curves = {name: float(value) for name, value in message.metrics.items()}
    for name, value in curves.items():
        record.add(told.round, "train", name, value, client=client)
    return message


def _unless_failed(answer: Introduction | Answer):
    if isinstance(answer, Failure):
        raise ValueError(answer.reason)
    return answer[0]
