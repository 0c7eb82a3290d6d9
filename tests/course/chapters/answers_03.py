"""Answers to chapter 03: the divergence, FedSR, low frequencies, the virtual step."""

from dataclasses import dataclass

import torch
from torch.distributions import Normal, kl_divergence
from torch.fft import fft2, fftshift, ifft2, ifftshift

from fedlab_course.exercises import report_meta_step
from fedlab_support.methods.fedavg import FedAvg
from fedlab_support.methods.feddg import FedDG
from fedlab_support.methods.fedsr import FedSR

RIGHT, WRONG = {}, {}  # of each exercise, for test_answers
HIDDEN = {"cmi": ["**"], "low_frequencies": ["fftfreq", "1 - mixing"]}


def cmi(mu, sigma, m, tau):
    squares = (sigma**2 + (mu - m) ** 2) / (2 * tau**2)
    return (torch.log(tau / sigma) + squares - 0.5).sum(dim=1).mean()


def cmi_by_library(mu, sigma, m, tau):
    return kl_divergence(Normal(mu, sigma), Normal(m, tau)).sum() / len(mu)


def cmi_by_loop(mu, sigma, m, tau):
    total = 0
    for row in zip(mu, sigma, m, tau, strict=True):
        total = total + cmi(*(tensor[None] for tensor in row))
    return total / len(mu)


RIGHT["cmi"] = [cmi, cmi_by_library, cmi_by_loop]


def divergence_with(terms, reduce=lambda value: value.sum(1).mean()):
    """A divergence with other terms, of log(tau/sigma), mu - m, sigma and tau."""

    def answer(mu, sigma, m, tau):
        return reduce(terms(torch.log(tau / sigma), mu - m, sigma, tau))

    return answer


def right_terms(log, away, sigma, tau):
    return log + (sigma**2 + away**2) / (2 * tau**2) - 0.5


WRONG["cmi"] = [
    (divergence_with(right_terms, torch.mean), "mean over the features"),
    (divergence_with(right_terms, torch.sum), "sum over the batch"),
    (divergence_with(right_terms, lambda v: v.sum(0).mean()), "two axes"),
    (divergence_with(right_terms, lambda v: v.sum(1)), ("per image", "(5,)")),
    (divergence_with(right_terms, lambda v: v.mean(0)), ("per feature", "(3,)")),
    (divergence_with(right_terms, lambda v: v), "image and feature"),
    (lambda mu, sigma, m, tau: cmi(m, tau, mu, sigma), "direction"),
    (
        divergence_with(lambda log, a, s, t: log + (s**2 + a**2) / (2 * t**2)),
        "equal Gaussians",
    ),
    (divergence_with(lambda log, a, s, t: right_terms(-log, a, s, t)), "grow"),
    (
        divergence_with(lambda log, a, s, t: right_terms(-log, a, s, t), torch.mean),
        ("grow", "besides"),
    ),
    (
        lambda mu, sigma, m, tau: cmi(mu, sigma.sqrt(), m, tau.sqrt()),
        "take them for variances",
    ),
    (
        divergence_with(lambda log, a, s, t: right_terms(log, a, s.sqrt(), t)),
        "check the units",
    ),
    (
        divergence_with(lambda log, a, s, t: log + (s**2 + a**2) / t**2 - 0.5),
        "squares weigh",
    ),
    (
        divergence_with(lambda log, a, s, t: right_terms(2 * log, a, s, t)),
        "logarithm weighs",
    ),
    (divergence_with(lambda *terms: 2 * right_terms(*terms)), "too large"),
    (divergence_with(lambda log, *rest: right_terms(0, *rest)), "is missing"),
    (divergence_with(lambda *terms: -right_terms(*terms)), "never negative"),
    (divergence_with(lambda log, a, s, t: log - a**2), "by hand"),
    (lambda *given: cmi(*(tensor.detach() for tensor in given)), "no gradient"),
    (
        lambda *given: torch.tensor(cmi(*given).item(), requires_grad=True),
        "no gradient",  # of a new leaf
    ),
    (lambda mu, sigma, *to: cmi(mu, sigma, *(t.detach() for t in to)), "no gradient"),
    (lambda mu, sigma, m, tau: cmi(mu, sigma - sigma, m, tau), "infinite"),
    (lambda *given: cmi(*given).item(), "float"),
    (lambda mu, *_: mu.sub_(1).mean(), ("RuntimeError", "in-place")),
]


