"""Tracks do not grow, keep their ends exactly, and do not depend on how values came."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stethoscope.detect.tracks import SampledHistory, Track


@settings(deadline=None)
@given(st.integers(0, 300), st.sampled_from([4, 8, 32]))
def test_a_track_keeps_evenly_up_to_its_limit(num, limit):
    track = Track(2, limit=limit, ends=3)
    for number in range(num):
        track.add(number, number / 2)
    assert len(track) == num
    assert len(track.rows) <= limit
    np.testing.assert_array_equal(track.steps, np.arange(0, num, track.stride))
    np.testing.assert_array_equal(track.values, np.arange(0, num, track.stride) / 2)
    assert track.stride == 1 or len(track.rows) > limit // 2
    np.testing.assert_array_equal(track.first(3)[:, 0], np.arange(num)[:3])
    np.testing.assert_array_equal(track.last(3)[:, 0], np.arange(num)[-3:])
    if num:
        assert track.latest == (num - 1, (num - 1) / 2)


def test_an_empty_track_has_rows_of_its_width():
    track = Track(3)
    assert track.rows.shape == (0, 3)
    assert track.first(2).shape == track.last(2).shape == (0, 3)


@settings(deadline=None)
@given(st.integers(0, 200))
def test_looks_keep_the_first_the_latest_and_some_between(num):
    looks: SampledHistory[str] = SampledHistory(limit=16, ends=4)
    for number in range(num):
        looks.append(str(number))
    kept = [int(item) for item in looks.to_list()]
    assert len(looks) == num
    assert kept == sorted(set(kept))
    assert len(kept) <= 16 + 4
    assert kept[-4:] == list(range(num))[-4:]
    assert kept[:1] == list(range(num))[:1]
    if num <= 16:
        assert kept == list(range(num))
