"""A build that is killed again and again ends as the index of an uninterrupted one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from folders import contents

import dcmh

KILLING = """
import os, random, signal, sys, time
sys.path.insert(0, os.environ["TESTS"])
import dcmh.inputs.features
from pathlib import Path
from toy_photos import cheap_features, load
from dcmh.errors import ModelError
from dcmh.search import SearchIndex, encode, pipeline, update
dcmh.inputs.features.run, dcmh.inputs.features.frozen = cheap_features, lambda *arguments: None
update.COMMIT_SECONDS, pipeline.PICTURES, encode.BATCHES = 0, 2, 1
photos, model, out, seed = sys.argv[1:]
data, model = load(photos), Path(model)
finish, commit = pipeline.Pipeline._finish, update.Update._commit
def slowly(self, *arguments):
    time.sleep(0.08)
    return finish(self, *arguments)
def loudly(self, *arguments):
    commit(self, *arguments)
    os.write(telling, b".")
pipeline.Pipeline._finish, update.Update._commit = slowly, loudly
# This process itself starts no thread: children forked from one that did might wait for ever for a lock it held.
def apart(work):
    hearing, telling = os.pipe()
    if (child := os.fork()) == 0:
        os.write(telling, str(work()).encode())
        os._exit(0)
    os.close(telling)
    said = os.read(hearing, 1000).decode()
    os.close(hearing)
    assert os.waitpid(child, 0)[1] == 0
    return said
def built(place):
    SearchIndex.build(model, data, place).close()
def looked():
    try:
        with SearchIndex.open(out) as index:
            index.search(text="sunny")
            return len(index)
    except ModelError as error:
        assert "begun" in str(error) or "no index" in str(error), error
hearing, telling = os.pipe()
apart(lambda: built(out + ".unbroken"))
os.close(hearing), os.close(telling)
moments = random.Random(int(seed))
killed, seen = 0, set()
for _ in range(20):
    hearing, telling = os.pipe()
    if (child := os.fork()) == 0:
        built(out)
        os._exit(0)
    os.close(telling)
    for _ in range(moments.randrange(2)):  # commits to wait for; then any moment
        os.read(hearing, 1)
    time.sleep(moments.uniform(0, 0.12))
    os.kill(child, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    os.close(hearing)
    seen.add(apart(looked))
print(killed, len(seen - {"None"}))
hearing, telling = os.pipe()
apart(lambda: built(out))
"""


@pytest.mark.slow
def test_killed_twenty_times_it_is_the_index_of_an_unbroken_run(own, model, tmp_path):
    seed = int.from_bytes(os.urandom(2))
    out = tmp_path / "killed.dcmh"
    (own / "photos" / "011.png").write_bytes(b"no picture")
    shutil.copy(own / "photos" / "012.png", own / "photos" / "013.png")
    tests = Path(__file__).parents[1]
    paths = {
        "PYTHONPATH": str(Path(dcmh.__file__).parents[1]),
        "TESTS": str(tests),
        "DCMH_HOME": str(tmp_path / "home"),
    }
    said = subprocess.check_output(
        [sys.executable, "-c", KILLING, str(own / "photos"), str(model), str(out), str(seed)],
        env=os.environ | paths,
        text=True,
    )
    killed, states = map(int, said.split())
    assert killed >= 15, seed  # the last few may have had nothing left to do
    assert states >= 3, seed
    assert contents(out) == contents(tmp_path / "killed.dcmh.unbroken"), seed
    assert not [entry.name for entry in out.iterdir() if entry.name.startswith(".")]
