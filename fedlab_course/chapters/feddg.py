"""Chapter 03: FedDG's bytes of amplitudes, low frequencies, and a virtual step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.fft import fft2, fftshift, ifft2, ifftshift

from ..checking.table import Case, Mistakes, count_bytes, table

Weights = dict[str, Tensor]
Gradient = Callable[[Tensor, Tensor], Tensor]


@count_bytes(
    "the window is counted once for every channel of every image",
    (50, 3, 48, 20, 0.12),
    (9, 2, 16, 30, 0.23),
    (7, 1, 28, 28, 0.003),
    advice="Count the frequencies of one window first, then channels, images, bytes",
)
def bank_bytes(
    num_pictures: int, channels: int, height: int, width: int, alpha: float
) -> tuple[float, Mistakes]:
    """Bytes of the amplitudes that one client uploads for FedDG.

    alpha: half width of the window over the shorter side, in [0, 0.5).
    """
    exact, maps = alpha * min(height, width), num_pictures * channels
    b, wide = math.floor(exact), math.floor(alpha * max(height, width))
    window = (2 * b + 1) ** 2
    return 4 * maps * window, [
        (4 * maps * height * width, "this is the whole spectrum; how much is used?"),
        (8 * maps * height * width, "the whole spectrum, and 8 bytes each"),
        (4 * maps * b**2, "b is a half width: which signed frequencies lie within b?"),
        (4 * maps * (2 * b) ** 2, "almost: how many whole numbers lie in -b…b?"),
        (4 * maps * (b + 1) ** 2, "frequencies are signed: what is on the other side "
         "of 0?"),
        (4 * maps * (2 * b + 1), "one side of the window; an image has two axes"),
        (4 * maps * (2 * b + 1) * (b + 1), "half a window would do; all of it is sent"),
        (4 * maps * (2 * exact + 1) ** 2, "b is a whole number: no half frequencies"),
        (4 * maps * (2 * math.ceil(exact) + 1) ** 2, "b is rounded the wrong way"),
        (4 * maps * (2 * wide + 1) ** 2, "is alpha a share of the longer or shorter "
         "side?"),
        (8 * maps * window, "one real float32 per frequency: how many bytes?"),
        (maps * window, "these are numbers, not bytes"),
        (4 * num_pictures * window, "how many spectra does one image have?"),
        (4 * channels * window, "right for one image; how many are there?"),
        (4 * window, "right for one channel of one image"),
    ]  # fmt: skip


WINDOWS = [
    (8, 6, 0.6, 2),
    (9, 7, 0.6, 1),
    (8, 7, 1.0, 0),
    (7, 10, 0.0, 1),
    (5, 8, 0.6, 2),
]
"""Height, width, mixing, b: even sizes, odd ones, the mean alone, nothing foreign, and
a window that covers the whole height."""


@table("low frequencies are mixed; all others and every phase are kept")
def low_frequencies() -> Iterator[Case]:
    """`low_frequencies(x, amplitude, mixing, b)` on several sizes and windows."""
    for height, width, mixing, b in WINDOWS:
        rng = torch.Generator().manual_seed(height)
        x = torch.randn(height, width, generator=rng) - 0.4  # its mean is negative
        other = torch.randn(height, width, generator=rng).cumsum(1) + 2
        for amplitude in (fft2(other).abs(), fft2(x).abs()):
            given = f"x and amplitude {tuple(x.shape)}, mixing={mixing}, b={b}"
            mixed = fft2(x).abs().lerp(amplitude, mixing)
            single = "right with larger windows, but b=0 leaves one frequency, the "
            single += "mean: which entries do your indices or slices hold then?"
            changed = partial(_name_changed, x=x, b=b, given=given)
            yield Case(
                inputs={"x": x, "amplitude": amplitude, "mixing": mixing, "b": b},
                given=given,
                right=_put(x, mixed, _window(x, b)),
                mistakes=_exchange_mistakes(x, amplitude, mixing, b) if b else [],
                otherwise=changed if b else single,
            )


def _signed(x: Tensor) -> tuple[Tensor, Tensor]:
    """Signed frequencies of the rows, (H, 1), and of the columns, (W,)."""
    height, width = (torch.fft.fftfreq(n, d=1 / n).round() for n in x.shape)
    return height[:, None], width


def _window(x: Tensor, b: int) -> Tensor:
    """True where both frequencies lie in -b…b, (H, W)."""
    u, v = _signed(x)
    return (u.abs() <= b) & (v.abs() <= b)


def _put(x: Tensor, amplitude: Tensor, mask: Tensor | bool) -> Tensor:
    """Replace the amplitude of x where the mask is True; keep its phase."""
    spectrum = fft2(x)
    kept = torch.where(torch.as_tensor(mask), amplitude, spectrum.abs())
    return ifft2(torch.polar(kept, spectrum.angle())).real


def _exchange_mistakes(x: Tensor, foreign: Tensor, mixing: float, b: int) -> Mistakes:
    mask, own = _window(x, b), fft2(x).abs()
    mixed, swapped = own.lerp(foreign, mixing), own.lerp(foreign, 1 - mixing)
    damped = torch.where(mask, mixing * foreign, (1 - mixing) * own)
    added = torch.where(mask, mixed, (1 - mixing) * own)
    everything = "all frequencies are exchanged; where is the window?"
    return [
        (x, "nothing changed: does your amplitude reach the inverse transform?"),
        (_put(x, swapped, mask), "whose share is mixing, and what happens at 0?"),
        (_put(x, foreign, mask), "the image's own amplitude is lost in the window: "
         "where does mixing come in?"),
        (_put(x, own + mixing * foreign, mask), "the two shares do not sum to 1"),
        (_put(x, mixed, True), everything),
        (_put(x, foreign, True), everything),
        (_put(x, damped, True), "as in the report's equation: everything outside the "
         "window is damped, and inside it the image's own amplitude is lost"),
        (_put(x, added, True), "outside the window something changes, too; what should "
         "remain of the image's details?"),
        (_put(x, mixed, ~mask), "the frequencies that should stay are the ones mixed"),
        (_put(x, mixed, _window(x, b - 1)), "the window is too small"),
        (_put(x, mixed, _window(x, b + 1)), "the window is too large"),
        *_place_mistakes(x, own, foreign, mixing, b),
        *_phase_mistakes(fft2(x), torch.where(mask, mixed, own)),
    ]  # fmt: skip


def _place_mistakes(
    x: Tensor, own: Tensor, foreign: Tensor, mixing: float, b: int
) -> Mistakes:
    """Mistakes about the positions of zero and negative frequencies in a spectrum."""
    mixed, shifted, window = own.lerp(foreign, mixing), fftshift(own), _window(x, b)
    u, v = _signed(x)
    row, column = torch.arange(len(x))[:, None], torch.arange(x.shape[1])
    corners = [
        (row <= b) & (column <= b),
        (row < b) & (column < b),
        (row <= 2 * b) & (column <= 2 * b),
        (row <= b) & (v.abs() <= b),
        (u.abs() <= b) & (column <= b),
        window & ((u >= 0) == (v >= 0)),
    ]
    signs = "frequencies are signed: at which entries are the negative ones?"
    one_sided = [window & (u < b) & (v < b), window & (u > -b) & (v > -b)]
    uneven = "the window does not reach equally far below and above zero"
    middle = fftshift(window)
    centred = torch.where(middle, fftshift(mixed), shifted)
    one_shift = torch.where(middle, shifted.lerp(foreign, mixing), shifted)
    return [
        *[(_put(x, mixed, places), signs) for places in corners],
        *[(_put(x, mixed, places), uneven) for places in one_sided],
        (_put(x, mixed, middle), "you change the entries in the middle of the "
         "spectrum; where does fft2 put frequency zero?"),
        (_put(x, ifftshift(one_shift), True), "one amplitude is shifted, the other is "
         "not"),
        (_put(x, centred, True), "amplitude and phase are not shifted alike"),
        (_put(x, fftshift(centred), True), "right for even sizes, but for odd ones "
         "applying the same shift twice does not undo it"),
    ]  # fmt: skip


def _phase_mistakes(spectrum: Tensor, kept: Tensor) -> Mistakes:
    """Mistakes in the inverse transform."""
    restored = ifft2(torch.polar(kept, spectrum.angle()))
    mirrored = ifft2(torch.polar(kept, -spectrum.angle())).real
    return [
        (restored.abs(), "negative values came back positive; what turns complex "
         "numbers into an image?"),
        (ifft2(kept).real, "the phase is lost; what carries the shapes in an image?"),
        (mirrored, "the image is mirrored: the sign of the phase is reversed"),
    ]  # fmt: skip


def _name_changed(found: Tensor, x: Tensor, b: int, given: str) -> str:
    """Describe which frequencies an unknown answer changes."""
    has_changed, window = fft2((found - x).float()).abs() > 1e-2, _window(x, b)
    if not has_changed[~window].any():
        what = "only the window changes, but not to the right amplitude and phase"
    elif has_changed[window].any():
        what = "frequencies change both inside and outside the window"
    else:
        what = "frequencies outside the window change, those inside do not"
    return f"{what} ({given})"


def report_meta_step(
    theta: Weights, x: Tensor, y: Tensor, t: Tensor, lr: float, beta: float
) -> Weights:
    """One step of a linear model on images and restyled copies. It contains one bug.

    theta: weight (D,) and bias (). x: images, (N, D); y: targets, (N,).
    t: the same images in another style, (N, D).
    lr, beta: size of the real step and of the virtual one. Returns the new weights.
    """

    def gradient(at: Weights, images: Tensor) -> Weights:
        error = images @ at["weight"] + at["bias"] - y
        return {"weight": 2 * images.T @ error / len(y), "bias": 2 * error.mean()}

    inner = gradient(theta, x)
    theta = {name: theta[name] - beta * inner[name] for name in theta}  # look ahead
    outer = gradient(theta, t)
    return {name: theta[name] - lr * (inner[name] + outer[name]) for name in theta}


@table(
    "the virtual step stays virtual, and both gradients move the weights",
    changed="the received tensors changed: a step that was meant to be virtual, or the "
    "last one, is written into them. Which statements work in place?",
    replaced="the received dictionary now holds other tensors: what else still needs "
    "the weights that it held?",
)
def meta_step() -> Iterator[Case]:
    """A repaired `report_meta_step`, which leaves its inputs unchanged."""
    for images, features, lr, beta in ((7, 3, 0.1, 0.3), (4, 2, 0.2, 0.05)):
        rng = torch.Generator().manual_seed(images)
        x = torch.randn(images, features, generator=rng) + 0.5
        t = 1.5 * x + torch.randn(images, features, generator=rng)
        y = torch.randn(images, generator=rng) + 2
        weight = torch.randn(features, generator=rng)
        theta = {"weight": weight, "bias": torch.tensor(0.7)}
        start = torch.cat([weight, torch.tensor([0.7])])

        def gradient(at: Tensor, images: Tensor, y: Tensor = y) -> Tensor:
            rows = torch.cat([images, torch.ones(len(y), 1)], dim=1)
            return 2 * rows.T @ (rows @ at - y) / len(y)

        inner = gradient(start, x)
        new = start - lr * (inner + gradient(start - beta * inner, t))
        yield Case(
            inputs={"theta": theta, "x": x, "y": y, "t": t, "lr": lr, "beta": beta},
            right={"weight": new[:-1], "bias": new[-1]},
            mistakes=[
                *_step_mistakes(start, gradient, (x, t), lr, beta),
                *_gradient_mistakes(start, gradient, (x, t), lr, beta),
            ],
            otherwise="this is not the step that the two gradients give. Change only "
            "what causes the bug; the two gradients of the original are right",
        )


def _step_mistakes(
    start: Tensor,
    gradient: Gradient,
    images: tuple[Tensor, Tensor],
    lr: float,
    beta: float,
) -> Mistakes:
    x, t = images
    inner = gradient(start, x)
    ahead, far = start - beta * inner, start - lr * inner
    outer = gradient(ahead, t)
    both, beyond = inner + outer, inner + gradient(far, t)
    alone = "only one of the two gradients moves the weights: "
    return [
        (ahead - lr * both, "the step is still the original's. Follow the name theta "
         "line by line: which weights does it hold where the last line begins?"),
        (start, "the weights came back as they were: no step was taken"),
        (ahead, "only the virtual step came back; where is the real one?"),
        (ahead - lr * outer, alone + "and the virtual step is in the result, too"),
        (start - lr * inner, alone + "where do the restyled images come in?"),
        (start - lr * outer, alone + "do the client's own images count, too?"),
        (start - beta * beyond, "which step is lr for, which beta?"),
        (start - lr * beyond, "how long is the virtual step?"),
        (start - beta * both, "how long is the real step?"),
        (start - lr * both / 2, "the two gradients are averaged; the rule adds them"),
        (start + lr * both, "the step goes uphill"),
    ]  # fmt: skip


def _gradient_mistakes(
    start: Tensor,
    gradient: Gradient,
    images: tuple[Tensor, Tensor],
    lr: float,
    beta: float,
) -> Mistakes:
    """Steps from the right weights with a gradient taken elsewhere."""
    x, t = images
    inner = gradient(start, x)
    ahead = start - beta * inner
    outer = gradient(ahead, t)
    # For a linear model, H v is the gradient at start + v minus the one at start.
    curved = outer - beta * (gradient(start + outer, x) - inner)
    foreign = gradient(start, t)
    return [
        (start - lr * (inner + foreign), "both gradients are taken at the same "
         "weights: what is the virtual step for?"),
        (start - lr * (gradient(ahead, x) + outer), "the gradient of the client's own "
         "images is taken after the virtual step"),
        (start - lr * (inner + gradient(ahead, x)), "t has no effect; where is it "
         "used?"),
        (start - lr * (foreign + gradient(start - beta * foreign, x)), "x and t are "
         "swapped"),
        (start - lr * (inner + curved), "you also differentiate through the virtual "
         "step (second order); here its gradient is a constant"),
    ]  # fmt: skip
