"""Table 3: object detection."""

STUDIES = {"t3": "t3:T3"}
TASKS = {"detection": "detection:Detection"}
LAYOUTS = {"coco": "coco:LAYOUT"}
