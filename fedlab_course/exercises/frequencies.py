"""The check of chapter 03's core task: exchange the amplitudes of low frequencies."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.fft import fft2, fftshift, ifft2, ifftshift

from .checking import Wrong, call, name_mistake
from .tensors import expect_tensor, is_near

# Height, width, mixing, b: even sizes, odd ones, the mean alone, nothing foreign, and
# a window that reaches over the whole height.
CASES = [
    (8, 6, 0.6, 2),
    (9, 7, 0.6, 1),
    (8, 7, 1.0, 0),
    (7, 10, 0.0, 1),
    (5, 8, 0.6, 2),
]


def check_low_frequencies(answer: Callable[..., Tensor]) -> str:
    """Check `low_frequencies(x, amplitude, mixing, b)` on several sizes and windows."""
    for height, width, mixing, b in CASES:
        rng = torch.Generator().manual_seed(height)
        x = torch.randn(height, width, generator=rng) - 0.4  # its mean is negative
        other = torch.randn(height, width, generator=rng).cumsum(1) + 2
        for amplitude in (fft2(other).abs(), fft2(x).abs()):
            _check_picture(answer, x, amplitude, mixing, b)
    return "low frequencies are mixed, all others and every phase are kept"


def _check_picture(
    answer: Callable, x: Tensor, amplitude: Tensor, mixing: float, b: int
) -> None:
    handed = x.clone(), amplitude.clone()
    shape = tuple(x.shape)
    given = f"x and amplitude {shape}, mixing={mixing}, b={b}"
    value = call(answer, *handed, mixing, b, given=given)
    if not (torch.equal(handed[0], x) and torch.equal(handed[1], amplitude)):
        raise Wrong("x or amplitude changed; leave what you are given as it is")
    found = expect_tensor(value, shape)
    mixed = fft2(x).abs().lerp(amplitude, mixing)
    if is_near(found, _put(x, mixed, _window(x, b))):
        return
    if b == 0:
        raise Wrong(
            "right with larger windows, but b=0 leaves one frequency, the mean: which "
            "entries do your indices or slices hold then?"
        )
    name_mistake(found, _mistakes(x, amplitude, mixing, b), is_near)
    raise Wrong(f"{_look(found - x, b)} ({given})")


def _signed(x: Tensor) -> tuple[Tensor, Tensor]:
    """Signed frequencies of the rows, (H, 1), and of the columns, (W,)."""
    height, width = (torch.fft.fftfreq(n, d=1 / n).round() for n in x.shape)
    return height[:, None], width


def _window(x: Tensor, b: int) -> Tensor:
    """True where both frequencies lie in -b…b, (H, W)."""
    u, v = _signed(x)
    return (u.abs() <= b) & (v.abs() <= b)


def _put(x: Tensor, amplitude: Tensor, mask: Tensor | bool) -> Tensor:
    """Give x another amplitude where the mask is True, and keep its phase."""
    spectrum = fft2(x)
    kept = torch.where(torch.as_tensor(mask), amplitude, spectrum.abs())
    return ifft2(torch.polar(kept, spectrum.angle())).real


def _mistakes(
    x: Tensor, foreign: Tensor, mixing: float, b: int
) -> list[tuple[Tensor, str]]:
    """What typical mistakes give, (H, W), and a hint for each."""
    mask, own = _window(x, b), fft2(x).abs()
    mixed, swapped = own.lerp(foreign, mixing), own.lerp(foreign, 1 - mixing)
    damped = torch.where(mask, mixing * foreign, (1 - mixing) * own)
    added = torch.where(mask, mixed, (1 - mixing) * own)
    everything = "all frequencies are exchanged; where is the window?"
    return [
        (x, "nothing changed: does your amplitude reach the inverse transform?"),
        (_put(x, swapped, mask), "whose share is mixing, and what is it at 0?"),
        (
            _put(x, foreign, mask),
            "the own amplitude is lost in the window: where does mixing come in?",
        ),
        (_put(x, own + mixing * foreign, mask), "the two shares do not sum to 1"),
        (_put(x, mixed, True), everything),
        (_put(x, foreign, True), everything),
        (
            _put(x, damped, True),
            "as in the report's equation: what lies outside the window is damped, and "
            "inside the own amplitude is lost",
        ),
        (
            _put(x, added, True),
            "outside the window something changes, too; what should stay of the "
            "picture's details?",
        ),
        (_put(x, mixed, ~mask), "the frequencies that should stay are the ones mixed"),
        (_put(x, mixed, _window(x, b - 1)), "too small a window: does b belong to it?"),
        (_put(x, mixed, _window(x, b + 1)), "the window is too large"),
        *_wrong_places(x, own, foreign, mixing, b),
        *_wrong_phases(fft2(x), torch.where(mask, mixed, own)),
    ]


def _wrong_places(
    x: Tensor, own: Tensor, foreign: Tensor, mixing: float, b: int
) -> list[tuple[Tensor, str]]:
    """Mistakes about where a spectrum has its frequency zero, and the negative ones."""
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
    signs = "frequencies are signed: at which entries do the negative ones stand?"
    one_sided = [window & (u < b) & (v < b), window & (u > -b) & (v > -b)]
    uneven = "the window does not reach as far below zero as above it"
    middle = fftshift(window)
    centred = torch.where(middle, fftshift(mixed), shifted)
    one_shift = torch.where(middle, shifted.lerp(foreign, mixing), shifted)
    return [
        *[(_put(x, mixed, places), signs) for places in corners],
        *[(_put(x, mixed, places), uneven) for places in one_sided],
        (
            _put(x, mixed, middle),
            "you change the entries in the middle of the spectrum; where does fft2 "
            "put frequency zero?",
        ),
        (
            _put(x, ifftshift(one_shift), True),
            "one of the two amplitudes is shifted, the other is not",
        ),
        (_put(x, centred, True), "amplitude and phase are not shifted alike"),
        (
            _put(x, fftshift(centred), True),
            "right for even sizes, but at odd ones the same shift twice does not lead "
            "back",
        ),
    ]


def _wrong_phases(spectrum: Tensor, kept: Tensor) -> list[tuple[Tensor, str]]:
    """Mistakes on the way back to a picture."""
    mirrored = ifft2(torch.polar(kept, -spectrum.angle())).real
    return [
        (
            ifft2(torch.polar(kept, spectrum.angle())).abs(),
            "negative values came back positive; what turns complex numbers into a "
            "picture?",
        ),
        (ifft2(kept).real, "the phase is lost; what holds the shapes of a picture?"),
        (mirrored, "the picture is mirrored: the phase has its sign turned"),
    ]


def _look(change: Tensor, b: int) -> str:
    """Say at which frequencies an unknown answer changes the picture."""
    has_changed, window = fft2(change.float()).abs() > 1e-2, _window(change, b)
    if not has_changed[~window].any():
        return "only the window changes, but not to the right amplitude and phase"
    if has_changed[window].any():
        return "frequencies change both inside and outside the window"
    return "frequencies outside the window change, those inside do not"
