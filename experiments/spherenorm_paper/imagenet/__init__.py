"""Tables 2, D.2 and D.3: classification of photographs."""

STUDIES = {
    "d2": "studies:D2",
    "d3": "studies:D3",
    "t2": "studies:T2",
}
TASKS = {"classification": "classification:Classification"}
