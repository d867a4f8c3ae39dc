"""Audio: files become waves, the Harmonic CNN, the metrics of each task, the runs of Table 4."""

from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from miniatures import tone, write
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from torch import nn

from spherenorm_experiments.comparison import find_study
from spherenorm_experiments.lookup import find_task, recipes_of
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Runs
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.train import make_optimizer
from spherenorm_paper.audio.harmonic_cnn import HarmonicFilters
from spherenorm_paper.audio.recordings import crop, read_wave
from spherenorm_paper.audio.t4 import adam_before_sgd


@pytest.mark.parametrize("ending", ["wav", "flac"])
def test_lossless_files_are_read_as_they_are(ending, tmp_path):
    wave = torch.arange(-500, 500) / 1024  # numbers of 16 bits
    path = tmp_path / f"ramp.{ending}"
    write(path, torch.stack([wave, torch.zeros(1000)], 1).numpy(), 16_000)
    assert torch.equal(read_wave(path), wave / 2)  # the mean of two channels


@pytest.mark.parametrize("rate", [8000, 22_050, 44_100])
def test_other_rates_are_resampled(rate, tmp_path):
    path = tmp_path / "tone.wav"
    soundfile.write(path, tone(440, 1, rate), rate, subtype="FLOAT")
    expected = tone(440, 1, 16_000)
    found = read_wave(path)
    assert found.shape == (16_000,)
    np.testing.assert_allclose(found[500:-500], expected[500:-500], atol=2e-3)


@pytest.mark.parametrize("samples", [100, 1100])
def test_a_crop_is_at_a_random_place_and_a_short_wave_has_zeros_around_it(samples):
    wave, places = torch.arange(1, 1001), set()
    for seed in range(200):
        torch.manual_seed(seed)
        part = crop(wave, samples, None)
        assert part.shape == (samples,)
        place = int(part.nonzero()[0]) if samples > 1000 else int(part[0]) - 1
        inside = part[place : place + 1000] if samples > 1000 else wave[place : place + samples]
        assert torch.equal(inside, wave if samples > 1000 else part)
        assert part.count_nonzero() == min(samples, 1000)
        places.add(place)
    room = abs(1000 - samples)
    assert min(places) < 0.1 * room
    assert 0.9 * room < max(places) <= room


def test_chunks_are_evenly_spaced_or_in_the_middle_of_zeros():
    wave = torch.arange(1, 1001)
    chunks = crop(wave, 100, 16)
    expected = [wave[i * 56 : i * 56 + 100] for i in range(16)]  # (1000 - 100) // 16
    assert torch.equal(chunks, torch.stack(expected))
    assert torch.equal(crop(wave, 1100, 1), torch.nn.functional.pad(wave, (50, 50))[None])


def test_filters_are_triangles_around_harmonics():
    filters = HarmonicFilters()
    with torch.no_grad():
        filters.q.fill_(1.3)
    notes = 440 * 2 ** ((24 + np.arange(128) / 2 - 69) / 12)  # C1 to E6, two a semitone
    assert filters.bands == 128
    assert notes[-1] < 8000 / 6 * 2 ** (1 / 24)
    centres = (np.arange(1, 7)[:, None] * notes).reshape(-1, 1)
    width = (0.1079 * centres + 24.7) / 1.3
    x = 8000 * np.arange(257) / 256
    rising, falling = 2 * x / width + 1 - 2 * centres / width, 2 * (centres - x) / width + 1
    expected = np.maximum(0, np.minimum(rising, falling))
    assert expected.max() > 0.9
    np.testing.assert_allclose(filters.weights().detach(), expected, atol=2e-5)


def test_the_spectrum_is_the_power_of_windowed_frames_in_decibels():
    torch.manual_seed(0)
    filters = HarmonicFilters(rate=800, window=16, harmonics=2, per_semitone=1, lowest=40).double()
    filters.hann = torch.hann_window(16, dtype=torch.float64)
    wave = torch.randn(1, 40, dtype=torch.float64)
    padded = np.pad(wave[0].numpy(), 8, mode="reflect")
    hann = 0.5 * (1 - np.cos(2 * np.pi * np.arange(16) / 16))
    frames = np.stack([hann * padded[start : start + 16] for start in range(0, 41, 8)])
    expected = filters.weights().detach().numpy() @ np.abs(np.fft.rfft(frames)).T ** 2
    expected = 10 * np.log10(np.maximum(expected, 1e-10)).reshape(1, 2, filters.bands, 6)
    np.testing.assert_allclose(filters(wave).detach().numpy(), expected, atol=1e-9)


