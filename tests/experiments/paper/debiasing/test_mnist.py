"""MNIST: IDX files, gzipped or not, and what is wrong with damaged ones."""

import numpy as np
import pytest
import torch
from miniatures import idx, write_mnist

from spherenorm_experiments.paper.debiasing import mnist
from spherenorm_experiments.paper.debiasing.mnist import read_mnist


@pytest.mark.parametrize("zipped", [False, True])
def test_what_was_written_is_read(tmp_path, zipped):
    found = write_mnist(tmp_path, zipped=zipped)
    for part, train in (("train", True), ("t10k", False)):
        images, labels = read_mnist(tmp_path, train)
        assert torch.equal(images, torch.from_numpy(found[part][0]).to(torch.uint8))
        assert labels.tolist() == found[part][1].tolist()
    assert mnist.LAYOUT.count(tmp_path) == {
        "training images": 30, "test images": 10, "classes": 10,
    }  # fmt: skip


def test_damage_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"lacks train-images-idx3-ubyte or .*\.gz; expected"):
        read_mnist(tmp_path, train=True)
    write_mnist(tmp_path)
    path = tmp_path / "t10k-labels-idx1-ubyte"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"must have 10 bytes of shape \[10\], got 9"):
        read_mnist(tmp_path, train=False)
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match=r"no IDX file of bytes; it starts with '504b0304'"):
        read_mnist(tmp_path, train=False)
    path.write_bytes(idx(np.zeros(9)))
    with pytest.raises(ValueError, match="t10k must have a label for each image"):
        read_mnist(tmp_path, train=False)
