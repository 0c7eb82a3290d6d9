"""Check what clients upload before the server uses it.

Every upload passes the same steps: it succeeded, its tensors are valid, they look like
most others where the method declares no form, and they are not far larger. A client
that fails is left out, with the reason in the history.
"""

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
    unwritten,
    validate,
)
from ..engines import Failure, Job, TrainingResult, raise_mistakes
from ..engines.contract import SetupResult
from .bounds import Usual, outliers, upload_outliers
from .traffic import record_broadcasts, record_excluded, record_message


def accepted_setup_uploads(
    run, results: dict[int, SetupResult], record: History
) -> dict[int, Tensors]:
    """The setup uploads that are valid, by client; other clients leave the run.

    results:  by client, as `Engine.client_setup` returns them.
    record:   receives the bytes of accepted uploads and the reasons for the others.
    """
    job, accepted, refused = run.job, {}, {}
    for i, result in sorted(results.items()):
        try:
            upload = _unless_failed(result)
            expect_tensors("a setup upload", upload)
            refuse_nan(upload)
            with unwritten("a setup upload", [upload]):
                most = int(job.federation.sizes[i])
                job.method.check_setup(upload, job.model, most)
        except Exception as error:
            refused[i] = error
            continue
        accepted[i] = upload
        record.add_wire(0, i, "up", setup_upload=nbytes(upload))
    _raise_mistakes(run, results, refused)
    refused |= _unlike_most(accepted)
    alike = {i: upload for i, upload in accepted.items() if i not in refused}
    refused |= upload_outliers(alike, run.max_update)
    for i, error in refused.items():
        record_excluded(record, 0, i, error)
    return {i: upload for i, upload in accepted.items() if i not in refused}


def accepted_messages(
    run,
    broadcasts: dict[int, Broadcast],
    results: dict[int, TrainingResult],
    record: History,
) -> tuple[list[Message], Usual]:
    """The messages that may be aggregated, in the order of `broadcasts`.

    results:  by client, as `Engine.train` returns them.
    record:   receives bytes, metrics of accepted messages and reasons for others.

    Also returns the usual sizes of updates after this round, see ``bounds``.
    """
    record_broadcasts(record, broadcasts)
    job, accepted, refused = run.job, {}, {}
    spec = job.method.upload_spec(job.model)
    for i, broadcast in broadcasts.items():
        try:
            accepted[i] = _checked(job, broadcast, i, results[i], spec, record)
        except Exception as error:
            refused[i] = error
    _raise_mistakes(run, results, refused)
    if spec is None:
        refused |= _unlike_most({i: m.upload for i, m in accepted.items()})
    alike = {i: m for i, m in accepted.items() if i not in refused}
    server, usual = run.server, run.usual
    if alike:
        far, usual = outliers(
            server.weights, server.parameters, alike, usual, run.max_update
        )
        refused |= far
    for i, broadcast in broadcasts.items():
        if i in refused:
            drawn = run.faults and run.faults.draw(job.seed, broadcast.round, i)
            record_excluded(record, broadcast.round, i, refused[i], warn=not drawn)
        else:
            for name, value in accepted[i].metrics.items():
                record.add(broadcast.round, "train", name, value, client=i)
    messages = [message for i, message in accepted.items() if i not in refused]
    return messages, usual


def _raise_mistakes(run, results: dict, refused: dict[int, Exception]) -> None:
    """Raise a mistake that all clients share, in training or in a check of uploads."""
    slips = {
        i: Failure.of(e) for i, e in refused.items() if not isinstance(e, ValueError)
    }
    raise_mistakes(results | slips, len(run.clients), run.raises_at_once)


def _checked(
    job: Job,
    broadcast: Broadcast,
    client: int,
    result: TrainingResult,
    spec: Tensors | None,
    record: History,
) -> Message:
    """The message of a client; raises whatever a check raises, ValueError mostly."""
    message = _unless_failed(result)
    if not isinstance(message, Message):
        raise ValueError(f"expected a message, found {type(message).__name__}")
    expect_tensors("weights", message.weights)
    expect_tensors("an upload", message.upload)
    record_message(record, broadcast.round, client, message)
    most_examples = int(job.federation.sizes[client])
    validate(message, broadcast.weights, client, most_examples)
    if spec is not None:
        expect_alike("an upload", message.upload, spec)
    if spec != {}:
        with unwritten("an upload", [message.upload]):
            job.method.check_upload(message.upload, job.model)
    for value in message.metrics.values():
        float(value)  # raises unless it is a number
    return message


def _unlike_most(uploads: dict[int, Tensors]) -> dict[int, ValueError]:
    """Errors for clients whose tensors differ in form from those of most clients.

    The form is the names, types and row shapes; the number of rows may differ. Of two
    forms that are equally common, the one with more tensors counts.
    """
    forms = {i: _form_of_rows(tensors) for i, tensors in uploads.items()}
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


def _unless_failed(result: SetupResult | TrainingResult):
    """The upload of a client; ValueError with the reason if there is none."""
    if isinstance(result, Failure):
        raise ValueError(result.reason)
    return result[0]
