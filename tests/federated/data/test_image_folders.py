"""Images in folders and zip files give the same data, in sorted order, and an invalid one is
named.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from federated.data.image_folders import read_folder, read_zip
from federated.data.loading import load, load_central, load_device
from federated.errors import DataError

Image = pytest.importorskip("PIL.Image")
PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "cifar10.zip"


def paint(path: Path, value: int, *, mode: str = "L", size: tuple[int, int] = (3, 2)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(
        mode,
        size,
        value if mode in ("L", "I;16") else (value, value + 1, value + 2, 9)[: len(mode)],
    ).save(path)


@pytest.fixture
def parted(tmp_path: Path) -> Path:
    """Return grey images of 2x3, of three classes, whose pixels tell them apart: cats 1, 2 and 7,
    a dog 3, and an owl 8 only in the test part.
    """
    folder = tmp_path / "animals"
    for place, value in {
        "train/dog/a": 3,
        "train/cat/b": 2,
        "train/cat/a": 1,
        "test/owl/a": 8,
        "test/cat/z": 7,
    }.items():
        paint(folder / f"{place}.png", value)
    (folder / "README.txt").write_text("of mine")
    (folder / "train" / ".hidden").write_text("")
    return folder


def zipped(folder: Path, inside: str) -> Path:
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*"), reverse=True):
            archive.write(file, f"{inside}{file.relative_to(folder)}")
    return path


def test_a_folder_with_both_parts_is_sorted_by_class_and_file(parted: Path) -> None:
    data = read_folder(parted)
    assert (data.name, data.x.shape, data.x.dtype, data.outputs) == (
        "animals",
        (3, 1, 2, 3),
        np.uint8,
        3,
    )
    assert (data.x[:, 0, 0, 0].tolist(), data.y.tolist()) == ([1, 2, 3], [0, 0, 1])
    assert (data.x_held[:, 0, 0, 0].tolist(), data.y_held.tolist()) == ([7, 8], [0, 2])
    assert data.classes == ("cat", "dog", "owl")


@pytest.mark.parametrize("inside", ["", "pets/animals/"])
def test_a_zip_holds_the_same_as_its_folder(parted: Path, inside: str) -> None:
    one, two = read_folder(parted), read_zip(zipped(parted, inside))
    for key in ("x", "y", "x_held", "y_held"):
        assert np.array_equal(getattr(one, key), getattr(two, key))
    assert (two.name, two.outputs) == ("animals.zip", 3)


def test_a_validation_part_is_held_out_only_without_a_test_part(parted: Path) -> None:
    paint(parted / "valid" / "dog" / "a.png", 5)
    assert len(read_folder(parted).x_held) == 2
    shutil.rmtree(parted / "test")
    assert (read_folder(parted).y_held.tolist(), read_folder(parted).x_held[0, 0, 0, 0]) == ([1], 5)


def test_a_plain_folder_is_split_and_an_empty_class_keeps_its_number(tmp_path: Path) -> None:
    for i in range(10):
        paint(tmp_path / "own" / ("ant", "cow")[i % 2] / f"{i}.bmp", i)
    (tmp_path / "own" / "bee").mkdir()
    whole = load_central(str(tmp_path / "own"))
    assert (whole.outputs, whole.labels, len(whole.x), len(whole.x_held)) == (3, (0, 2), 8, 2)
    assert load_device(str(tmp_path / "own"), name="pi").outputs == 3


def test_one_picture_in_colour_makes_all_colourful(tmp_path: Path) -> None:
    paint(tmp_path / "a" / "1.png", 10)
    paint(tmp_path / "b" / "1.png", 20, mode="RGB")
    paint(tmp_path / "b" / "2.png", 30, mode="RGBA")
    paint(tmp_path / "b" / "3.png", 40)
    assert read_folder(tmp_path).x[:, :, 0, 0].tolist() == [
        [10, 10, 10],
        [20, 21, 22],
        [30, 31, 32],
        [40, 40, 40],
    ]


def test_the_first_picture_of_another_size_is_named(tmp_path: Path) -> None:
    paint(tmp_path / "a" / "1.png", 0)
    paint(tmp_path / "b" / "2.png", 0, size=(2, 3))
    with pytest.raises(
        DataError, match=r"expected images of one size, 3x2 like a/1\.png, found 2x3 in b/2\.png"
    ):
        read_folder(tmp_path)


def test_the_error_names_a_file_that_is_not_a_picture_of_8_bits(tmp_path: Path) -> None:
    paint(tmp_path / "a" / "1.png", 0)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.png").write_bytes(b"text")
    with pytest.raises(DataError, match=r"cannot read the image b/2\.png"):
        read_folder(tmp_path)
    (tmp_path / "b" / "2.png").write_bytes((tmp_path / "a" / "1.png").read_bytes()[:-30])
    with pytest.raises(DataError, match=r"cannot read the image b/2\.png"):
        read_folder(tmp_path)
    paint(tmp_path / "b" / "2.png", 0, mode="I;16")
    with pytest.raises(DataError, match=r"8 bits in grey or colour, found b/2\.png of mode I;16"):
        read_folder(tmp_path)


def test_folders_of_another_shape_are_refused(tmp_path: Path, parted: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(
        DataError,
        match="data 'none': expected images as CLASS/FILE or train/CLASS/FILE, found none",
    ):
        read_folder(tmp_path / "none")
    paint(parted / "train" / "cat" / "old" / "c.png", 0)
    with pytest.raises(DataError, match=r"expected train/CLASS/FILE, found train/cat/old/c\.png"):
        read_folder(parted)
    paint(tmp_path / "single" / "cat" / "1.png", 0)
    with pytest.raises(DataError, match="at least 2 classes in y, found only class 0"):
        load(str(tmp_path / "single"))


def test_a_missing_and_a_damaged_zip_are_refused(tmp_path: Path, parted: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load(str(tmp_path / "none.zip"))
    path = zipped(parted, "")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"expected a \.zip of a folder of images"):
        load(str(path))


@pytest.mark.parametrize(
    ("local", "central", "value"),
    [(6, 8, 1), (8, 10, 99)],
    ids=["encrypted", "an unknown compression"],
)
def test_a_zip_that_cannot_be_unpacked_names_the_picture(
    parted: Path, local: int, central: int, value: int
) -> None:
    path = zipped(parted, "")
    raw = path.read_bytes()
    # the flags, or the method, of every entry's two headers
    for mark, at in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        head, *entries = raw.split(mark)
        raw = mark.join(
            [head, *(entry[: at - 4] + bytes([value]) + entry[at - 3 :] for entry in entries)]
        )
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"cannot read the image train/cat/a\.png"):
        load(str(path))


def test_a_zip_with_backslashes_is_read(parted: Path) -> None:
    path = zipped(parted, "")
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(path.with_name("old.zip"), "w") as other:
        for name in archive.namelist():
            other.writestr(name.replace("/", "\\"), archive.read(name))
    assert load(str(path.with_name("old.zip"))).x.tolist() == read_folder(parted).x.tolist()


def test_class_folders_may_be_links(tmp_path: Path, parted: Path) -> None:
    (tmp_path / "linked").mkdir()
    for name in ("cat", "dog"):
        (tmp_path / "linked" / name).symlink_to(parted / "train" / name)
    assert read_folder(tmp_path / "linked").y.tolist() == [0, 0, 1]


def test_a_palette_with_transparency_keeps_its_colours(tmp_path: Path) -> None:
    paint(tmp_path / "a" / "1.png", 0)
    (tmp_path / "b").mkdir()
    image = Image.new("P", (3, 2), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "b" / "2.png", transparency=bytes([0, 128]))
    assert read_folder(tmp_path).x[1, :, 0, 0].tolist() == [10, 20, 30]


@pytest.mark.slow
def test_cifar_10_as_a_zip_has_the_published_moments(tmp_path: Path) -> None:
    """Every tenth of its 60,000 WebP images, whose moments differ by up to 0.002."""
    if not PUBLISHED.is_file():
        pytest.skip("no cifar10.zip beside this checkout")
    with zipfile.ZipFile(PUBLISHED) as archive, zipfile.ZipFile(tmp_path / "c.zip", "w") as some:
        assert len(archive.namelist()) == 60_000
        for name in sorted(archive.namelist())[::10]:
            some.writestr(name, archive.read(name))
    whole = load_central(str(tmp_path / "c.zip"))
    assert (whole.x.shape, whole.x_held.shape, whole.outputs) == (
        (5000, 3, 32, 32),
        (1000, 3, 32, 32),
        10,
    )
    assert np.bincount(whole.y).tolist() == [500] * 10
    card = whole.card()
    assert np.allclose(np.array(card.mean) / 255, [0.4914, 0.4822, 0.4465], atol=3e-3)
    assert np.allclose(np.array(card.std) / 255, [0.2470, 0.2435, 0.2616], atol=3e-3)
