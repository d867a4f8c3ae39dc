"""Miniatures of the official layouts of the audio benchmarks, written to a folder."""

import csv
import math

import numpy as np
import soundfile

from spherenorm_experiments.paper.audio.recordings import EVENTS, PARTS, WORDS


def tone(hz, seconds, rate):
    """A quiet sine."""
    return 0.5 * np.sin(2 * math.pi * hz * np.arange(round(seconds * rate)) / rate)


def write(path, wave, rate):
    """An audio file, of the kind that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, wave, rate)


def write_magnatagatune(root, seconds=6.0, clips=18):
    """A clip or two in each folder; 52 tags, of which two never hold; one clip without a tag."""
    folder = root / "magnatagatune"
    tags = ["never", *(f"tag {k}" for k in range(50)), "not once"]
    rows = []
    for k in range(clips):
        name = f"{k % 16:x}/clip-{k}.mp3"
        flags = [0, *(int((k + t) % 3 == 0) for t in range(50)), 0]
        rows.append([str(k), *map(str, flags if k != 16 else [0] * 52), name])
        write(folder / name, tone(200 + 20 * k, seconds, 16_000), 16_000)
    with (folder / "annotations_final.csv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_ALL)
        writer.writerows([["clip_id", *tags, "mp3_path"], *rows])
    return folder


def write_speech_commands(root, speakers=3):
    """A clip of each word and speaker; two speakers are in a list each."""
    folder = root / "speech_commands"
    for k, word in enumerate(WORDS):
        for speaker in range(speakers):
            wave = tone(200 + 50 * k + 7 * speaker, 0.9 + 0.1 * (speaker > 0), 16_000)
            write(folder / word / f"{speaker:08x}_nohash_0.wav", wave, 16_000)
    write(folder / "_background_noise_" / "hum.wav", tone(50, 1, 16_000), 16_000)
    for speaker, name in ((1, "validation_list.txt"), (2, "testing_list.txt")):
        lines = [f"{word}/{speaker:08x}_nohash_0.wav" for word in WORDS]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def write_dcase2017(root, seconds=3.0, training=34):
    """Two training clips of each event, a testing and two evaluation clips, at 44.1 kHz."""
    folder = root / "dcase2017"
    for part, count in (("training", training), ("testing", 1), ("evaluation", 2)):
        lines = []
        for k in range(count):
            clip = f"{part[:2]}{k:02d}_30.000_40.000.wav"
            events = {EVENTS[k % 17], EVENTS[(k + k // 17) % 17]}
            lines += [f"{clip}\t30.000\t40.000\t{event}" for event in sorted(events)]
            write(folder / PARTS[part] / f"Y{clip}", tone(300 + 40 * k, seconds, 44_100), 44_100)
        ends = "\n" if part == "training" else "\r\n"  # as those of the official lists
        path = folder / f"groundtruth_weak_label_{part}_set.csv"
        path.write_bytes((ends.join(lines) + ends).encode())
    return folder
