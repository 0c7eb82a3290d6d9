"""The catalogue of methods: every file's method, and how each differs from FedAvg."""

import fedlab_support as fl
from fedlab_support.methods import FedAvg, FedFA, FedFAPlus, catalogue, changed_hooks


def test_every_public_method_is_in_the_catalogue_under_its_label():
    public = [getattr(fl, name) for name in fl.__all__]
    kinds = {k for k in public if isinstance(k, type) and issubclass(k, FedAvg)}
    assert set(catalogue().values()) == kinds
    assert all(kind().label == label for label, kind in catalogue().items())


def test_changed_hooks_are_those_that_are_not_fedavgs():
    assert changed_hooks(FedAvg) == ()
    inherited = set(changed_hooks(FedFA))
    assert set(changed_hooks(FedFAPlus)) == inherited | {"loss"}

    class Loud(FedAvg):
        def after_training(self, model, context):
            return {}

        def adapt(self, model):
            return model

    assert changed_hooks(Loud) == ("adapt", "after_training")
