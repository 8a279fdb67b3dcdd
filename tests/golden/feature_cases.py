"""Normalized values by hand: features, and for each of them raw values with what they become.

ln 3 = 1.0986123; ln(1e-5 / (1 - 1e-5)) = -11.5129155; ln 1e-6 = -13.8155106; 1 / (1 - 3) and the like are worked out
beside. `A` is an absent value.
"""

import math

from lockstep.data.features import Feature

A = math.nan
LOG_1E_6 = -13.815510557964274
LOGIT = 11.512915464920228

# id: (feature, [(raw, normalized)]), a list of outputs for an enum. Ids are out of order on purpose.
CASES = {
    "7": (Feature(type="binary"), [(0, 0), (1, 1), (-2.5, 1), (A, 0)]),
    "1": (
        Feature(type="probability"),
        [
            (0.5, 0),
            (0.75, math.log(3)),
            (0.25, -math.log(3)),
            (0, -LOGIT),
            (1, LOGIT),
            (2, LOGIT),
            (-1, -LOGIT),
            (A, 0),
        ],
    ),
    "20": (
        Feature(type="continuous", mean=5.0, stddev=2.0),
        [(9, 2), (5, 0), (0, -2.5), (1e9, 11.513), (-1e300, -11.513), (math.inf, 11.513), (-math.inf, -11.513), (A, 0)],
    ),
    # Seconds since 1970: float32 would have steps of 128 there.
    "3": (Feature(type="continuous", mean=1.7e9, stddev=100.0), [(1.7e9 + 50, 0.5), (1.7e9 - 7, -0.07), (A, 0)]),
    # y = x + 1, z = (y^2 - 1) / 2: of 2 it is (9 - 1) / 2 = 4, of 3 it is 7.5; below -1 it is (1e-12 - 1) / 2 = -1/2.
    "4": (
        Feature(type="boxcox", boxcox_lambda=2.0, boxcox_shift=1.0, mean=4.0, stddev=2.0),
        [(2, 0), (3, 1.75), (0, -2), (-5, -2.25), (1e200, 11.513), (A, 0)],
    ),
    "5": (  # a logarithm
        Feature(type="boxcox", boxcox_lambda=0.0, boxcox_shift=0.0, mean=1.0, stddev=2.0),
        [(math.e**3, 1), (1, -0.5), (0, (LOG_1E_6 - 1) / 2), (A, 0)],
    ),
    "6": (  # (1 / 2 - 1) / (-1/2) = 1; (1000 - 1) / (-1/2) = -1998 of 1e-6
        Feature(type="boxcox", boxcox_lambda=-0.5, boxcox_shift=0.0, mean=0.0, stddev=1.0),
        [(4, 1), (1, 0), (0.25, -2), (1e-12, -11.513), (math.inf, 2), (A, 0)],
    ),
    "2": (
        Feature(type="quantile", quantiles=(0.0, 1.0, 3.0, 10.0)),
        [
            *[(-1, 0), (0, 0), (0.5, 1 / 6), (1, 1 / 3), (2, 0.5), (3, 2 / 3), (6.5, 5 / 6), (10, 1), (99, 1)],
            *[(math.inf, 1), (-math.inf, 0), (A, 0)],
        ],
    ),
    "8": (Feature(type="quantile", quantiles=(-4.0, 4.0)), [(-4, 0), (-2, 0.25), (0, 0.5), (math.inf, 1), (A, 0)]),
    "9": (
        Feature(type="clip_log"),
        [(1, 0), (math.e, 1), (1e-3, -3 * math.log(10)), (0, -11.513), (-3, -11.513), (1e9, 11.513), (A, 0)],
    ),
    "10": (
        Feature(type="enum", possible_values=(1.0, 5.0, 2.0)),
        [(2, [0, 0, 1]), (5, [0, 1, 0]), (1, [1, 0, 0]), (3, [0, 0, 0]), (1.0000001, [0, 0, 0]), (A, [0, 0, 0])],
    ),
    # 2^24 + 1 is no float32, 2^53 - 1 the last whole number before float64 leaves some out.
    "11": (
        Feature(type="enum", possible_values=(16777216.0, 16777217.0, 9007199254740991.0)),
        [(16777217, [0, 1, 0]), (16777216, [1, 0, 0]), (9007199254740991, [0, 0, 1]), (9007199254740990, [0, 0, 0])],
    ),
    "speed": (
        Feature(type="continuous_action", min_value=-2.0, max_value=6.0),
        [(2, 0), (4, 0.5), (0, -0.5), (6, 0.999999), (-2, -0.999999), (77, 0.999999), (A, 0)],
    ),
    "gear": (Feature(type="discrete_action", min_value=3.0), [(5, 2), (3, 0), (1, -2), (A, 0)]),
    "raw": (
        Feature(type="do_not_preprocess"),
        [(-0.25, -0.25), (16777217, 16777216), (1e300, 3.4028234663852886e38), (A, 0)],
    ),
}
