"""Threads of torch."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dcmh.util.device import take_one_thread


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_worker_threads_keep_to_one_thread_although_the_process_has_two():
    together = threading.Barrier(2)

    def threads(_):
        together.wait(10)
        torch.ones(8, 8) @ torch.ones(8, 8)
        return torch.get_num_threads()

    with ThreadPoolExecutor(2, initializer=take_one_thread) as pool:
        list(pool.map(lambda _: together.wait(10), range(2)))
        torch.set_num_threads(2)
        assert list(pool.map(threads, range(2))) == [1, 1]
    assert torch.get_num_threads() == 2
