"""Table 4: audio classification."""

STUDIES = {"t4": "t4:T4"}
TASKS = {
    "events": "events:Events",
    "keywords": "keywords:Keywords",
    "tagging": "tagging:Tagging",
}
LAYOUTS = {
    "dcase2017": "dcase2017:LAYOUT",
    "magnatagatune": "magnatagatune:LAYOUT",
    "speech_commands": "speech_commands:LAYOUT",
}
