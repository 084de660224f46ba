"""Laws of continuous noise: closed forms, and quadrature over one loss for two of them."""

from mpmath import mp, mpf

from benchmarks.attack.laws import ONE, ZERO, Law

QUADRATURE_DIGITS = 30


def _quadrature(function, points) -> mpf:
    """Its digits are relative: mpmath's own tolerance is absolute, and far out nothing meets it."""
    points = sorted(points)
    with mp.workdps(QUADRATURE_DIGITS):
        scale = max(abs(function(z)) for z in points) or ONE
        return scale * mp.quad(lambda z: function(z) / scale, points, maxdegree=8)


def _root(gap, low, high) -> mpf:
    """Where a rising function is 0, to 2^-400 of the bracket: some halvings, then secants."""
    width = (high - low) * mpf(2) ** -400
    for _ in range(24):
        low, high = _halved(gap, low, high)
    old, new = low, high
    below, above = gap(old), gap(new)
    for _ in range(24):
        if abs(new - old) < width or above == 0:
            return new
        if above == below:
            break
        old, new, below = new, new - above * (new - old) / (above - below), above
        if not low <= new <= high:
            break
        above = gap(new)
    for _ in range(400):
        low, high = _halved(gap, low, high)
    return low


def _halved(gap, low, high):
    middle = (low + high) / 2
    return (low, middle) if gap(middle) > 0 else (middle, high)


class Gaussian(Law):
    """N(mu, 1) against N(0, 1)."""

    def __init__(self, mu: mpf):
        """Keep mu."""
        self.mu = mu

    def h(self, a, reverse):
        """Balle & Wang; both directions are equal."""
        if a <= 0:
            return 1 - a
        x = mp.log(a) / self.mu
        if abs(x) > mpf(10) ** 30:  # beyond what the error function takes
            return ZERO if x > 0 else 1 - a
        first, second = mp.ncdf(self.mu / 2 - x), a * mp.ncdf(-self.mu / 2 - x)
        value = first - second
        if value <= first * mpf(10) ** (30 - mp.dps):  # as many digits more as have cancelled
            with mp.workdps(2 * mp.dps + 100):
                x = mp.log(a) / self.mu
                value = mp.ncdf(self.mu / 2 - x) - a * mp.ncdf(-self.mu / 2 - x)
        return max(value, ZERO)

    def renyi(self, alpha, reverse):
        """alpha mu^2 / 2."""
        return alpha * self.mu**2 / 2

    def bends(self):
        """Some deviations about the mean losses."""
        return [self.mu * k for k in (-40, -15, -5, 0, 5, 15, 40)]

    def tradeoff(self, fpr):
        """Phi(Phi^-1(1 - fpr) - mu)."""
        if fpr in (0, 1):
            return 1 - fpr
        with mp.workdps(40 + max(0, int(-mp.log10(fpr)))):  # 1 - fpr is to have digits of fpr
            guess = mp.sqrt(2) * mp.erfinv(1 - 2 * fpr)
            return mp.ncdf(guess - self.mu)

    def mixed(self, other, a, reverse):
        """By the first noise, in pieces: the second curve has kinks at most at its ends."""
        mu, sign = self.mu, -1 if reverse else 1
        centre = mu if not reverse else ZERO

        def integrand(z):
            loss = sign * (mu * z - mu * mu / 2)
            return mp.npdf(z - centre) * other.h(a * mp.exp(-loss), reverse)

        kinks = [sign * (mp.log(a) - end) / mu + mu / 2 for end in other.ends()] if a > 0 else []
        inside = [z for z in kinks if abs(z - centre) < 40]
        grid = [centre + mpf(k) for k in (-40, -20, -10, -5, -2, 0, 2, 5, 10, 20, 40)]
        return _quadrature(integrand, [*grid, *inside])


