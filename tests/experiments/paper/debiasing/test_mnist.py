"""MNIST: IDX files, gzipped or not."""

import pytest
import torch
from miniatures import write_mnist

from spherenorm_experiments.paper.debiasing.mnist import LAYOUT, read_mnist


@pytest.mark.parametrize("zipped", [False, True])
def test_what_was_written_is_read(tmp_path, zipped):
    found, folder = write_mnist(tmp_path, zipped=zipped), tmp_path / "mnist"
    LAYOUT.require(folder)
    for part, train in (("train", True), ("t10k", False)):
        images, labels = read_mnist(folder, train)
        assert torch.equal(images, torch.from_numpy(found[part][0]).to(torch.uint8))
        assert labels.tolist() == found[part][1].tolist()