def low_frequencies(x, amplitude, mixing, b):
    spectrum = fft2(x)
    height, width = x.shape
    u = torch.fft.fftfreq(height, d=1 / height)[:, None].round()
    v = torch.fft.fftfreq(width, d=1 / width).round()
    inside = (u.abs() <= b) & (v.abs() <= b)
    mixed = (1 - mixing) * spectrum.abs() + mixing * amplitude
    kept = torch.where(inside, mixed, spectrum.abs())
    return ifft2(kept * torch.exp(1j * spectrum.angle())).real


def centred(x, amplitude, mixing, b, back=ifftshift, shift_foreign=fftshift):
    """The usual code: the window in the middle of a shifted spectrum."""
    own, foreign = fftshift(fft2(x).abs()), shift_foreign(amplitude)
    middle = [slice(n // 2 - b, n // 2 + b + 1) for n in x.shape]
    mixed = (1 - mixing) * own[tuple(middle)] + mixing * foreign[tuple(middle)]
    own[tuple(middle)] = mixed
    return ifft2(torch.polar(back(own), fft2(x).angle())).real


def by_the_package(x, amplitude, mixing, b):
    method = FedDG(alpha=(b + 0.4) / min(x.shape))
    rows, columns = method.window(*x.shape)
    share = torch.tensor([mixing])
    low = amplitude[rows, columns][None, None]
    return method.restyle(x[None, None], low, share)[0, 0]


def in_double(x, amplitude, mixing, b):
    return low_frequencies(x.double(), amplitude.double(), mixing, b)


RIGHT["low_frequencies"] = [low_frequencies, centred, in_double, by_the_package]


def restyled_with(change, inverse=lambda z: ifft2(z).real):
    """Low frequencies with another amplitude, of own, foreign, mixing and b."""

    def answer(x, amplitude, mixing, b):
        kept = change(fft2(x).abs(), amplitude, mixing, b)
        return inverse(torch.polar(kept, fft2(x).angle()))

    return answer


def signed_slices(own, foreign, mixing, b):
    """Right, but for b=0: the slice that starts at -0 holds everything."""
    kept, mixed = own.clone(), own.lerp(foreign, mixing)
    for rows in (slice(0, b + 1), slice(-b, None)):
        for columns in (slice(0, b + 1), slice(-b, None)):
            kept[rows, columns] = mixed[rows, columns]
    return kept


def block(own, foreign, mixing, rows, columns):
    kept = own.clone()
    kept[rows, columns] = own.lerp(foreign, mixing)[rows, columns]
    return kept


def corner(own, foreign, mixing, b):
    return block(own, foreign, mixing, slice(b + 1), slice(b + 1))


def corner_without_b(own, foreign, mixing, b):
    return block(own, foreign, mixing, slice(b), slice(b))


def wide_corner(own, foreign, mixing, b):
    return block(own, foreign, mixing, slice(2 * b + 1), slice(2 * b + 1))


def middle(own, foreign, mixing, b):
    places = [slice(n // 2 - b, n // 2 + b + 1) for n in own.shape]
    return block(own, foreign, mixing, *places)


def window(own, b):
    numbers = [torch.arange(n) for n in own.shape]
    rows, columns = (
        torch.minimum(k, n - k) for k, n in zip(numbers, own.shape, strict=True)
    )
    return (rows[:, None] <= b) & (columns <= b)


def in_window(inside, outside=lambda own, foreign, mixing: own):
    def change(own, foreign, mixing, b):
        amplitudes = own, foreign, mixing
        return torch.where(window(own, b), inside(*amplitudes), outside(*amplitudes))

    return change


def as_asked(own, foreign, mixing):
    return (1 - mixing) * own + mixing * foreign


def wrong_exchanges():
    """Typical mistakes of the exchange, each with words of its hint."""

    def report(own, foreign, mixing):
        return (1 - mixing) * own

    def mirrors(x, amplitude, mixing, b):
        return low_frequencies(x, amplitude, mixing, b).flip(0, 1).roll((1, 1), (0, 1))

    def without_phase(x, amplitude, mixing, b):
        kept = in_window(as_asked)(fft2(x).abs(), amplitude, mixing, b)
        return ifft2(kept).real

    def shifted_back_twice(x, amplitude, mixing, b):
        return centred(x, amplitude, mixing, b, back=fftshift)

    def stays_shifted(x, amplitude, mixing, b):
        return centred(x, amplitude, mixing, b, back=lambda own: own)

    def foreign_unshifted(x, amplitude, mixing, b):
        return centred(x, amplitude, mixing, b, shift_foreign=lambda own: own)

    def writes(x, amplitude, mixing, b):
        amplitude *= mixing
        return x

    same = in_window(as_asked)
    return [
        (restyled_with(corner), "are the negative ones"),
        (restyled_with(wide_corner), "are the negative ones"),
        (restyled_with(corner_without_b), "are the negative ones"),
        (restyled_with(signed_slices), "b=0"),
        (restyled_with(middle), "put frequency zero"),
        (restyled_with(in_window(lambda a, f, s: s * a + (1 - s) * f)), "at 0"),
        (restyled_with(in_window(lambda a, f, s: f)), "own amplitude is lost in the"),
        (restyled_with(in_window(lambda a, f, s: a + s * f)), "sum to 1"),
        (restyled_with(in_window(as_asked, as_asked)), "where is the window"),
        (restyled_with(in_window(lambda a, f, s: s * f, report)), "report's"),
        (restyled_with(in_window(as_asked, report)), "details"),
        (restyled_with(in_window(lambda a, f, s: a, as_asked)), "are the ones mixed"),
        (restyled_with(lambda a, f, s, b: same(a, f, s, b + 1)), "too large"),
        (restyled_with(lambda a, f, s, b: same(a, f, s, b - 1)), "too small"),
        (restyled_with(lambda a, f, s, b: 2 * same(a, f, s, b)), "inside and outside"),
        (restyled_with(in_window(lambda a, f, s: a * f)), "only the window changes"),
        (restyled_with(same, inverse=ifft2), "complex"),
        (restyled_with(same, inverse=lambda z: ifft2(z).abs()), "came back positive"),
        (without_phase, "phase is lost"),
        (mirrors, "mirrored"),
        (shifted_back_twice, "odd"),
        (stays_shifted, "not shifted alike"),
        (foreign_unshifted, "the other is not"),
        (writes, "'amplitude' changed"),
        (lambda x, *_: x.clone(), "nothing changed"),
        (lambda x, *_: fft2(x).abs()[:3], "shape (8, 6)"),
        (lambda x, *_: x.numpy(), "ndarray"),
        (lambda x, *_: x / 0, "infinite"),
    ]


WRONG["low_frequencies"] = wrong_exchanges()


def slope(theta, x, y):
    error = x @ theta["weight"] + theta["bias"] - y
    return {"weight": 2 * x.T @ error / len(y), "bias": 2 * error.mean()}


def moved(theta, *steps):
    """Weights after several (size, gradient) steps downhill."""
    return {name: theta[name] - sum(a * g[name] for a, g in steps) for name in theta}


def meta_step(theta, x, y, t, lr, beta):
    inner = slope(theta, x, y)
    outer = slope(moved(theta, (beta, inner)), t, y)
    return moved(theta, (lr, inner), (lr, outer))


def meta_step_by_autograd(theta, x, y, t, lr, beta, second_order=False):
    names = list(theta)
    start = [theta[name].clone().requires_grad_() for name in names]

    def loss(values, pictures):
        weights = dict(zip(names, values, strict=True))
        error = pictures @ weights["weight"] + weights["bias"] - y
        return (error**2).mean()

    own = loss(start, x)
    inner = torch.autograd.grad(own, start, create_graph=True)
    if not second_order:
        inner = [gradient.detach() for gradient in inner]
    ahead = [w - beta * g for w, g in zip(start, inner, strict=True)]
    total = loss(start, x) + loss(ahead, t)
    slopes = torch.autograd.grad(total, start)
    stepped = [w - lr * g for w, g in zip(start, slopes, strict=True)]
    return dict(zip(names, stepped, strict=True))


RIGHT["meta_step"] = [meta_step, meta_step_by_autograd]


def wrong_meta_steps():
    """Repairs of `report_meta_step` that are none, each with words of its hint."""

    def writes_into_tensors(theta, x, y, t, lr, beta):
        result = meta_step(theta, x, y, t, lr, beta)
        for name, tensor in theta.items():
            tensor.copy_(result[name])
        return theta

    def writes_into_dictionary(theta, x, y, t, lr, beta):
        theta.update(meta_step(theta, x, y, t, lr, beta))
        return theta

    def writes_into_pictures(theta, x, y, t, lr, beta):
        t += 1
        return meta_step(theta, x, y, t - 1, lr, beta)

    def same_weights(theta, x, y, t, lr, beta):
        return moved(theta, (lr, slope(theta, x, y)), (lr, slope(theta, t, y)))

    def both_ahead(theta, x, y, t, lr, beta):
        ahead = moved(theta, (beta, slope(theta, x, y)))
        return moved(theta, (lr, slope(ahead, x, y)), (lr, slope(ahead, t, y)))

    def only_inner(theta, x, y, t, lr, beta):
        return moved(theta, (lr, slope(theta, x, y)))

    def only_outer(theta, x, y, t, lr, beta):
        ahead = moved(theta, (beta, slope(theta, x, y)))
        return moved(theta, (lr, slope(ahead, t, y)))

    def one_after_the_other(theta, x, y, t, lr, beta):
        ahead = moved(theta, (beta, slope(theta, x, y)))
        return moved(ahead, (lr, slope(ahead, t, y)))

    def only_virtual(theta, x, y, t, lr, beta):
        return moved(theta, (beta, slope(theta, x, y)))

    def exchanged_sizes(theta, x, y, t, lr, beta):
        return meta_step(theta, x, y, t, beta, lr)

    def long_virtual(theta, x, y, t, lr, beta):
        return meta_step(theta, x, y, t, lr, lr)

    def long_real(theta, x, y, t, lr, beta):
        return meta_step(theta, x, y, t, beta, beta)

    def averaged(theta, x, y, t, lr, beta):
        return meta_step(theta, x, y, t, lr / 2, beta)

    def uphill(theta, x, y, t, lr, beta):
        return meta_step(theta, x, y, t, -lr, beta)

    def exchanged_pictures(theta, x, y, t, lr, beta):
        return meta_step(theta, t, y, x, lr, beta)

    def twice_the_own(theta, x, y, t, lr, beta):
        return meta_step(theta, x, y, x, lr, beta)

    def second_order(*inputs):
        return meta_step_by_autograd(*inputs, second_order=True)

    def without_bias(*inputs):
        return {"weight": meta_step(*inputs)["weight"]}

    def wrong_shape(*inputs):
        result = meta_step(*inputs)
        return {**result, "bias": result["bias"][None]}

    def elsewhere(theta, x, y, t, lr, beta):
        return meta_step(moved(theta, (1, theta)), x, y, t, lr, beta)

    return [
        (report_meta_step, "line by line"),
        (writes_into_tensors, "received tensors changed"),
        (writes_into_dictionary, "received dictionary"),
        (writes_into_pictures, "'t' changed"),
        (same_weights, "same weights"),
        (both_ahead, "taken after"),
        (only_inner, "restyled images"),
        (only_outer, "client's own images count"),
        (one_after_the_other, "virtual step is in the result"),
        (only_virtual, "only the virtual step"),
        (exchanged_sizes, "lr for"),
        (long_virtual, "long is the virtual"),
        (long_real, "long is the real"),
        (averaged, "averaged"),
        (uphill, "uphill"),
        (exchanged_pictures, "swapped"),
        (twice_the_own, "t has no effect"),
        (second_order, "second order"),
        (lambda theta, *_: theta, "no step was taken"),
        (without_bias, "names"),
        (wrong_shape, "'bias'"),
        (elsewhere, "what causes the bug"),
    ]


WRONG["meta_step"] = wrong_meta_steps()


@dataclass(frozen=True)
class MyFedSR(FedAvg):
    weighting: str = "equal"
    l2r_weight: float = 0.01
    cmi_weight: float = 0.001

    def parts(self, model, batch, context):
        mu, sigma = model.head.gaussian(model.encode(batch.x))
        z = mu + sigma * torch.randn(mu.shape, generator=context.rng)
        task = context.task.loss(model.head.classifier(z), batch.y)
        return task, z.norm(dim=1), model.head.cmi(mu, sigma, batch.y)

    def loss(self, model, batch, context):
        task, length, cmi = self.parts(model, batch, context)
        return task + self.l2r_weight * length.mean() + self.cmi_weight * cmi


RIGHT["fedsr"] = [MyFedSR]


def fedsr_with(loss):
    """MyFedSR with another loss: a function of itself, model, batch and context."""
    return type("Other", (MyFedSR,), {"loss": loss})


def of_parts(combine):
    """FedSR with another sum of its parts: task, lengths of z, CMI."""
    return fedsr_with(lambda self, *given: combine(self, *self.parts(*given)))


def with_other_noise(self, model, batch, context):
    context.rng.manual_seed(7)
    return MyFedSR.loss(self, model, batch, context)


def detached(self, model, batch, context):
    task, length, cmi = self.parts(model, batch, context)
    return task + self.l2r_weight * length.mean() + self.cmi_weight * cmi.detach()


def stumbles(self, model, batch, context):
    return model.heads


WRONG["fedsr"] = [
    (of_parts(lambda s, task, length, cmi: task + length.mean() + cmi), "weights"),
    (
        of_parts(
            lambda s, t, length, c: t + s.l2r_weight * length.sum() + s.cmi_weight * c
        ),
        "summed over the batch",
    ),
    (
        of_parts(
            lambda s, t, length, c: (
                t + s.l2r_weight * length.square().mean() + s.cmi_weight * c
            )
        ),
        "squared",
    ),
    (
        of_parts(
            lambda s, t, length, c: t + s.l2r_weight * length.norm() + s.cmi_weight * c
        ),
        "whole batch",
    ),
    (
        of_parts(lambda s, t, length, c: t + length.mean() / 100 + c / 1000),
        "fields",
    ),
    (of_parts(lambda s, t, length, c: t + s.cmi_weight * c), "norm of z"),
    (of_parts(lambda s, t, *_: t), "penalties are missing"),
    (of_parts(lambda s, t, length, c: length), "shape ()"),
    (fedsr_with(with_other_noise), "context.rng"),
    (fedsr_with(detached), "detached"),
    (fedsr_with(stumbles), "line 2 of stumbles"),
    (fedsr_with(lambda self, *given: FedSR().loss(*given)), "asked to write"),
    (FedSR, "has its loss already"),
    (MyFedSR(), "found MyFedSR object"),
    (FedAvg, "keyword argument 'l2r_weight'"),
    (lambda *_: 0.0, "class"),
]


STUBS = {"fedsr": [fedsr_with(lambda *_: ...)]}
