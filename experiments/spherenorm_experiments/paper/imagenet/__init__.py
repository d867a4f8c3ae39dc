"""Tables 2, D.2 and D.3: classification of photographs."""

STUDIES = {
    "d2": "d2:D2",
    "d3": "d3:D3",
    "t2": "t2:T2",
}
TASKS = {"classification": "classification:Classification"}