class Laplace(Law):
    """Laplace noise of scale 1 and a shift of x."""

    def __init__(self, x: mpf):
        """Keep the shift."""
        self.x = x

    def h(self, a, reverse):
        """1 - sqrt(a) e^{-x/2} between e^{-x} and e^x."""
        if a <= mp.exp(-self.x):
            return 1 - a
        if a >= mp.exp(self.x):
            return ZERO
        return -mp.expm1((mp.log(a) - self.x) / 2)

    def renyi(self, alpha, reverse):
        """Mironov 2017, Proposition 6."""
        x = self.x
        if alpha == mp.inf:
            return x
        if alpha == 1:
            return x + mp.expm1(-x)
        return mp.log(
            alpha / (2 * alpha - 1) * mp.exp((alpha - 1) * x)
            + (alpha - 1) / (2 * alpha - 1) * mp.exp(-alpha * x)
        ) / (alpha - 1)

    def tradeoff(self, fpr):
        """The curve of two double exponentials."""
        x = self.x
        if fpr < mp.exp(-x) / 2:
            return 1 - mp.exp(x) * fpr
        return mp.exp(-x) / (4 * fpr) if fpr <= mpf(1) / 2 else mp.exp(-x) * (1 - fpr)

    def mixed(self, other, a, reverse):
        """Two atoms, and the losses between them: P-density e^{(l - x)/2}/4."""
        x = self.x

        def integrand(loss):
            return mp.exp((loss - x) / 2) / 4 * other.h(a * mp.exp(-loss), reverse)

        kinks = [mp.log(a) - bend for bend in other.bends()] if a > 0 else []
        points = [-x, x, ZERO, *(k for k in kinks if -x < k < x)]
        edges = other.h(a * mp.exp(-x), reverse) / 2
        edges += mp.exp(-x) / 2 * other.h(a * mp.exp(x), reverse)
        return edges + _quadrature(integrand, points)

    def ends(self):
        """Where the curve begins and ends."""
        return [-self.x, self.x]


class LaplaceSum(Law):
    """The sum of n Laplace variables of scale 1, a shift of x: log-concave, hence one root."""

    def __init__(self, n: int, x: mpf):
        """Keep the coefficients of the density, e^{-y} times a polynomial on y > 0."""
        self.n, self.x = n, x
        scale = mpf(2) ** (2 * n - 1) * mp.factorial(n - 1)
        fact = mp.factorial
        self.c = [
            fact(2 * n - 2 - j) / (fact(j) * fact(n - 1 - j)) * mpf(2) ** j / scale
            for j in range(n)
        ]

    def _log_density(self, y):
        return -abs(y) + mp.log(mp.fsum(c * abs(y) ** j for j, c in enumerate(self.c)))

    def _tail(self, y):
        """P{Y > y}."""
        if y < 0:
            return 1 - self._tail(-y)
        total = ZERO
        for j, c in enumerate(self.c):
            inner = mp.fsum(y**i / mp.factorial(i) for i in range(j + 1))
            total += c * mp.factorial(j) * inner
        return mp.exp(-y) * total

    def h(self, a, reverse):
        """Tail at the root, shifted and not."""
        x = self.x
        if a <= mp.exp(-x):
            return 1 - a
        if a >= mp.exp(x):
            return ZERO
        target = mp.log(a)

        def gap(y):
            return self._log_density(y - x) - self._log_density(y) - target

        low, high = -ONE - x, 2 * x + ONE
        while gap(low) > 0 and low > -(mpf(10) ** 40):
            low *= 4
        while gap(high) < 0 and high < mpf(10) ** 40:
            high *= 4
        y = _root(gap, low, high)  # where the slope of the difference is 0: errors are squared
        return self._tail(y - x) - a * self._tail(y)


class GaussianAllocation(Law):
    """One of two Gaussian steps joined, by quadrature over the first ratio."""

    def __init__(self, mu: mpf):
        """Keep one step."""
        self.mu, self.step = mu, Gaussian(mu)

    def h(self, a, reverse):
        """E_Q[((X_1 + X_2)/2 - a)_+], or E_Q[(1 - a (X_1 + X_2)/2)_+]."""
        mu = self.mu

        def removed(z):
            left = 2 * a - mp.exp(mu * z - mu * mu / 2)
            rest = self.step.h(left, False) if left > 0 else 1 - left
            return mp.npdf(z) * rest / 2

        def added(z):
            left = 1 - a * mp.exp(mu * z - mu * mu / 2) / 2
            return mp.npdf(z) * left * self.step.h(a / (2 * left), True) if left > 0 else ZERO

        kink = (mp.log(2 / a if reverse else 2 * a) + mu * mu / 2) / mu if a > 0 else ZERO
        grid = [mpf(k) for k in (-40, -20, -10, -5, -2, 0, 2, 5, 10, 20, 40)]
        grid += [mu + g for g in grid]
        if a > 0:  # (far out both ratios are about the average, or one of them is all of it)
            same = (mp.log(1 / a if reverse else a) + mu * mu / 2) / mu
            grid += [at + g for at in (same, kink) for g in range(-6, 7)]
        grid = [z for z in grid if abs(z) <= 40 + mu]
        return _quadrature(added if reverse else removed, grid)
