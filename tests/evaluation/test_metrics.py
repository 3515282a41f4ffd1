"""Oracles: all orders of small databases by brute force, plain Python, and each path against the others."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcmh import codes
from dcmh.errors import DataError, ParameterError
from dcmh.evaluation import metrics
from dcmh.evaluation.metrics import packed


def ap_of_list(hits, k=None):
    """Average precision of one ranked list of 0 and 1, straight from the definition."""
    wanted = sum(hits)
    k = len(hits) if k is None else k
    total, seen = 0.0, 0
    for rank, hit in enumerate(hits, start=1):
        seen += hit
        if hit and rank <= k:
            total += seen / rank
    return total / min(k, wanted) if wanted else 0.0


def all_rankings(distance, relevant):
    """The 0/1 list of every order of the database, as sorting by distance leaves it."""
    pairs = list(zip(distance, relevant, strict=True))
    for order in itertools.permutations(pairs):
        if all(a[0] <= b[0] for a, b in itertools.pairwise(order)):
            yield [int(hit) for _, hit in order]


def in_stable_order(distance, relevant):
    order = sorted(range(len(distance)), key=lambda j: distance[j])
    return [int(relevant[j]) for j in order]


def random_pairs(seed, n_queries=5, n_database=30, bits=6):
    random = np.random.default_rng(seed)
    return random.integers(0, bits + 1, (n_queries, n_database)), random.random((n_queries, n_database)) < 0.3


def random_sides(seed, n_queries=13, n_database=2100, bits=20, n_labels=70):
    """Packed codes and labels: more points than a block of the kernel, labels of two words, some items without any."""
    random = np.random.default_rng(seed)

    def side(n):
        signs = np.where(random.random((n, bits)) < 0.5, 1, -1)
        return codes.pack(signs), (random.random((n, n_labels)) < 1.5 / n_labels).astype(np.uint8)

    (query, query_labels), (database, database_labels) = side(n_queries), side(n_database)
    query_labels[0] = 0
    return query, database, query_labels, database_labels, bits


def dense_of(query, database, query_labels, database_labels, bits):
    return codes.hamming(query, database), query_labels.astype(int) @ database_labels.T.astype(int) > 0


small = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 2), min_size=n, max_size=n), st.lists(st.booleans(), min_size=n, max_size=n)
    )
)
matrices = st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**32 - 1))


def draw(shape):
    n_queries, n_database, bits, seed = shape
    return (*random_pairs(seed, n_queries, n_database, bits), bits)


class TestAgainstBruteForce:
    @settings(deadline=None, max_examples=40)
    @given(small, st.sampled_from([None, 1, 2, 3, 5, 9]))
    def test_average_precision(self, row, k):
        distance, relevant = row
        values = [ap_of_list(hits, k) for hits in all_rankings(distance, relevant)]
        expected = {"expected": sum(values) / len(values), "best": max(values), "worst": min(values)}
        for ties, value in expected.items():
            assert metrics.mean_average_precision([distance], [relevant], ties=ties, k=k) == pytest.approx(
                value, abs=1e-12
            )

    @settings(deadline=None, max_examples=30)
    @given(small)
    def test_precision_and_recall_at(self, row):
        distance, relevant = row
        rankings = list(all_rankings(distance, relevant))
        for k in (1, 2, 4, 9):
            found = [sum(hits[:k]) for hits in rankings]
            for ties, value in (("expected", sum(found) / len(found)), ("best", max(found)), ("worst", min(found))):
                precision = metrics.precision_at([distance], [relevant], [k], ties=ties)
                recall = metrics.recall_at([distance], [relevant], [k], ties=ties)
                assert precision[0] == pytest.approx(value / min(k, len(distance)), abs=1e-12)
                assert recall[0] == pytest.approx(value / max(sum(relevant), 1), abs=1e-12)

    @pytest.mark.parametrize("k", [None, 1, 7, 30, 1000])
    def test_stable(self, k):
        distance, relevant = random_pairs(3)
        expected = [ap_of_list(in_stable_order(d, r), k) for d, r in zip(distance, relevant, strict=True)]
        assert metrics.average_precision(distance, relevant, k=k) == pytest.approx(expected)

    def test_stable_precision_and_recall_at(self):
        distance, relevant = random_pairs(4)
        ks = [1, 5, 30, 1000]
        lists = [in_stable_order(d, r) for d, r in zip(distance, relevant, strict=True)]
        precision = [np.mean([sum(hits[:k]) / min(k, 30) for hits in lists]) for k in ks]
        recall = [np.mean([sum(hits[:k]) / sum(hits) for hits in lists]) for k in ks]
        assert metrics.precision_at(distance, relevant, ks, ties="stable") == pytest.approx(precision)
        assert metrics.recall_at(distance, relevant, ks, ties="stable") == pytest.approx(recall)

    def test_lookup(self):
        distance, relevant = random_pairs(5, bits=4)
        relevant[0] = False
        result = metrics.lookup(distance, relevant, bits=4)
        assert result.radius.tolist() == [0, 1, 2, 3, 4]
        for radius in range(5):
            back = distance <= radius
            each = []
            for got, want in zip(back, relevant, strict=True):
                both = (got & want).sum()
                p, r = both / max(got.sum(), 1), both / max(want.sum(), 1)
                each.append((p, r, 2 * p * r / (p + r) if p + r else 0.0))
            p, r = (back & relevant).sum() / back.sum(), (back & relevant).sum() / relevant.sum()
            pooled = result.precision[radius], result.recall[radius], result.f[radius]
            assert pooled == pytest.approx((p, r, 2 * p * r / (p + r)))
            of_queries = result.per_query
            mean = of_queries.precision[radius], of_queries.recall[radius], of_queries.f[radius]
            assert mean == pytest.approx(np.mean(each, axis=0))

    def test_long_sums_stay_exact(self):
        random = np.random.default_rng(0)
        points = random.integers(0, 4000, (2, 33))
        relevant = np.minimum(random.integers(0, 500, (2, 33)), points)
        counts = metrics.Counts(points.astype(np.int32), relevant.astype(np.int32))
        for k in (None, 20_000):
            for i, value in enumerate(counts.average_precision(k=k)):
                before, hits, terms = 0, 0, []
                for n, r in zip(points[i].tolist(), relevant[i].tolist(), strict=True):
                    for p in range(1, n + 1 if r else 1):
                        if k is None or before + p <= k:
                            terms.append(r / n * (hits + 1 + (p - 1) * (r - 1) / max(n - 1, 1)) / (before + p))
                    before, hits = before + n, hits + r
                assert value == pytest.approx(math.fsum(terms) / min(hits, k or hits), rel=1e-11)


def ndcg_of_list(grades, k):
    """NDCG of one ranked list of grades, straight from the definition."""

    def dcg(ranked):
        return sum((2**grade - 1) / math.log2(1 + rank) for rank, grade in enumerate(ranked[:k], start=1))

    ideal = dcg(sorted(grades, reverse=True))
    return dcg(grades) / ideal if ideal else 0.0


class TestGradedRelevance:
    @settings(deadline=None, max_examples=40)
    @given(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=6), st.sampled_from([1, 2, 4, 9])
    )
    def test_ndcg_against_all_orders(self, points, k):
        distance, grades = zip(*points, strict=True)
        orders = [order for order in itertools.permutations(points) if sorted(distance) == [d for d, _ in order]]
        values = [ndcg_of_list([grade for _, grade in order], k) for order in orders]
        stable = ndcg_of_list([grade for _, grade in sorted(points, key=lambda point: point[0])], k)
        wanted = {"stable": stable, "expected": sum(values) / len(values), "best": max(values), "worst": min(values)}
        for ties, value in wanted.items():
            assert metrics.ndcg_at([distance], [grades], [k], ties=ties) == pytest.approx([value], abs=1e-12)

    @pytest.mark.parametrize("compiled", [True, False])
    def test_from_packed_codes(self, compiled, monkeypatch):
        if not compiled:
            monkeypatch.setattr(packed, "_kernels", lambda: None)
        sides = random_sides(8, n_labels=9)
        grades = sides[2].astype(int) @ sides[3].T.astype(int)
        assert grades.max() > 2
        ks = [1, 10, 3000]
        found = metrics.rank_ndcg(*sides, ks)
        for ties in metrics.TIES:
            expected = metrics.ndcg_at(codes.hamming(sides[0], sides[1]), grades, ks, ties=ties)
            assert found[ties].mean(axis=0) == pytest.approx(expected, abs=1e-12)
        assert (found["stable"][0] == 0).all()  # a query without labels

    def test_grades_are_counts(self):
        with pytest.raises(DataError, match="Grades must be integers"):
            metrics.ndcg_at([[0, 1]], [[0.5, 1.0]], [1])


class TestInterval:
    def test_it_is_as_wide_as_two_draws_differ(self):
        values = np.random.default_rng(0).beta(2, 1, (400, 2))
        low, high = metrics.prediction_interval(values)
        assert low + high == pytest.approx(2 * values.mean(axis=0))
        assert high - low == pytest.approx(2 * 1.96 * values.std(axis=0, ddof=1) * np.sqrt(2 / 400), rel=0.06)
        assert (metrics.prediction_interval(values) == np.stack([low, high])).all()
        assert metrics.prediction_interval(values[:, 0]) == pytest.approx([low[0], high[0]])

    def test_it_holds_the_mean_of_other_queries(self):
        random = np.random.default_rng(1)
        held = 0
        for _ in range(200):
            values = random.beta(1, 2, 60)
            low, high = metrics.prediction_interval(values[:30])
            held += low <= values[30:].mean() <= high
        assert 180 <= held < 200

    def test_bounds(self):
        assert np.isnan(metrics.prediction_interval([0.5])).all()
        assert metrics.prediction_interval([0.0, 1.0]).tolist() == [0, 1]
        assert metrics.prediction_interval([1.0] * 9).tolist() == [1, 1]
        with pytest.raises(ParameterError, match="level"):
            metrics.prediction_interval([0.1, 0.2], level=95)


class TestProperties:
    @settings(deadline=None, max_examples=40)
    @given(matrices, st.integers(0, 2**32 - 1), st.sampled_from([None, 1, 10]))
    def test_expected_does_not_depend_on_database_order(self, shape, seed, k):
        distance, relevant, _ = draw(shape)
        order = np.random.default_rng(seed).permutation(distance.shape[1])
        for ties in ("expected", "best", "worst"):
            before = metrics.average_precision(distance, relevant, ties=ties, k=k)
            assert (before == metrics.average_precision(distance[:, order], relevant[:, order], ties=ties, k=k)).all()

    @settings(deadline=None, max_examples=40)
    @given(matrices, st.sampled_from([None, 1, 10]))
    def test_best_and_worst_are_bounds(self, shape, k):
        distance, relevant, _ = draw(shape)
        value = {ties: metrics.average_precision(distance, relevant, ties=ties, k=k) for ties in metrics.TIES}
        for ties in ("expected", "stable"):
            assert (value["best"] >= value[ties] - 1e-12).all()
            assert (value[ties] >= value["worst"] - 1e-12).all()
        assert (value["best"] <= 1 + 1e-12).all()

    @settings(deadline=None, max_examples=40)
    @given(matrices)
    def test_lookup_ends_with_everything(self, shape):
        distance, relevant, bits = draw(shape)
        result = metrics.lookup(distance, relevant, bits=bits)
        share = 1 - metrics.without_relevant(relevant) / len(relevant)
        assert len(result.radius) == bits + 1
        assert result.precision[-1] == pytest.approx(metrics.chance(relevant))
        assert result.per_query.recall[-1] == pytest.approx(share)
        if share:
            assert result.recall[-1] == 1
            assert (np.diff(result.recall) >= 0).all()

    @settings(deadline=None, max_examples=20)
    @given(matrices)
    def test_without_ties_all_policies_agree(self, shape):
        n_queries, n_database, _, seed = shape
        random = np.random.default_rng(seed)
        distance = np.array([random.permutation(n_database) for _ in range(n_queries)])
        relevant = random.random(distance.shape) < 0.3
        values = [metrics.mean_average_precision(distance, relevant, ties=ties) for ties in metrics.TIES]
        assert values == pytest.approx([values[0]] * 4)


class TestEdges:
    def test_nothing_returned(self):
        result = metrics.lookup([[2, 3]], [[True, False]], bits=4)
        assert np.isnan(result.precision[:2]).all()
        assert result.recall[:2].tolist() == result.f[:2].tolist() == [0, 0]
        assert result.precision[2:].tolist() == [1, 0.5, 0.5]
        assert result.per_query.precision.tolist() == [0, 0, 1, 0.5, 0.5]

    def test_nothing_relevant(self):
        distance, relevant = [[0, 1], [1, 0]], np.array([[False, False], [True, False]])
        assert metrics.average_precision(distance, relevant).tolist() == [0, 0.5]
        for ties in metrics.TIES:
            assert metrics.mean_average_precision(distance, relevant, ties=ties) == 0.25
        assert metrics.without_relevant(relevant) == 1
        assert metrics.chance(relevant) == 0.25
        empty = metrics.lookup(distance, relevant & False, bits=1)
        assert np.isnan(empty.recall).all()
        assert empty.f.tolist() == [0, 0]

    def test_k_truncates_ranks(self):
        # Two of three relevant points lie beyond rank 2: they count nowhere but in min(k, R).
        assert metrics.mean_average_precision([[0, 1, 2, 3]], [[True, False, True, True]], k=2) == 0.5

    def test_default_policies(self):
        distance, relevant = np.array([[1, 1]]), np.array([[True, False]])
        assert metrics.mean_average_precision(distance, relevant) == 1
        assert metrics.count(distance, relevant).mean_average_precision() == 0.75
        assert metrics.precision_at(distance, relevant, [1]).tolist() == [0.5]

    def test_precision_by_distance(self):
        counts = metrics.count(
            np.array([[0, 2, 2], [2, 0, 2]]), np.array([[True, True, False], [False, False, False]]), bits=3
        )
        assert (counts.bits, counts.queries, counts.database, counts.without_relevant) == (3, 2, 3, 1)
        np.testing.assert_array_equal(metrics.precision_by_distance(counts), [0.5, np.nan, 0.25, np.nan])

    def test_blocks_do_not_change_results(self, monkeypatch):
        distance, relevant = random_pairs(6)
        before = [metrics.average_precision(distance, relevant, ties=ties).tolist() for ties in metrics.TIES]
        at = metrics.precision_at(distance, relevant, [3], ties="stable")
        monkeypatch.setattr("dcmh.evaluation.metrics.counts.BLOCK", 61)
        assert before == [metrics.average_precision(distance, relevant, ties=ties).tolist() for ties in metrics.TIES]
        assert at == metrics.precision_at(distance, relevant, [3], ties="stable")


class TestPacked:
    @pytest.fixture(params=["numba", "numpy"])
    def path(self, request, monkeypatch):
        if request.param == "numpy":
            monkeypatch.setattr(packed, "_kernels", lambda: None)

    @pytest.mark.usefixtures("path")
    @pytest.mark.parametrize(("bits", "n_labels"), [(3, 1), (16, 24), (20, 70), (64, 128), (130, 300)])
    def test_equals_dense(self, bits, n_labels):
        sides = random_sides(bits, bits=bits, n_labels=n_labels)
        distance, relevant = dense_of(*sides)
        counts, dense = metrics.rank_counts(*sides), metrics.count(distance, relevant, bits=bits)
        assert counts.points.dtype == counts.relevant.dtype == np.int32
        np.testing.assert_array_equal(counts.points, dense.points)
        np.testing.assert_array_equal(counts.relevant, dense.relevant)
        assert counts.chance == pytest.approx(metrics.chance(relevant))
        assert counts.without_relevant == metrics.without_relevant(relevant) >= 1
        for k in (None, 1, 50):
            stable = metrics.stable_average_precision(*sides, k=k)
            assert stable == pytest.approx(metrics.average_precision(distance, relevant, k=k), abs=1e-12)
            assert (stable == metrics.stable_average_precision(*sides, k=k, counts=counts)).all()
            for ties in ("expected", "best", "worst"):
                assert counts.mean_average_precision(ties=ties, k=k) == metrics.mean_average_precision(
                    distance, relevant, ties=ties, k=k
                )
        assert (counts.precision_at([1, 9]) == metrics.precision_at(distance, relevant, [1, 9])).all()
        assert (counts.recall_at([1, 9]) == metrics.recall_at(distance, relevant, [1, 9])).all()

    @pytest.mark.usefixtures("path")
    @pytest.mark.parametrize("n_database", [1, 2, 3, 1023, 1024, 1025])
    def test_block_edges(self, n_database):
        sides = random_sides(1, n_queries=3, n_database=n_database, n_labels=2)
        distance, relevant = dense_of(*sides)
        np.testing.assert_array_equal(
            metrics.rank_counts(*sides).relevant, metrics.count(distance, relevant, bits=20).relevant
        )
        assert metrics.stable_average_precision(*sides) == pytest.approx(metrics.average_precision(distance, relevant))

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (lambda q, d, ql, dl, b: (q, d, ql, dl, 30), "Packed codes of 30 bits have 4 bytes"),
            (lambda q, d, ql, dl, b: (q | 128, d, ql, dl, b), "query codes have bits set beyond bit 20"),
            (lambda q, d, ql, dl, b: (q, d, ql[1:], dl, b), "query side has 13 codes but labels of shape"),
            (lambda q, d, ql, dl, b: (q, d, ql, dl[0], b), "database side has 2100 codes but labels of shape"),
            (lambda q, d, ql, dl, b: (q, d, ql[:, 1:], dl, b), "Queries have 69 labels, the database has 70"),
            (lambda q, d, ql, dl, b: (q, d[:0], ql, dl[:0], b), "no database codes"),
        ],
    )
    def test_bad_sides(self, change, sentence):
        with pytest.raises(DataError, match=sentence):
            metrics.rank_counts(*change(*random_sides(0)))

    def test_counts_of_other_codes(self):
        sides = random_sides(0)
        other = metrics.rank_counts(*random_sides(0, n_database=10))
        with pytest.raises(DataError, match=r"counts given are of 13 queries, 10 points .* leave counts out"):
            metrics.stable_average_precision(*sides, counts=other)

    def test_counts_cannot_be_stable(self):
        counts = metrics.rank_counts(*random_sides(0, n_database=10))
        for ask in (counts.average_precision, lambda ties: counts.precision_at([1], ties=ties)):
            with pytest.raises(ParameterError, match="do not hold the order of the database"):
                ask(ties="stable")

    def test_without_numba(self, monkeypatch, caplog):
        sides = random_sides(2, n_database=40)
        expected = metrics.rank_counts(*sides)
        monkeypatch.setitem(sys.modules, "numba", None)
        for module in ("dcmh.evaluation.metrics.kernels", "dcmh.index.kernels"):
            monkeypatch.delitem(sys.modules, module, raising=False)
            monkeypatch.delattr(module, raising=False)
        packed._kernels.cache_clear()
        try:
            np.testing.assert_array_equal(metrics.rank_counts(*sides).points, expected.points)
            assert "numba is not installed" in caplog.text
        finally:
            packed._kernels.cache_clear()

    def test_import_is_light(self):
        script = (
            "import sys, dcmh.evaluation.metrics; sys.exit(any(name in sys.modules for name in ('numba', 'torch')))"
        )
        assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


class TestBadInput:
    distance, relevant = np.array([[0, 1, 2]]), np.array([[True, False, True]])

    @pytest.mark.parametrize(
        ("distance", "relevant", "sentence"),
        [
            (distance / 2, relevant, "are integers, not float64"),
            (distance, relevant[:, 1:], r"shape \(1, 3\) but relevance has \(1, 2\)"),
            (distance, relevant.astype(int), "must be booleans, not int"),
            (distance[0], relevant[0], "must be a matrix"),
            (distance[:0], relevant[:0], "at least one pair"),
            (distance - 1, relevant, "these from -1 to 1"),
            (distance + 9999, relevant, "lie from 0 to 1024"),
        ],
    )
    def test_pairs(self, distance, relevant, sentence):
        for ties in metrics.TIES:
            with pytest.raises(DataError, match=sentence):
                metrics.mean_average_precision(distance, relevant, ties=ties)
            with pytest.raises(DataError, match=sentence):
                metrics.precision_at(distance, relevant, [1], ties=ties)
        with pytest.raises(DataError):
            metrics.lookup(distance, relevant, bits=16)

    def test_distance_beyond_bits(self):
        with pytest.raises(DataError, match="of 1 bits lie from 0 to 1, these from 0 to 2"):
            metrics.lookup(self.distance, self.relevant, bits=1)

    def test_ties(self):
        with pytest.raises(ParameterError, match=r"'random'. Available: stable, expected, best, worst"):
            metrics.mean_average_precision(self.distance, self.relevant, ties="random")
        with pytest.raises(ParameterError, match="Available: stable"):
            metrics.precision_at(self.distance, self.relevant, [1], ties="random")

    @pytest.mark.parametrize("k", [0, -1, 1.5, True, "all"])
    def test_k(self, k):
        for ties in metrics.TIES:
            with pytest.raises(ParameterError, match="at least 1, not"):
                metrics.mean_average_precision(self.distance, self.relevant, ties=ties, k=k)
            with pytest.raises(ParameterError, match="at least 1, not"):
                metrics.precision_at(self.distance, self.relevant, [1, k], ties=ties)

    def test_relevance(self):
        for measure in (metrics.chance, metrics.without_relevant):
            with pytest.raises(DataError, match="must be booleans"):
                measure([[1, 0]])


def test_public_names():
    assert all(hasattr(metrics, name) for name in metrics.__all__)
    assert callable(metrics.lookup)
