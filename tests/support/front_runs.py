"""Points of made-up runs for the tests of fronts."""

import math

from front_points import BASE, Ideal, Point

START = Point(BASE, "", 0, 0, 60.0, 80.0)
IDEAL = Ideal(98.0, 40.0, START)


def made_up(methods=("swap", "other", "third"), seeds=(1, 2, 3, 4)):
    """Points that look like runs: three strengths, two steps."""
    points = [START]
    for m, method in enumerate(methods):
        for s, strength in enumerate(("0.1", "0.3", "1")):
            for seed in seeds:
                for step in (5, 10):
                    wave = math.sin(7 * m + 3 * s + 1.7 * seed + step)
                    accuracy, tokens = 85 + 3 * m - 4 * s + 3 * wave, 75 - 12 * s - step + 2 * wave
                    points.append(Point(method, strength, seed, step, accuracy, tokens, 0.1 * s, 2.0 - s / 2))
    return points
