"""CIFAR-10: images and labels of the official files, and the augmentation."""

import torch

from spherenorm_experiments.paper.adversarial.cifar import CifarImages


def test_augmentation_shifts_and_flips_and_draws_from_the_global_state():
    image = torch.arange(1, 3 * 32 * 32 + 1).remainder(251).add(1).to(torch.uint8)
    image = image.reshape(1, 3, 32, 32)
    padded = torch.nn.functional.pad(image[0], (4,) * 4)
    shifted = [padded[:, y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
    possible = {(crop.float() / 255).numpy().tobytes() for crop in shifted}
    possible |= {(crop.flip(2).float() / 255).numpy().tobytes() for crop in shifted}
    items = CifarImages(image, torch.tensor([7]), augment=True)
    torch.manual_seed(0)
    drawn = [items[0][0].numpy().tobytes() for _ in range(200)]
    torch.manual_seed(0)
    assert drawn[:5] == [items[0][0].numpy().tobytes() for _ in range(5)]
    assert set(drawn) <= possible
    assert len(set(drawn)) > 100
    plain = CifarImages(image, torch.tensor([7]))
    assert torch.equal(plain[0][0], image[0] / 255)
    assert plain.fingerprint() != items.fingerprint()
