"""The clips and their tags."""

import torch

from experiments.tasks import find_task


def test_the_tags_of_the_clips_are_what_they_say():
    spectra, tags = find_task("tagging").data().train
    assert spectra.shape[1:] == (4, 32, 8)
    assert torch.equal(tags[:, :3].sum(1), torch.ones(len(tags)))  # low, middle or high
    frames = spectra.mean((1, 2))
    slope = frames[:, -1] - frames[:, 0]
    plucked, swelling = tags[:, 6] == 1, tags[:, 7] == 1
    assert slope[plucked].mean() < slope[~plucked & ~swelling].mean() < slope[swelling].mean()
