"""A worker's model: which of its state is trained, and how it is loaded and copied."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.messages import Tensors
from ..federation.federation import Federation
from ..models.layers.noise import rehearsed


def frozen_modules(model: nn.Module) -> list[nn.Module]:
    """Modules whose parameters are all frozen, including their submodules.

    They stay in evaluation mode, and neither their parameters nor their buffers are
    sent. A module without parameters counts as part of its parent.
    """
    parameters = list(model.parameters())
    if parameters and not any(p.requires_grad for p in parameters):
        return list(model.modules())
    return list(chain.from_iterable(map(frozen_modules, model.children())))


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Every trained BatchNorm under each of its names."""
    frozen = frozen_modules(model)
    return {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, _BatchNorm) and module not in frozen
    }


def trained_names(model: nn.Module) -> list[str]:
    """Names of the state that training changes: everything that is not frozen."""
    frozen = {id(p) for p in model.parameters() if not p.requires_grad}
    for module in frozen_modules(model):
        frozen |= {id(b) for b in module.buffers(recurse=False)}
    state = model.state_dict(keep_vars=True)
    return [name for name, value in state.items() if id(value) not in frozen]


def refuse_unfit(
    model: nn.Module, example: Tensor, federation: Federation, trains_output: bool
) -> None:
    """Raise ValueError unless the model can be trained, and evaluated, on the data.

    example:  inputs (B, …) of the data, B at least 2, for which a copy of the model
              must not fail. If the federation has samples to evaluate on, it has to
              return finite logits (B, M), or (B, M, H, W) where labels are masks. In a
              regression it always has to return (B, M), since other shapes broadcast.
    trains_output: whether the loss is computed from the output, which then has to
              depend on a trained parameter.
    """
    data = federation.data
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            "the model has nothing to train: expected a parameter with requires_grad"
        )
    try:
        output = rehearsed(Learner(model).train(), example)
    except (RuntimeError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the model fails for inputs {tuple(example.shape)} of {data.name}: {error}"
        ) from error
    is_float = isinstance(output, Tensor) and output.is_floating_point()
    if trains_output and is_float and not output.requires_grad:
        raise ValueError(
            "the model's output must depend on a trained parameter, found none: remove "
            "detach() or torch.no_grad() from its forward pass"
        )
    evaluated = (federation.test, federation.held_out)
    evaluated += (federation.with_val, federation.with_test)
    if not any(map(len, evaluated)) and data.task != "regression":
        return
    sides = example.shape[2:] if data.has_masks else ()
    wanted = (len(example), data.num_classes, *sides)
    if not is_float or tuple(output.shape) != wanted:
        found = type(output).__name__
        if isinstance(output, Tensor):
            found = f"{output.dtype} {tuple(output.shape)}"
        raise ValueError(
            f"the model's output must be float {wanted} for {len(example)} inputs of "
            f"{data.name}, found {found}"
        )
    if not output.isfinite().all():
        raise ValueError("the model's output for the first inputs is infinite or NaN")


class Learner:
    """A worker's model, with everything about it that is the same for all visits.

    Hooks may change values and replace tensors of the model, but not its layers.
    """

    def __init__(self, model: nn.Module, compile: bool = False):
        if compile:
            model.compile()
        self.model, self.frozen = model, frozen_modules(model)
        self._trained = [n for n, p in model.named_parameters() if p.requires_grad]
        self.smallest_batch = 2 if batch_norms(model) else 1
        self._modes = {mode: self._flags(mode) for mode in (True, False)}
        self._held, self._unsaved = {}, []  # tables of the modules, not tensors
        for prefix, module in model.named_modules(remove_duplicate=False):
            for table in (module._parameters, module._buffers):
                for key in [key for key, value in table.items() if value is not None]:
                    if key in module._non_persistent_buffers_set:
                        self._unsaved.append((table, key, table[key].clone()))
                    else:
                        name = f"{prefix}.{key}" if prefix else key
                        self._held[name] = (table, key)

    @property
    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that an optimiser updates, with their names."""
        places = ((name, *self._held[name]) for name in self._trained)
        return [(name, table[key]) for name, table, key in places]

    @torch.no_grad()
    def load(self, *trees: Tensors) -> None:
        """Load named tensors into the model, in place; later dictionaries win.

        Buffers that are not in the state dict are reset to their initial values.
        Raises ValueError for a name that the model's state does not have.
        """
        state = {name: value for tree in trees for name, value in tree.items()}
        try:
            held = [table[key] for table, key in map(self._held.__getitem__, state)]
        except KeyError as error:
            raise ValueError(
                f"expected names of the model's state, found {error}; "
                "evaluation_state may return nothing else"
            ) from error
        if state:
            torch._foreach_copy_(held, list(state.values()))
        for table, key, initial in self._unsaved:
            table[key].copy_(initial)

    def copies(self, names) -> Tensors:
        """Copies of the named tensors of the model's state."""
        found = {name: self._held[name] for name in names}
        form = torch.contiguous_format
        return {
            name: table[key].detach().clone(memory_format=form)
            for name, (table, key) in found.items()
        }

    def train(self) -> nn.Module:
        """The model in training mode, except for what is frozen."""
        return self._switch(True)

    def eval(self) -> nn.Module:
        """The model in evaluation mode."""
        return self._switch(False)

    def _flags(self, is_training: bool) -> list[tuple[dict, bool]]:
        """Each module's attributes, and its ``training`` flag in this mode."""
        self.model.train(is_training)
        for module in self.frozen:
            module.train(False)
        return [(vars(module), module.training) for module in self.model.modules()]

    def _switch(self, is_training: bool) -> nn.Module:
        # bypasses Module.__setattr__, which is slow
        for attributes, flag in self._modes[is_training]:
            attributes["training"] = flag
        return self.model
