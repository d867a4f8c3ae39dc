"""Items: what is given to their loader, and what their fingerprint tells apart."""

import torch

from spherenorm_paper.shared.items import Items


def items(root, names=("a.bin", "b.bin"), labels=(3, 4), form=8):
    return Items(lambda path, label: (path, label), list(names), labels, folder=root, form=form)


def test_an_item_is_loaded_from_its_row_and_keeps_no_place(tmp_path):
    for folder in (tmp_path / "here", tmp_path / "there"):
        folder.mkdir()
        for name in ("a.bin", "b.bin"):
            (folder / name).write_bytes(name.encode())
    own = items(tmp_path / "here")
    assert own[1] == (tmp_path / "here" / "b.bin", 4)
    assert len(own) == 2
    assert own.fingerprint() == items(tmp_path / "there").fingerprint()
    others = [
        items(tmp_path / "here", labels=(3, 5)),
        items(tmp_path / "here", names=("b.bin", "a.bin")),
        items(tmp_path / "here", form=9),
    ]
    assert own.fingerprint() not in {each.fingerprint() for each in others}
    (tmp_path / "there" / "b.bin").write_bytes(b"c")
    assert own.fingerprint() != items(tmp_path / "there").fingerprint()


def test_items_in_memory_count_whole():
    images = torch.arange(6).reshape(3, 2)
    own, other = images.clone(), images.clone()
    other[1, 1] = 7
    first, second = (Items(lambda x: x, x).fingerprint() for x in (own, other))
    assert first != second
    assert first == Items(lambda x: x, images).fingerprint()
