"""Laws of a user's own noise, of Gaussian mixtures and of batches, by their curves."""

from collections.abc import Callable, Sequence

from mpmath import mp, mpf

from benchmarks.attack.curves import _root
from benchmarks.attack.laws import ONE, ZERO, Law


class Symmetric(Law):
    """A law whose directions agree, known at a >= 1."""

    def above(self, a: mpf) -> mpf:
        """H_a at a >= 1."""
        raise NotImplementedError

    def h(self, a, reverse):
        """H_a = 1 - a + a H_{1/a} below 1."""
        if a <= 0:
            return 1 - a
        return self.above(a) if a >= 1 else 1 - a + a * self.above(1 / a)


def _less(first, second) -> mpf:
    """What is left of a difference, 0 where it is rounding."""
    value = first - second
    return value if value > first * mpf(10) ** (30 - mp.dps) else ZERO


class Logistic(Symmetric):
    """Logistic noise of scale 1, a shift of x: e^L = e^x ((1 + e^-y)/(1 + e^(x-y)))^2."""

    def __init__(self, x: mpf):
        """Keep the shift."""
        self.x = x

    def above(self, a):
        """The loss rises with y."""
        root = mp.sqrt(a) * mp.exp(-self.x / 2)  # (1 + t)/(1 + t e^x) at t = e^-y
        if root >= 1:
            return ZERO
        odds = (1 - root) / (root * mp.exp(self.x) - 1)  # t
        return _less(odds * mp.exp(self.x) / (1 + odds * mp.exp(self.x)), a * odds / (1 + odds))

    def ends(self):
        """The largest loss."""
        return [-self.x, self.x]


class Student(Symmetric):
    """Student's t with 1 or 3 degrees of freedom: the loss is above a level between two roots."""

    def __init__(self, x: mpf, freedom: int):
        """Keep the shift."""
        self.x, self.freedom = x, freedom

    def _between(self, low, high) -> mpf:
        """The mass of an interval, without cancellation far out."""
        n = mp.sqrt(self.freedom)
        first, second = low / n, high / n
        angle = mp.atan2(second - first, 1 + first * second) / mp.pi
        if self.freedom == 1:
            return angle
        ends = second / (1 + second**2) - first / (1 + first**2)
        return angle + ends / mp.pi

    def above(self, a):
        """(n + y^2) > b (n + (y - x)^2), b = a^(2/(n + 1))."""
        n, x = mpf(self.freedom), self.x
        b = a ** (2 / (n + 1))
        if b == 1:
            return 2 * self._between(ZERO, x / 2)
        square = b * x * x - n * (b - 1) ** 2
        if square <= 0:
            return ZERO
        centre, half = b * x / (b - 1), mp.sqrt(square) / (b - 1)
        low = (b * x * x + n * (b - 1)) / (b - 1) / (centre + half)  # of the product of the roots
        high = centre + half
        return _less(self._between(low - x, high - x), a * self._between(low, high))


class Stretched(Symmetric):
    """Noise of density e^-sqrt|y| / 4, a shift of x: the loss sqrt y - sqrt|y - x| peaks at x."""

    def __init__(self, x: mpf):
        """Keep the shift."""
        self.x = x

    def _up_to(self, y) -> mpf:
        """The mass of [0, y], of [y, 0] less than 0."""
        root = mp.sqrt(abs(y))
        mass = -mp.expm1(-root) - root * mp.exp(-root)
        return mp.sign(y) * mass / 2

    def above(self, a):
        """All about x, from left to right of it."""
        x, e = self.x, mp.log(a)
        if e >= mp.sqrt(x):
            return ZERO
        left = x * mp.sin(mp.acos(e / mp.sqrt(2 * x)) - mp.pi / 4) ** 2
        if e == 0:
            return 2 * self._up_to(x / 2)
        right = ((x - e**2) / (2 * e)) ** 2
        own = self._up_to(left) + self._up_to(right)
        return _less(own, a * (self._up_to(x + right) - self._up_to(x - left)))

    def ends(self):
        """The largest loss."""
        return [-mp.sqrt(self.x), mp.sqrt(self.x)]


class Cut(Symmetric):
    """Noise on [-c, c] whose loss rises up to a shift of x, and is infinite beyond c.

    `tail` is the mass beyond y of the noise before it was cut, `position` where its loss is l.
    """

    def __init__(self, x: mpf, c: mpf, tail: Callable, position: Callable):
        """Keep the noise."""
        self.x, self.c, self.tail, self.position = x, c, tail, position

    def _beyond(self, y) -> mpf:
        y = max(min(y, self.c), -self.c)
        return (self.tail(y) - self.tail(self.c)) / (1 - 2 * self.tail(self.c))

    def above(self, a):
        """All beyond the crossing, or beyond the end of Q."""
        y = min(self.position(mp.log(a)), self.c)
        return min(_less(self._beyond(y - self.x), a * self._beyond(y)), ONE)

    def infinite(self, reverse):
        """What Q does not reach."""
        return min(self._beyond(self.c - self.x), ONE)


