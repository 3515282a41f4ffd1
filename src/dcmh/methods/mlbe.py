"""MLBE: multimodal latent binary embedding (Zhen & Yeung, KDD 2012).

A probabilistic model in which codes explain the similarities of items, within each modality and between the two. Codes
and weights of a few hundred landmarks by ascent of the log posterior; new items by their similarity to the landmarks.
Uses labels, for the similarity between modalities.

Notation. N landmarks; Sx, Sy (N, N) cosines of the centred views; S (N, N) = 1 where labels are shared; U, V (K, N)
codes in {-1, +1}; Wx, Wy (K, K) symmetric; w > 0; theta and phi are variances.

    Sx_ij ~ N(u_i'Wx u_j, theta_x), i <= j;   so for Sy, V;   S_ij ~ Bernoulli(sigma(w u_i'v_j))
    W_kl ~ N(0, phi), k <= l;   w ~ half-normal(phi_w);   1/theta, 1/phi, 1/phi_w ~ Gamma(1, 1);   bits even odds

Blocks: Wx, phi_x, U, theta_x, Wy, phi_y, V, theta_y, w, phi_w. Each is the exact maximiser over its variable, or a run
of single-bit flips that each gain, so the log posterior never drops. As W is symmetric, its block is the linear system

    U (U'WU - S) U' + U diag(U'WU - S) U' + theta/phi (W + diag(W)) = 0,   solved by conjugate gradients

(the authors solve for a W that need not be symmetric and then average; for w they take gradient steps). New item with
similarities s to the landmarks: signs u that minimise |s - (WU)'u|^2, from the least-squares u by passes over the bits.
The parameters of the Gamma priors are not known from the authors' code: the values here are provisional.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dcmh.data.dataset import similarity
from dcmh.methods._two_views import Matrix, Names, TwoViewHasher, blocks, sign, unit_rows
from dcmh.methods.base import Arrays, Labels
from dcmh.util.checks import whole_number

SHAPE, RATE = 1.0, 1.0  # of every Gamma prior
PASSES = 5  # over the bits of a new item


class MLBE(TwoViewHasher):
    """Codes as latent variables of similarities.

    Parameters
    ----------
    landmarks
        How many training items to learn from, at random; time and memory grow with the square.
    sweeps
        Maximum number of passes over all blocks.
    """

    def __init__(self, bits: int = 64, *, landmarks: int = 300, sweeps: int = 30, seed: int = 0) -> None:
        super().__init__(bits, seed=seed)
        self.landmarks = whole_number("landmarks", landmarks, 2)
        self.sweeps = whole_number("sweeps", sweeps, 1)

    def _learn(self, names: Names, X: Matrix, Y: Matrix, labels: Labels | None) -> None:
        assert labels is not None
        generator = np.random.default_rng(self.seed)
        rows = np.sort(generator.choice(len(X), min(self.landmarks, len(X)), replace=False))
        self.means_ = {names[0]: X.mean(axis=0), names[1]: Y.mean(axis=0)}
        self.points_ = {n: unit_rows(view[rows] - self.means_[n]) for n, view in zip(names, (X, Y), strict=True)}
        S = similarity(labels[rows], labels[rows]).astype(np.float64)
        codes = [sign(generator.normal(size=(self.bits, len(rows)))) for _ in names]
        sides = [Side(self.points_[name] @ self.points_[name].T, code) for name, code in zip(names, codes, strict=True)]
        link = Link(S)
        before = log_posterior(sides, link)
        for sweep in range(1, self.sweeps + 1):
            for side, other, shared in ((sides[0], sides[1], S), (sides[1], sides[0], S.T)):
                side.update_weights()
                side.update_phi()
                side.update_codes(other.U, shared, link.w)
                side.update_theta()
            link.update(sides[0].U.T @ sides[1].U)
            value = log_posterior(sides, link)
            self._record(iteration=sweep, log_posterior=value)
            if value - before < 1e-2:
                break
            before = value
        self.maps_ = {name: side.W @ side.U for name, side in zip(names, sides, strict=True)}

    def _outputs(self, modality: str, values: Any) -> Matrix:
        M = self.maps_[modality]  # (K, N)
        gram = M @ M.T
        solve = np.linalg.pinv(M)
        outputs = np.empty((len(values), self.bits))
        for rows in blocks(len(values)):
            s = unit_rows(np.asarray(values[rows], np.float64) - self.means_[modality]) @ self.points_[modality].T
            right = s @ M.T
            u = sign(s @ solve)
            for _ in range(PASSES):
                for k in range(self.bits):
                    outputs[rows, k] = right[:, k] - u @ gram[k] + u[:, k] * gram[k, k]
                    u[:, k] = sign(outputs[rows, k])
        return outputs

    def _state(self) -> Arrays:
        learned = {"mean": self.means_, "points": self.points_, "map": self.maps_}
        return {f"{name}.{key}": values[name] for key, values in learned.items() for name in values}

    def _restore(self, state: Arrays) -> None:
        self.means_, self.points_, self.maps_ = (
            {name: state[f"{name}.{key}"] for name in self.views_} for key in ("mean", "points", "map")
        )


class Side:
    """One modality: similarities S (N, N), codes U (K, N), weights W (K, K), variances theta and phi."""

    def __init__(self, S: Matrix, U: Matrix) -> None:
        self.S, self.U = S, U
        self.W = np.zeros((len(U), len(U)))
        self.theta, self.phi = 1.0, 1.0

    def update_weights(self) -> None:
        """The W that maximises the posterior, by conjugate gradients."""
        U, ratio = self.U, self.theta / self.phi

        def both(M: Matrix) -> Matrix:  # every pair once as (i, j), once as (j, i): the diagonal counts twice
            return M + np.diag(np.diag(M))

        right = U @ both(self.S) @ U.T
        W = self.W
        residual = right - U @ both(U.T @ W @ U) @ U.T - ratio * both(W)
        direction, energy = residual, float((residual**2).sum())
        enough = 1e-16 * max(float((right**2).sum()), 1e-300)
        for _ in range(4 * len(U)):
            if energy <= enough:
                break
            product = U @ both(U.T @ direction @ U) @ U.T + ratio * both(direction)
            length = energy / float((direction * product).sum())
            W = W + length * direction
            residual = residual - length * product
            energy, last = float((residual**2).sum()), energy
            direction = residual + energy / last * direction
        self.W = (W + W.T) / 2

    def update_phi(self) -> None:
        """The variance of the weights that maximises the posterior."""
        count = len(self.W) * (len(self.W) + 1)
        self.phi = 4 * (RATE + self.weight_squares() / 2) / (count + 4 * (SHAPE - 1))

    def update_theta(self) -> None:
        """The variance of the similarities that maximises the posterior."""
        count = len(self.S) * (len(self.S) + 1)
        self.theta = 4 * (RATE + self.misfit() / 2) / (count + 4 * (SHAPE - 1))

    def update_codes(self, V: Matrix, shared: Matrix, w: float) -> None:
        """Flip bits that gain, item by item and bit by bit in order; V and shared (N, N) are the other modality's."""
        WU = self.W @ self.U  # (K, N)
        for i in range(self.U.shape[1]):
            k = 0
            while k < len(self.U):
                gains = self._flip_gains(i, WU, V, shared[i], w)
                better = np.flatnonzero(gains[k:] > 1e-9)
                if not len(better):
                    break
                k += int(better[0])
                self.U[k, i] *= -1
                WU[:, i] += 2 * self.U[k, i] * self.W[:, k]
                k += 1

    def _flip_gains(self, i: int, WU: Matrix, V: Matrix, shared: Matrix, w: float) -> Matrix:
        """What the log posterior gains by flipping each bit of item i, shape (K,)."""
        u = self.U[:, i]
        residual = self.S[i] - u @ WU
        # A flip changes u'W u_j by -2 u_k (W u_j)_k for j != i, and u'W u as follows.
        own = -4 * u * WU[:, i] + 4 * np.diag(self.W)
        gain = 2 * own * residual[i] - own**2
        residual[i] = 0
        intra = gain - 4 * u * (WU @ residual) - 4 * ((WU**2).sum(axis=1) - WU[:, i] ** 2)
        # It lowers w u'v_j by 2 w where bit k of u and v_j agree, and raises it by 2 w elsewhere.
        score = w * (u @ V)  # (N,)
        now = shared * score - np.logaddexp(0, score)
        lower, higher = (shared * moved - np.logaddexp(0, moved) - now for moved in (score - 2 * w, score + 2 * w))
        inter = ((lower + higher).sum() + u * (V @ (lower - higher))) / 2
        return np.asarray(intra / (2 * self.theta) + inter)

    def misfit(self) -> float:
        """Squared errors of the similarities, summed over pairs i <= j."""
        squares = (self.S - self.U.T @ self.W @ self.U) ** 2
        return float(squares.sum() + np.trace(squares)) / 2

    def weight_squares(self) -> float:
        """Squares of the weights, summed over pairs i <= j."""
        return float((self.W**2).sum() + (np.diag(self.W) ** 2).sum()) / 2

    def log_posterior(self) -> float:
        """Of this modality's similarities, weights and variances, up to a constant."""
        n, k = len(self.S), len(self.W)
        value = -self.misfit() / (2 * self.theta) - n * (n + 1) / 4 * np.log(self.theta)
        value += -self.weight_squares() / (2 * self.phi) - k * (k + 1) / 4 * np.log(self.phi)
        return float(value + sum(-(SHAPE - 1) * np.log(v) - RATE / v for v in (self.theta, self.phi)))


