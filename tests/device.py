"""A device that no machine lacks: it computes as the CPU and refuses as a GPU.

``torch.device("pretend")`` is PyTorch's back end for private use. Each of its tensors
wraps one on the CPU, on which every operation runs. What CUDA refuses is refused here,
too: mixing devices (a CPU tensor without dimensions may join where CUDA lets it),
``.numpy()``, and random numbers of a generator on the CPU. Random numbers without a
generator are refused as well, because a GPU would draw others than the CPU does.

    install()                       # once per process
    Run(…, device="pretend").step()

Autocast does nothing on it: bf16 is not tried.
"""

from __future__ import annotations

from functools import cache

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import return_and_correct_aliasing

NAME = "pretend"
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

CROSSING = {"_to_copy", "copy_", "copy", "_foreach_copy_"}
"""Operations that copy from one device to another."""

INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
"""Operations whose second argument, the indices, may be on the CPU."""

TAKES_SCALARS = {"masked_fill", "masked_fill_", "fill", "fill_", "index_put_"}
"""Further operations that CUDA lets a CPU tensor without dimensions join."""

QUIET = {"native_dropout", "_fused_sdp_choice", "_scaled_dot_product_attention_math"}
"""Operations that draw nothing as our networks call them: their dropout is 0."""


class OtherDevice(RuntimeError):
    """What a GPU would have refused."""


class Pretend(torch.Tensor):
    """A tensor of the device; its values are in ``inner``, on the CPU."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )

    def __init__(self, inner: torch.Tensor):
        if isinstance(inner, Pretend):
            raise TypeError(f"expected a tensor of the CPU, found one of {NAME}")
        self.inner = inner

    def __repr__(self, **_) -> str:
        return f"{NAME}({self.inner!r})"

    def numpy(self, **_):
        """Refused: an array lies in the memory of the CPU."""
        raise TypeError(
            f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() to "
            "copy the tensor to host memory first."
        )

    __array__ = numpy

    def tolist(self):
        """Its numbers; PyTorch's own form knows no subclasses."""
        return self.inner.tolist()

    def __format__(self, spec: str) -> str:
        """That of its number, for the same reason."""
        return format(self.inner, spec)

    @property
    def data(self):
        """As of every tensor; assigning to it replaces the values on the CPU."""
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, value):
        torch.Tensor.data.__set__(self, value)
        self.inner = value.inner

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return computed(operation, args, kwargs or {})


class Traits:
    """What is known of an operation of PyTorch."""

    def __init__(self, operation):
        self.name = operation._schema.name.removeprefix("aten::")
        tags = operation.tags
        self.draws = torch.Tag.nondeterministic_seeded in tags
        self.draws &= self.name not in QUIET
        self.takes_scalars = torch.Tag.pointwise in tags or self.name in TAKES_SCALARS
        self.is_composite = operation.has_kernel_for_dispatch_key(COMPOSITE)
        self.is_mutable = operation._schema.is_mutable
        self.is_simply_in_place = self.is_mutable and self.name.endswith("_")
        self.is_simply_in_place &= len(operation._schema.returns) == 1
        self.is_simply_in_place &= torch.Tag.inplace_view not in tags
        self.is_view = operation.is_view


traits_of = cache(Traits)


def computed(operation, args, kwargs):
    """The result of an operation, on the device unless it was to go to another.

    Raises OtherDevice for what a GPU refuses.
    """
    traits = traits_of(operation)
    if traits.is_composite:  # in inference mode they arrive before they are taken apart
        return operation.decompose(*args, **kwargs)
    strays = []
    values = [on_cpu(value, strays) for value in args]
    inner = {name: on_cpu(value, strays) for name, value in kwargs.items()}
    if strays or traits.draws:
        check(traits, args, kwargs, strays)
    device = inner.get("device")
    stays = device is None or device.type == NAME
    if device is not None and stays:
        inner["device"] = torch.device("cpu")
    inner.pop("pin_memory", None)
    found = operation(*values, **inner)
    if not stays:
        return found
    if traits.is_simply_in_place:
        return args[0]
    base = args[0] if args and isinstance(args[0], Pretend) else None
    if traits.is_view and base is not None and not base.is_inference():
        with torch.inference_mode(False):  # a view is of the kind of its base
            return on_device(found)
    found = on_device(found)
    if traits.is_mutable:
        return return_and_correct_aliasing(operation, args, kwargs, found)
    return found


def on_cpu(value, strays: list | None = None):
    """The same value with the CPU's tensors; lists and tuples are gone through.

    strays:  receives the tensors that were on the CPU before.
    """
    if isinstance(value, Pretend):
        return value.inner
    if isinstance(value, list | tuple):
        return type(value)([on_cpu(one, strays) for one in value])
    if strays is not None and isinstance(value, torch.Tensor):
        strays.append(value)
    return value


def on_device(value):
    """The same value with tensors of the device; lists and tuples are gone through."""
    if isinstance(value, torch.Tensor):
        return Pretend(value)
    if isinstance(value, list | tuple):
        return type(value)(map(on_device, value))
    return value


def check(traits: Traits, args, kwargs, strays: list) -> None:
    """Refuse what CUDA refuses; strays: the tensors that are on the CPU."""
    if traits.draws:
        raise OtherDevice(
            f"Expected a '{NAME}' device type for generator but found "
            f"{kwargs.get('generator')!r} in {traits.name}"
        )
    if traits.name in CROSSING:
        return
    if traits.name in INDEXING:
        on_cpu((args[0], *args[2:], *kwargs.values()), strays := [])
    if traits.takes_scalars and len(strays) == 1 and strays[0].dim() == 0:
        written = args[0] if traits.is_simply_in_place else kwargs.get("out")
        if written is not strays[0]:
            return
    if strays:
        raise OtherDevice(
            "Expected all tensors to be on the same device, but found at least two "
            f"devices, {NAME}:0 and {strays[0].device}! ({traits.name}, a tensor of "
            f"shape {tuple(strays[0].shape)})"
        )


class Module(backend_registration._DummyBackendModule):
    """What PyTorch asks of ``torch.pretend``."""

    def get_amp_supported_dtype(self):
        return [torch.bfloat16]

    def get_rng_state(self, device=None):
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state, device=None):
        pass


@cache
def install() -> str:
    """Register the device with PyTorch, which allows that once; returns its name."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, Module())
    aten = torch.ops.aten
    library = torch.library.Library("aten", "IMPL")
    for factory in (aten.empty.memory_format, aten.empty_strided.default):
        library.impl(factory, _made_by(factory), "PrivateUse1")
    library.impl(aten._copy_from.default, _copied, "PrivateUse1")
    library.impl(aten._local_scalar_dense.default, _scalar, "PrivateUse1")
    every = torch.library.Library("_", "IMPL")
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    install.libraries = library, every  # registrations end with them
    return NAME


def _made_by(factory):
    """A factory of tensors of the device."""

    def made(*args, device=None, pin_memory=None, **kwargs):
        return Pretend(factory(*args, device="cpu", **kwargs))

    return made


def _copied(source, target, non_blocking=False):
    """A copy from or to the device, where PyTorch goes around the subclass."""
    on_cpu(target).copy_(on_cpu(source))
    return target


def _scalar(value):
    """``item()``, where PyTorch goes around the subclass."""
    return value.inner.item()