def merged(task, *batches):
    """The metrics of some batches together; the first numbers of a chunk are its logits."""
    shares = [find_task(task).evaluate(lambda x: x[:, :5], batch) for batch in batches]
    return {n: share.value([each[n].state for each in shares]) for n, share in shares[0].items()}


@pytest.fixture
def clips():
    """Clips of four chunks with ties in their logits, and labels that go with them somewhat."""
    torch.manual_seed(5)
    chunks = (4 * torch.randn(90, 4, 10)).round() / 4
    chance = torch.sigmoid(chunks[..., :5].mean(1) - 1 + torch.randn(90, 5))
    return chunks, (torch.rand(90, 5) < chance).float()


def test_areas_are_those_of_the_mean_probability_over_the_chunks_of_a_clip(clips):
    chunks, tags = clips
    scores = torch.sigmoid(chunks[..., :5]).mean(dim=1)
    expected = roc_auc_score(tags, scores), average_precision_score(tags, scores)
    found = merged("tagging", *zip(chunks.split(40), tags.split(40), strict=True))
    assert list(found) == ["ROC-AUC", "PR-AUC"]
    assert list(found.values()) == pytest.approx([100 * x for x in expected], abs=1e-6)


def test_a_word_is_that_of_the_largest_mean_probability(clips):
    chunks, words = clips[0], torch.arange(90) % 5
    told = torch.softmax(chunks[..., :5], dim=-1).mean(dim=1).argmax(1)
    expected = 100 * (told == words).float().mean().item()
    assert merged("keywords", (chunks, words)) == {"accuracy": pytest.approx(expected)}


def test_f1_is_the_mean_over_clips_of_the_events_above_a_tenth(clips):
    logits, heard = clips[0][:, 0], clips[1]
    heard[3], logits[3] = 0, -9  # nothing heard, nothing told
    told = torch.sigmoid(logits[:, :5]) > 0.1
    expected = f1_score(heard, told, average="samples", zero_division=0)
    found = merged("events", *zip(logits.split(64), heard.split(64), strict=True))
    assert found == {"F1": pytest.approx(100 * expected, abs=1e-6)}


def test_sgd_after_adam_has_a_factor_of_its_rate_and_twice_the_epochs():
    """The paper's own runs are in `test_settings.py`."""
    mixed, others = [], []
    for trial in find_study("t4").trials(Plan("small"), Runs()):
        (mixed if trial.place.arm == "Adam + SGD" else others).append(trial.spec)
    assert {(spec.schedule, spec.epochs) for spec in mixed} == {("constant", 16)}
    assert {(spec.schedule, spec.epochs) for spec in others} == {("cosine", 8)}
    assert {spec.hyper_parameters["sgd_factor"] for spec in mixed} == {1.0, 10.0, 100.0}
    rates = [{spec.hyper_parameters["lr"] for spec in specs} for specs in (mixed, others)]
    assert rates[0] == rates[1]


def test_the_mixture_is_torchs_adam_and_then_its_sgd():
    """SGD begins after 6 of 20 steps, with a momentum of 0; its rate falls after 8 and after 10."""
    recipe = f"{adam_before_sgd.__module__}:adam_before_sgd"
    spec = Spec("keywords", recipe, {"lr": 0.01, "weight_decay": 0.1, "sgd_factor": 3.0})
    run = SimpleNamespace(bound=recipes_of(spec)[0], rest=None, steps=20)
    ours, other = (nn.Linear(3, 2, dtype=torch.float64) for _ in range(2))
    other.load_state_dict(ours.state_dict())
    optimizer = make_optimizer(run, find_task("keywords"), ours, ())
    theirs = torch.optim.Adam(other.parameters(), 0.01, weight_decay=0.1)
    generator = torch.Generator().manual_seed(0)
    for step in range(run.steps):
        if step == 6:
            more = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}
            theirs = torch.optim.SGD(other.parameters(), 0.03, **more)
        if step in (8, 10):
            theirs.param_groups[0]["lr"] /= 10
        x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        for model, each in ((ours, optimizer), (other, theirs)):
            each.zero_grad()
            model(x).square().sum().backward()
            each.step()
        torch.testing.assert_close(ours.weight, other.weight, rtol=1e-12, atol=1e-14)
