"""SSD: the published count, boxes, matching, loss and detections of plain loops."""

import itertools
import math

import pytest
import torch

from spherenorm_paper.detection.boxes import centered, cornered, overlaps, suppressed
from spherenorm_paper.detection.ssd import (
    CANDIDATES,
    SSD,
    SSD300,
    Defaults,
    decoded,
    default_boxes,
    encoded,
    ssd_detections,
    ssd_loss,
)


def overlap(a, b):
    (x0, y0, x1, y1), (u0, v0, u1, v1) = a.tolist(), b.tolist()
    common = max(0.0, min(x1, u1) - max(x0, u0)) * max(0.0, min(y1, v1) - max(y0, v0))
    either = (x1 - x0) * (y1 - y0) + (u1 - u0) * (v1 - v0) - common
    return common / either if either else 0.0


def greedy(boxes, threshold):
    kept = []
    for k in range(len(boxes)):
        if all(overlap(boxes[j], boxes[k]) <= threshold for j in kept):
            kept.append(k)
    return [k not in kept for k in range(len(boxes))]


SMALL = Defaults((0.2, 0.45, 0.8), ((2,), ()))
SHAPES = ((4, 4), (2, 2))
BOXES = torch.tensor(
    [
        [[2.0, 4, 14, 20], [16, 16, 31, 30], [0, 0, 0, 0]],
        [[0.0, 0, 32, 32], [9, 9, 13, 13], [20, 4, 26, 10]],
    ]
)
LABELS = torch.tensor([[1, 0, -1], [0, 1, 1]])
"""Objects of two images of 32 x 32 pixels."""


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def maps():
    places = default_boxes(SHAPES, SMALL)
    return drawn(2, len(places), 4), drawn(2, len(places), 3, seed=1), places


def rows(maps, image):
    """For each default box (offsets, logits)."""
    return list(zip(maps[0][image], maps[1][image], strict=True))


def loop_matched(boxes, labels, places):
    corners = cornered(places)
    found = []
    for place in corners:
        every = [
            overlap(box, place) if label >= 0 else -1
            for box, label in zip(boxes, labels, strict=True)
        ]
        best = max(range(len(every)), key=lambda k: every[k])
        found.append(best if every[best] >= 0.5 else -1)
    for k, (box, label) in enumerate(zip(boxes, labels, strict=True)):
        if label >= 0:
            every = [overlap(box, place) for place in corners]
            found[max(range(len(every)), key=lambda m: every[m])] = k
    return found


def test_full_size_has_the_published_count_and_8732_default_boxes():
    """Torchvision's has no BatchNorm, which adds 8,448.

    Strides of 8 to 64 do not divide 300, so that 38 places reach to 304 pixels.
    """
    with torch.device("meta"):
        model = SSD(90)
        offsets, logits, places = model(torch.empty(1, 3, 300, 300))
    assert sum(p.numel() for p in model.parameters()) == 35_641_826 + 8_448
    assert (offsets.shape, logits.shape, places.shape) == ((1, 8732, 4), (1, 8732, 91), (8732, 4))
    sides, steps, counts = (38, 19, 10, 5, 3, 1), (8, 16, 32, 64, 100, 300), (4, 6, 6, 6, 4, 4)
    boxes = default_boxes([(side, side) for side in sides], SSD300) * 300
    centers = [
        ((j + 0.5) * step, (i + 0.5) * step)
        for side, step, count in zip(sides, steps, counts, strict=True)
        for i, j, _ in itertools.product(range(side), range(side), range(count))
    ]
    torch.testing.assert_close(boxes[:, :2], torch.tensor(centers))
    # The last map has one place: boxes of 0.87 and sqrt(0.87 1.05).
    sizes = [0.87, math.sqrt(0.87 * 1.05), 0.87 * 2**0.5, 0.87 / 2**0.5]
    assert boxes[-4:, 2].tolist() == pytest.approx([300 * size for size in sizes])


def test_the_rows_of_a_place_are_the_channels_of_the_heads():
    model = SSD(2, ((4,), (4,)), 8, 1, (), SMALL)
    raw = []
    for head in (*model.offsets, *model.scores):
        head.register_forward_hook(lambda module, inputs, found: raw.append(found[0]))
    offsets, logits, _ = model(drawn(1, 3, 8, 8))
    for found, maps, numbers in ((offsets, raw[:2], 4), (logits, raw[2:], 3)):
        expected = [
            x[numbers * k : numbers * (k + 1), i, j]
            for level, x in enumerate(maps)
            for i in range(x.shape[1])
            for j in range(x.shape[2])
            for k in range(len(SMALL.sizes(level)))
        ]
        assert torch.equal(found[0], torch.stack(expected))


