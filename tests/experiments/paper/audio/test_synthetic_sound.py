"""Synthetic clips, words and street sounds are what their labels say."""

import pytest
import torch

from spherenorm_experiments.paper.audio import spoken, street
from spherenorm_experiments.paper.shared.clips import clips, spectra
from spherenorm_experiments.paper.shared.synthesis import RATE, Draw

SIZES = [(clips, 1024, 288, 288), (spoken.spoken_words, 600, 180, 300)]
SIZES += [(street.street_sounds, 768, 192, 320)]


@pytest.mark.parametrize(("load", *"abc"), SIZES)
def test_splits_have_their_sizes_and_no_label_is_rare(load, a, b, c):
    splits = load()
    assert [len(waves) for waves, _ in splits] == [a, b, c]
    for waves, labels in splits:
        assert waves.isfinite().all()
        if labels.ndim == 1:
            counts = torch.bincount(labels)
            assert counts.min() == counts.max() == len(labels) / len(spoken.WORDS)
        else:
            assert labels.sum(0).min() >= 10
            assert labels.sum(1).min() >= 1


def test_the_tags_of_the_clips_are_what_they_say():
    found, tags = spectra().train
    assert found.shape[1:] == (4, 32, 8)
    assert torch.equal(tags[:, :3].sum(1), torch.ones(len(tags)))  # low, middle or high
    frames = found.mean((1, 2))
    slope = frames[:, -1] - frames[:, 0]
    plucked, swelling = tags[:, 6] == 1, tags[:, 7] == 1
    assert slope[plucked].mean() < slope[~plucked & ~swelling].mean() < slope[swelling].mean()


def spectrum_of(waves):
    """Powers of shape (clips, frequencies, frames), and the frequencies in Hz."""
    window = torch.hann_window(256)
    found = torch.stft(waves, 256, 64, window=window, return_complex=True).abs().square()
    return found, torch.linspace(0, RATE / 2, 129)


def test_the_fricative_of_a_word_is_where_it_is_spelled():
    waves, words = spoken.spoken_words().train
    powers, hz = spectrum_of(waves)
    sharp = powers[:, hz > 3500].sum(1)
    times = torch.arange(sharp.shape[1])
    centre = (sharp * times).sum(1) / sharp.sum(1)
    place = torch.tensor([word.find("s") for word in spoken.WORDS])[words]
    first, third, without = (sharp[place == k].max(1).values.median() for k in (0, 2, -1))
    assert min(first, third) > 2 * without
    assert centre[place == 0].mean() + 5 < centre[place == 2].mean()


@pytest.mark.parametrize("vowel", "iaou")
def test_a_vowel_is_loudest_at_its_formants(vowel):
    formants = torch.tensor(spoken.FORMANTS[vowel])[None, :, None].expand(1, 3, 65)
    draw = Draw(1, torch.Generator().manual_seed(0))
    wave = spoken._tone(draw, torch.tensor([[100.0]]), formants, torch.ones(1, 65))
    powers, hz = spectrum_of(wave)
    power = powers[0].mean(1)
    for peak in spoken.FORMANTS[vowel]:
        near = power[(hz - peak).abs() < 80].max()
        valley = power[(hz - peak - 450).abs() < 80].max()
        others = min(abs(peak + 450 - other) for other in spoken.FORMANTS[vowel])
        assert near > 3 * valley or others < 250


@pytest.mark.parametrize(
    ("sound", "low", "high"),
    [("siren", 450, 3200), ("beeps", 950, 1700), ("skid", 1200, 3300), ("engine", 40, 1300),
     ("two-tone horn", 450, 3500), ("horn", 280, 3300), ("scream", 550, 4000)],
)  # fmt: skip
def test_a_sound_has_its_power_in_its_band(sound, low, high):
    waves = street.SOUNDS[sound](Draw(20, torch.Generator().manual_seed(0)))
    powers, hz = spectrum_of(waves)
    inside = powers[:, (hz >= low) & (hz <= high)].sum((1, 2)) / powers.sum((1, 2))
    assert inside.min() > 0.85