class Link:
    """Between the modalities: shared labels S (N, N), the weight w and its variance phi."""

    def __init__(self, S: Matrix) -> None:
        self.S, self.w, self.phi = S, 0.1, 1.0

    def update(self, inner: Matrix) -> None:
        """The w > 0 that maximises its concave part, by Newton's method with halving; then phi. inner (N, N) is U'V."""
        value = self.log_posterior(inner)
        for _ in range(100):
            p = 1 / (1 + np.exp(-self.w * inner))
            slope = float((inner * (self.S - p)).sum()) - self.w / self.phi
            curve = float((inner**2 * p * (1 - p)).sum()) + 1 / self.phi
            old, step = self.w, slope / curve
            while True:
                self.w = max(old + step, 1e-6)
                new = self.log_posterior(inner)
                if new >= value or abs(step) < 1e-12:
                    break
                step /= 2
            if new < value:
                self.w = old
            if new - value < 1e-6:
                break
            value = new
        self.phi = (2 * RATE + self.w**2) / (2 * SHAPE - 1)

    def log_posterior(self, inner: Matrix) -> float:
        """Of the similarities between the modalities, w and phi, up to a constant."""
        score = self.w * inner
        value = (self.S * score - np.logaddexp(0, score)).sum() - self.w**2 / (2 * self.phi) - np.log(self.phi) / 2
        return float(value - (SHAPE - 1) * np.log(self.phi) - RATE / self.phi)


def log_posterior(sides: list[Side], link: Link) -> float:
    """The log posterior, up to a constant."""
    return sum(side.log_posterior() for side in sides) + link.log_posterior(sides[0].U.T @ sides[1].U)
