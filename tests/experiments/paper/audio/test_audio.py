"""Audio files become waves of one length at 16 kHz."""

import numpy as np
import pytest
import soundfile
import torch
from miniatures import tone, write

from spherenorm_experiments.paper.audio._audio import Clips, length_of, read_wave


@pytest.mark.parametrize("ending", ["wav", "flac"])
def test_lossless_files_are_read_as_they_are(ending, tmp_path):
    wave = torch.arange(-500, 500) / 1024  # numbers of 16 bits
    path = tmp_path / f"ramp.{ending}"
    write(path, torch.stack([wave, torch.zeros(1000)], 1).numpy(), 16_000)
    assert length_of(path) == 1000
    assert torch.equal(read_wave(path), wave / 2)  # the mean of two channels
    assert torch.equal(read_wave(path, 100, 50), wave[100:150] / 2)
    assert torch.equal(read_wave(path, 990, 50), wave[990:] / 2)


@pytest.mark.parametrize("rate", [8000, 22_050, 44_100])
def test_other_rates_are_resampled(rate, tmp_path):
    path = tmp_path / "tone.wav"
    soundfile.write(path, tone(440, 1, rate), rate, subtype="FLOAT")
    expected = tone(440, 1, 16_000)
    found = read_wave(path)
    assert len(found) == length_of(path) == 16_000
    np.testing.assert_allclose(found[500:-500], expected[500:-500], atol=2e-3)
    part = read_wave(path, 4000, 8000)
    assert len(part) == 8000
    start = 4000 * rate // 16_000 * 16_000 / rate  # of the first frame that is read
    shifted = 0.5 * np.sin(2 * np.pi * 440 * (start + np.arange(8000)) / 16_000)
    np.testing.assert_allclose(part[500:-500], shifted[500:-500], atol=2e-3)


def test_a_crop_is_a_part_of_the_clip_at_a_random_place(tmp_path):
    wave = torch.arange(1000) / 1024
    write(tmp_path / "ramp.wav", wave.numpy(), 16_000)
    items = Clips([tmp_path / "ramp.wav"], torch.tensor([3]), 100)
    places = set()
    for seed in range(200):
        torch.manual_seed(seed)
        crop, target = items[0]
        place = round(crop[0].item() * 1024)
        assert torch.equal(crop, wave[place : place + 100])
        assert target == 3
        places.add(place)
    assert min(places) < 50
    assert 850 < max(places) <= 900
    torch.manual_seed(7)
    first = items[0][0]
    torch.manual_seed(7)
    assert torch.equal(items[0][0], first)


def test_chunks_are_evenly_spaced_and_short_clips_have_zeros_around_them(tmp_path):
    wave = torch.arange(1, 1001) / 1024
    write(tmp_path / "ramp.wav", wave.numpy(), 16_000)
    (chunks, _) = Clips([tmp_path / "ramp.wav"], torch.zeros(1), 100, chunks=16)[0]
    assert chunks.shape == (16, 100)
    for i, chunk in enumerate(chunks):
        assert torch.equal(chunk, wave[i * 56 : i * 56 + 100])  # (1000 - 100) // 16
    (padded, _) = Clips([tmp_path / "ramp.wav"], torch.zeros(1), 1100, chunks=1)[0]
    assert torch.equal(padded[0, 50:1050], wave)
    assert padded.count_nonzero() == 1000
    torch.manual_seed(0)
    (random, _) = Clips([tmp_path / "ramp.wav"], torch.zeros(1), 1100)[0]
    place = int(random.nonzero()[0])
    assert torch.equal(random[place : place + 1000], wave)
    assert random.count_nonzero() == 1000
