"""Norm control, from weight decay to spheres: learning rates over widths, turns, warm-up, ends."""

STUDIES = {
    "end-of-training": "end_of_training:EndOfTraining",
    "lr-transfer": "lr_transfer:STUDY",
    "norm-control": "norm_control:NormControl",
    "warm-up": "lr_transfer:WARM_UP",
}
TASKS = {"bytes": "byte_model:ByteModel"}
