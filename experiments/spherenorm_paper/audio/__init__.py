"""Table 4: audio classification."""

STUDIES = {"t4": "t4:T4"}
TASKS = {name.lower(): f"tasks:{name}" for name in ("Events", "Keywords", "Tagging")}
LAYOUTS = {
    "dcase2017": "recordings:DCASE",
    "magnatagatune": "recordings:MAGNATAGATUNE",
    "speech_commands": "recordings:SPEECH_COMMANDS",
}
