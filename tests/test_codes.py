"""Codes: packing against its inverse, distances against counting, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dcmh import codes
from dcmh.errors import DataError, ParameterError


def random_codes(n: int, bits: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).choice(np.array([-1, 1], np.int8), (n, bits))


any_codes = st.tuples(st.integers(0, 5), st.integers(1, 130)).flatmap(
    lambda shape: arrays(np.int8, shape, elements=st.sampled_from([-1, 1]))
)


@given(any_codes)
def test_unpack_undoes_pack(b):
    packed = codes.pack(b)
    assert packed.shape == (len(b), codes.bytes_of(b.shape[1]))
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(codes.unpack(packed, b.shape[1]), b)


@given(st.integers(1, 70), st.integers(0, 100))
def test_hamming_counts_differing_bits(bits, seed):
    a, b = random_codes(4, bits, seed), random_codes(6, bits, seed + 1)
    counted = (a[:, None] != b[None]).sum(axis=2)
    np.testing.assert_array_equal(codes.hamming(a, b), counted)
    np.testing.assert_array_equal(codes.hamming(codes.pack(a), codes.pack(b)), counted)
    np.testing.assert_array_equal(codes.hamming(a.astype(np.float64), b), counted)


@given(st.integers(1, 64), st.integers(0, 100))
def test_hamming_is_a_metric(bits, seed):
    b = random_codes(5, bits, seed)
    d = codes.hamming(b, b).astype(int)
    assert (np.diag(d) == 0).all()
    np.testing.assert_array_equal(d, d.T)
    assert (d[:, :, None] <= d[:, None, :] + d.T[None, :, :]).all()


def test_the_longest_codes_have_exact_distances():
    one = np.ones((1, codes.MAX_BITS), np.int8)
    assert codes.hamming(one, -one).item() == codes.MAX_BITS
    assert codes.hamming(codes.pack(one), codes.pack(-one)).item() == codes.MAX_BITS


def test_bit_0_is_the_lowest_bit_of_byte_0():
    b = -np.ones((1, 10), np.int8)
    b[0, 0] = b[0, 9] = 1
    np.testing.assert_array_equal(codes.pack(b), [[1, 2]])


def test_unpack_takes_lists():
    packed = np.array([[1, 255], [128, 0]], np.uint8)
    np.testing.assert_array_equal(codes.unpack(packed.tolist(), 16), codes.unpack(packed, 16))


def test_sign_of_zero_is_plus_one():
    np.testing.assert_array_equal(codes.sign(np.array([-0.5, 0.0, 2.0])), [-1, 1, 1])
    assert codes.sign(np.array([0.0])).dtype == np.int8


@pytest.mark.parametrize("bits", [0, -1, 1025, 1.5, True, "16"])
def test_code_lengths_that_make_no_sense(bits):
    with pytest.raises(ParameterError, match="whole number from 1 to 1024"):
        codes.check_bits(bits)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda: codes.pack(np.ones(8)), "two dimensions"),
        (lambda: codes.pack(np.zeros((1, 8))), r"\+1 or -1"),
        (lambda: codes.unpack(np.zeros((1, 2), np.int64), 16), "uint8"),
        (lambda: codes.unpack(np.zeros((1, 2), np.uint8), 17), "3 bytes"),
        (lambda: codes.unpack([[1, 2], [3]], 16), "differ in length"),
        (lambda: codes.unpack([[1, 256]], 16), "uint8"),
        (lambda: codes.unpack([[1, -1]], 16), "uint8"),
        (lambda: codes.unpack([[1.5, 2.0]], 16), "uint8"),
        (lambda: codes.hamming(random_codes(1, 8), random_codes(1, 9)), "same length"),
        (lambda: codes.hamming(np.zeros((1, 8), np.uint8), random_codes(1, 8)), "One side is packed"),
    ],
)
def test_what_is_refused(act, says):
    with pytest.raises(DataError, match=says):
        act()
