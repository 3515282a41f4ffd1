"""Products whose digits depend on nothing but their row, and the number of threads that this takes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dcmh.util.blas import OneThread, in_control, product


def threads():
    """Of NumPy's BLAS library; SciPy may bring its own."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return {pool["num_threads"] for pool in pools if "numpy" in pool["filepath"]} or {
        pool["num_threads"] for pool in pools
    }


@pytest.fixture
def one_thread():
    """Not the process's own, which a service of another test may have entered."""
    return OneThread()


@pytest.fixture(autouse=True)
def two_threads():
    with in_control():  # whichever thread of another test had it
        limits = threadpool_limits(2, "blas")
    with limits:
        yield


def test_the_last_to_leave_restores_what_the_first_found(one_thread):
    one_thread.__enter__()
    one_thread.__enter__()
    assert threads() == {1}
    one_thread.__exit__(None, None, None)
    assert threads() == {1}
    one_thread.__exit__(None, None, None)
    assert threads() == {2}


def test_any_thread_can_enter_and_leave(one_thread):
    """The main thread controls the setting, in the terms of threadpoolctl: the fixture has changed it."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(one_thread.__enter__).result()
        assert threads() == {1}
        with one_thread:
            pool.submit(one_thread.__exit__, None, None, None).result()
            assert threads() == {1}
        assert threads() == {2}


def test_another_library_that_changes_the_setting_in_between(one_thread):
    with one_thread:
        threadpool_limits(2, "blas")
        with one_thread:
            assert threads() == {1}
    assert threads() == {2}


@pytest.mark.parametrize(("inner", "columns"), [(512, 768), (1280, 128), (320, 320), (384, 64), (1280, 1000)])
def test_a_row_of_a_product_depends_on_nothing_else(inner, columns):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((700, inner), dtype=np.float32)
    weight = generator.standard_normal((inner, columns), dtype=np.float32)
    whole = product(x, weight)
    assert np.allclose(whole, x @ weight, atol=1e-3)
    for start, count in [(0, 1), (5, 1), (13, 7), (6, 48), (100, 255), (3, 256), (2, 257), (41, 600)]:
        assert np.array_equal(product(x[start : start + count], weight), whole[start : start + count]), (start, count)
    order = generator.permutation(len(x))
    assert np.array_equal(product(x[order], weight), whole[order])


def test_a_product_of_no_rows():
    assert product(np.zeros((0, 8), np.float32), np.zeros((8, 4), np.float32)).shape == (0, 4)