def test_encoding_is_undone_and_is_the_formula():
    boxes, places = centered(BOXES[1] / 32), default_boxes(SHAPES, SMALL)[:3]
    offsets = encoded(boxes, places)
    torch.testing.assert_close(decoded(offsets, places), boxes)
    x, w = boxes[1, 0].item(), boxes[1, 2].item()
    x0, w0 = places[1, 0].item(), places[1, 2].item()
    assert offsets[1, ::2].tolist() == pytest.approx([(x - x0) / w0 / 0.1, math.log(w / w0) / 0.2])


def test_the_loss_is_that_of_a_loop():
    *_, places = both = maps()
    off, entropy, count = 0.0, 0.0, 0
    for image in (0, 1):
        found, negatives = loop_matched(BOXES[image] / 32, LABELS[image], places), []
        for place, object_, (offsets, logits) in zip(places, found, rows(both, image), strict=True):
            shares = logits.double().log_softmax(0)
            if object_ < 0:
                negatives.append(-shares[0].item())
                continue
            wanted = encoded(centered(BOXES[image, object_] / 32), place)
            gaps = (offsets - wanted).abs().tolist()
            off += sum(gap**2 / 2 if gap < 1 else gap - 0.5 for gap in gaps)
            entropy -= shares[LABELS[image, object_] + 1].item()
        positives = len(found) - len(negatives)
        entropy += sum(sorted(negatives, reverse=True)[: 3 * positives])
        count += positives
    loss = ssd_loss(both, BOXES, LABELS, 32)
    assert loss.item() == pytest.approx((off + entropy) / count, rel=1e-5)


def test_a_batch_without_objects_has_a_loss_of_0():
    """No positives: no negatives for them either."""
    loss = ssd_loss(maps(), BOXES, torch.full_like(LABELS, -1), 32)
    assert loss.item() == 0


@pytest.mark.parametrize("candidates", [CANDIDATES, 9])
def test_detections_are_those_of_a_loop(candidates):
    *_, places = both = maps()
    for image, found in enumerate(ssd_detections(both, 32, candidates)):
        every = []
        for place, (offsets, logits) in zip(places, rows(both, image), strict=True):
            box = cornered(decoded(offsets, place)).clamp(0, 1) * 32
            for label, score in enumerate(logits.softmax(0)[1:].tolist()):
                if score >= 0.01:
                    every.append([*box.tolist(), score, label])
        kept, lost = [], 0
        for label in (0, 1):
            best = sorted((row for row in every if row[5] == label), key=lambda row: -row[4])
            best = best[:candidates]
            gone = greedy(torch.tensor(best, dtype=torch.float64)[:, :4], 0.45)
            kept += [row for row, out in zip(best, gone, strict=True) if not out]
            lost += sum(gone)
        kept = sorted(kept, key=lambda row: -row[4])[:100]
        assert candidates == 9 or lost > 0
        torch.testing.assert_close(found, torch.tensor(kept), rtol=1e-5, atol=1e-5)


def boxes(count, seed, side=20.0):
    random = torch.Generator().manual_seed(seed)
    low = side * torch.rand(count, 2, generator=random, dtype=torch.float64)
    return torch.cat([low, low + side / 2 * torch.rand(count, 2, generator=random).double()], 1)


def test_overlaps_are_those_of_a_loop():
    a, b = boxes(7, 0), torch.cat([boxes(5, 1), torch.zeros(1, 4).double()])
    expected = [[overlap(x, y) for y in b] for x in a]
    torch.testing.assert_close(overlaps(a, b), torch.tensor(expected, dtype=torch.float64))
    assert overlaps(b[-1:], b[-1:]).item() == 0  # two empty boxes
    batched = overlaps(a.view(1, 7, 4).expand(2, -1, -1), b.expand(2, -1, -1))
    torch.testing.assert_close(batched[1], overlaps(a, b))


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.3, 0.6])
def test_suppression_is_that_of_a_greedy_loop(threshold):
    many = torch.stack([boxes(60, seed) for seed in range(3)])
    found = suppressed(many, threshold)
    assert 0 < found.sum() < found.numel()
    for row, gone in zip(many, found, strict=True):
        assert gone.tolist() == greedy(row, threshold)
