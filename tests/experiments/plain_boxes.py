"""Overlaps and suppression of boxes in plain loops."""


def overlap(a, b):
    (x0, y0, x1, y1), (u0, v0, u1, v1) = a.tolist(), b.tolist()
    common = max(0.0, min(x1, u1) - max(x0, u0)) * max(0.0, min(y1, v1) - max(y0, v0))
    either = (x1 - x0) * (y1 - y0) + (u1 - u0) * (v1 - v0) - common
    return common / either if either else 0.0


def greedy(boxes, classes, threshold):
    kept = []
    for k in range(len(boxes)):
        rivals = (j for j in kept if classes[j] == classes[k])
        if all(overlap(boxes[j], boxes[k]) <= threshold for j in rivals):
            kept.append(k)
    return [k not in kept for k in range(len(boxes))]
