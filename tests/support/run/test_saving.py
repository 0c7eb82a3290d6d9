"""A saved network is used with torch and safetensors alone."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import fedlab_support as fl
from tests.runs import a_run, fitted, unequal

ALONE = """
import json, sys
import numpy as np, torch
from safetensors.torch import load_file
from torch import nn

about = json.load(open("model.json"))
channels, classes = about["image_shape"][0], len(about["classes"])
net = nn.Sequential(
    nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes),
)
net.load_state_dict(load_file("model.safetensors"))
x = torch.from_numpy(np.load("images.npy")).float() / 255
mean, std = (torch.tensor(about[n]).view(-1, 1, 1) for n in ("mean", "std"))
with torch.no_grad():
    np.save("found.npy", net.eval()((x - mean) / std).numpy())
assert not [name for name in sys.modules if name.startswith("fedlab")]
"""


def network(shape, num_classes: int) -> nn.Module:
    """The network of the script above."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, num_classes),
    )


@pytest.mark.slow
def test_another_process_computes_the_same_outputs(tmp_path):
    run = fitted(fl.FedAvg(), unequal(), model=network)
    run.save(tmp_path)
    test = run.federation.test
    np.save(tmp_path / "images.npy", run.federation.data.images[test.rows])
    command = [sys.executable, "-c", ALONE]
    subprocess.run(command, cwd=tmp_path, env={"PATH": ""}, check=True)
    (batch,) = test.batches(len(test))
    with torch.no_grad():
        expected = run.model.eval()(batch.x)
    found = torch.from_numpy(np.load(tmp_path / "found.npy"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_settings_are_beside_it_and_newer_files_replace_older(tmp_path):
    run = a_run(fl.FedAvg(), unequal(), model=network)
    for rounds in (1, 2):
        run.fit(1, progress=False)
        run.save(tmp_path / "a" / "model")
        about = json.loads((tmp_path / "a" / "model" / "model.json").read_text())
        assert about["round"] == rounds
    assert about["run"] == json.loads(json.dumps(run.describe()))
    assert about["classes"] == list(run.federation.data.class_names)
    names = {path.name for path in (tmp_path / "a" / "model").iterdir()}
    assert names == {"model.safetensors", "model.json"}


@pytest.mark.parametrize("wrong", ["", 3, None])
def test_what_is_no_folder_is_refused(wrong):
    with pytest.raises(ValueError, match="folder must be"):
        a_run(fl.FedAvg(), unequal()).save(wrong)


# ---- the number of clients ----------------------------------------------------------
@dataclass(frozen=True)
class Partial(fl.FedAvg):
    """Moves by the share of clients that participated, as SCAFFOLD's server does."""

    def client_setup(self, model, context):
        """The last client's upload is refused."""
        return {"number": torch.tensor([float(context.client.id)])}

    def check_upload(self, tensors, model):
        """Refuse client 4."""
        if tensors["number"] == 4:
            raise ValueError("not this one")

    def aggregate(self, server, messages):
        """Remember the share."""
        share = torch.tensor(len(messages) / server.num_clients)
        return replace(super().aggregate(server, messages), memory={"share": share})


@pytest.mark.filterwarnings("ignore:.*not this one")
def test_the_server_knows_the_number_of_clients_and_does_after_a_restart(tmp_path):
    assert a_run(fl.FedAvg(), unequal()).server.num_clients == 5
    for rounds in (1, 2):
        run = a_run(Partial(), unequal(), select=fl.uniform(1))
        run.fit(rounds, progress=False, checkpoint=tmp_path)
        assert run.server.num_clients == 4
        assert run.server.memory["share"] == 0.25
