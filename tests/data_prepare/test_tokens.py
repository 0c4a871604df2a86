"""The arithmetic of media: bounds, parity and proportions, whatever the numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.data.tokens import Vision, fit_frame, fit_image, frame_indices, mel_frames, resampled, sampling

sides = st.integers(1, 5000)


@given(st.integers(1, 20_000), st.floats(0.5, 240), st.floats(0.05, 60), st.integers(1, 800))
def test_frames_are_taken_in_pairs_from_the_first_to_the_last(total, source_fps, fps, most):
    taken = frame_indices(total, source_fps, fps, most)
    assert len(taken) % 2 == 0
    assert 2 <= len(taken) <= max(2, most)
    assert (taken[0], taken[-1]) == (0, total - 1)
    assert taken == sorted(taken)
    steps = {later - earlier for earlier, later in itertools.pairwise(taken)}
    assert max(steps) - min(steps) <= 1


@pytest.mark.parametrize(
    ("total", "fps", "most", "expected"),
    [(1, 1.0, 32, [0, 0]), (3, 1.0, 32, [0, 2]), (60, 1.0, 32, [0, 59]), (1800, 1.0, 32, None), (150, 1.0, 32, None)],
)
def test_short_and_long_clips_at_30_frames_a_second(total, fps, most, expected):
    taken = frame_indices(total, 30.0, fps, most)
    assert taken == (expected or taken)
    assert len(taken) == {1: 2, 3: 2, 60: 2, 1800: 32, 150: 4}[total]


@given(sides, sides, st.integers(1, 64), st.integers(1, 64))
def test_frames_fit_whole_squares(height, width, least, more):
    low, high = least * 1024, (least + more) * 1024
    fitted = fit_frame(height, width, low, high)
    assert all(side % 32 == 0 and side >= 32 for side in fitted)
    rounded = [max(1, round(side / 32)) for side in (height, width)]
    if rounded[0] * rounded[1] * 1024 > high and 32 not in fitted:
        assert fitted[0] * fitted[1] <= high


@given(sides, sides)
def test_images_fit_their_budget_or_are_refused(height, width):
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(ValueError, match="200 times"):
            fit_image(height, width, 32, 3136, 12_845_056)
        return
    fitted = fit_image(height, width, 32, 3136, 12_845_056)
    assert all(side % 32 == 0 and side >= 32 for side in fitted)
    assert 3136 <= fitted[0] * fitted[1] <= 12_845_056


def test_a_picture_without_a_side_is_refused():
    with pytest.raises(ValueError, match="0 x 5"):
        fit_image(5, 0, 32, 1, 2)


def test_tokens_are_merged_patches():
    vision = Vision(patch=16, merge=2, temporal_patch=2, min_pixels=1024, max_pixels=65_536)
    assert vision.image_tokens(64, 64) == 4
    assert vision.image_tokens(640, 640) == 64
    assert vision.video_tokens(4, 64, 96) == 2 * 2 * 3
    assert vision.video_tokens(3, 64, 96) == 2 * 2 * 3


@pytest.mark.parametrize(
    ("samples", "rate", "expected"), [(4000, 8000, 8000), (160_003, 44_100, 58_051), (7, 48_000, 2)]
)
def test_samples_at_another_rate(samples, rate, expected):
    assert resampled(samples, rate) == expected


def test_the_last_mel_frame_is_padded():
    assert [mel_frames(samples) for samples in (1, 160, 161)] == [1, 1, 2]


def test_what_a_row_says_stands_before_the_defaults():
    assert sampling({"video": "x", "fps": 1.0, "max_frames": None}) == {
        "fps": 1.0,
        "min_pixels": 131_072,
        "max_pixels": 786_432,
        "max_frames": 768,
    }
