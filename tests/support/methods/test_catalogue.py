"""The catalogue of methods: every file's method, and how each differs from FedAvg."""

from fedlab_support import methods
from fedlab_support.methods import FedAvg, FedFA, FedFAPlus, catalogue, changed_hooks


def test_every_public_method_is_in_the_catalogue_under_its_label():
    public = {getattr(methods, name) for name in methods.__all__}
    kinds = {kind for kind in public if isinstance(kind, type)}
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