def truncated_gaussian(x: mpf, c: mpf) -> Law:
    """N(0, 1) within [-c, c], shifted by x."""
    return Cut(x, c, lambda y: mp.ncdf(-y), lambda loss: loss / x + x / 2)


def truncated_laplace(x: mpf, c: mpf) -> Law:
    """Laplace noise of scale 1 within [-c, c], shifted by x."""

    def tail(y):
        return mp.exp(-y) / 2 if y >= 0 else 1 - mp.exp(y) / 2

    return Cut(x, c, tail, lambda loss: (loss + x) / 2 if loss < x else mp.inf)


class Mixtures(Law):
    """sum_k w_k N(s_k, 1) against sum_j v_j N(-t_j, 1): the loss rises with the outcome."""

    def __init__(self, s: Sequence, w: Sequence, t: Sequence = (ZERO,), v: Sequence = (ONE,)):
        """Keep shifts and normalised weights, without those of no weight."""
        self.p = [(x, y / mp.fsum(w)) for x, y in zip(s, w, strict=True) if y]
        self.q = [(-x, y / mp.fsum(v)) for x, y in zip(t, v, strict=True) if y]

    @staticmethod
    def _log(law, z) -> mpf:
        top = max(x * z - x * x / 2 for x, _ in law)
        return top + mp.log(mp.fsum(y * mp.exp(x * z - x * x / 2 - top) for x, y in law))

    def h(self, a, reverse):
        """The tails beyond the crossing."""
        if a <= 0:
            return 1 - a
        target = -mp.log(a) if reverse else mp.log(a)

        def gap(z):
            return self._log(self.p, z) - self._log(self.q, z) - target

        low, high = -ONE, ONE
        while gap(low) > 0 and low > -(mpf(10) ** 9):
            low *= 2
        while gap(high) < 0 and high < mpf(10) ** 9:
            high *= 2
        if gap(high) < 0:  # a is beyond every loss, or below every one
            return 1 - a if reverse else ZERO
        if gap(low) > 0:
            return ZERO if reverse else 1 - a
        z = _root(gap, low, high)
        if reverse:
            lost = mp.fsum(y * mp.ncdf(z - x) for x, y in self.q)
            return _less(lost, a * mp.fsum(y * mp.ncdf(z - x) for x, y in self.p))
        lost = mp.fsum(y * mp.ncdf(x - z) for x, y in self.p)
        return _less(lost, a * mp.fsum(y * mp.ncdf(x - z) for x, y in self.q))


class FixedSize(Symmetric):
    """The pair of a batch of fixed size, q H(1 + (a - 1)/q): Balle, Barthe & Gaboardi's bound."""

    def __init__(self, law: Law, q: mpf):
        """Keep the law of an exchanged record."""
        self.law, self.q = law, q

    def above(self, a):
        """Theorem 9."""
        return self.q * self.law.h(1 + (a - 1) / self.q, False)

    def infinite(self, reverse):
        """The record is in the batch, and lost."""
        return self.q * self.law.infinite(False)


class Revealed(Law):
    """One of several laws, and which one is known."""

    def __init__(self, laws: Sequence[Law], weights: Sequence):
        """Keep the laws and their normalised weights."""
        self.laws = laws
        self.weights = [w / mp.fsum(weights) for w in weights]

    def h(self, a, reverse):
        """The mean curve."""
        pairs = zip(self.weights, self.laws, strict=True)
        return mp.fsum(w * law.h(a, reverse) for w, law in pairs)

    def infinite(self, reverse):
        """The mean mass."""
        pairs = zip(self.weights, self.laws, strict=True)
        return mp.fsum(w * law.infinite(reverse) for w, law in pairs)


class Worst(Law):
    """The worst of several curves."""

    def __init__(self, laws: Sequence[Law]):
        """Keep the laws."""
        self.laws = laws

    def h(self, a, reverse):
        """The largest."""
        return max(law.h(a, reverse) for law in self.laws)

    def infinite(self, reverse):
        """The largest."""
        return max(law.infinite(reverse) for law in self.laws)


class BoundedRange(Symmetric):
    """The exponential mechanism's worst curve, (1 - e^((l - epsilon)/2))^2/(1 - e^-epsilon)."""

    def __init__(self, epsilon: mpf):
        """Keep the range."""
        self.epsilon = epsilon

    def above(self, a):
        """Dong, Durfee & Rogers 2020."""
        loss = mp.log(a)
        if loss >= self.epsilon * (1 - mpf(10) ** (10 - mp.dps)):
            return ZERO
        return mp.expm1((loss - self.epsilon) / 2) ** 2 / -mp.expm1(-self.epsilon)

    def ends(self):
        """The largest loss."""
        return [-self.epsilon, self.epsilon]
