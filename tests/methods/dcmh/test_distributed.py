"""Two processes of torchrun train one model: the codes, buffers and networks of one process, up to float noise."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

# The image network is small, but its gradients go the same way: a share of each batch, gathered features, averaged sums.
SCRIPT = """
import sys
import numpy as np
from dcmh import networks
from dcmh.methods.dcmh import DCMH, algorithm
from dcmh.networks import distributed
from small_network import photos, small

networks.backbone = small
data = photos()
kept = {}
model = DCMH(16, recipe=sys.argv[2], epochs=3, batch_size=16, hidden=32, finetune=True, device="cpu", precision="float64")
update_codes = algorithm.update_codes
def watch(run):
    update_codes(run)
    kept["B"] = run.B.numpy().copy()
    kept["F"], kept["G"] = (side.outputs.numpy().copy() for side in run.sides)
algorithm.update_codes = watch
model.fit(data, fine=0)
kept["weight"] = model.networks_["image"].backbone.conv.weight.detach().numpy()
kept["last"] = model.networks_["text"].weights[-1].detach().numpy()
np.savez(f"{sys.argv[1]}/{distributed.world()}-{distributed.rank()}.npz", **kept)
distributed.leave()
"""


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["paper", "stable"])
def test_two_processes_give_what_one_gives(tmp_path, recipe, monkeypatch):
    script = tmp_path / "learn.py"
    script.write_text(SCRIPT)
    run = [sys.executable, str(script), str(tmp_path), recipe]
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
    subprocess.run(run, check=True, timeout=200)
    together = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--local-addr", "127.0.0.1"]
    subprocess.run([sys.executable, *together, *run[1:]], check=True, timeout=200, capture_output=True)
    one, first, second = (np.load(tmp_path / f"{name}.npz") for name in ("1-0", "2-0", "2-1"))
    assert len(np.unique(one["B"], axis=0)) > 1
    for name in one.files:
        assert np.array_equal(first[name], second[name]), f"the processes differ in {name}"
        assert np.allclose(one[name], first[name], rtol=1e-6, atol=1e-9), f"{name} is not that of one process"
    assert np.array_equal(one["B"], first["B"])  # bit for bit, after three iterations
