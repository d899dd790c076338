"""The model card shows the manifest's contents."""

from __future__ import annotations

from dataclasses import replace

from export.modelcard import render_card
from export.release_reader import Bundle, Entry, File, Variant, recommended_entries


def bundle(**changes: object) -> Bundle:
    files = [
        File(f"w1-d1{kind}.onnx", size, f"{size:064d}")
        for kind, size in (("", 4000), (".int8-u8s8", 1000))
    ]
    graphs = (
        Variant("fp32", files[0], 1e-7, 0.95),
        Variant("int8-u8s8", files[1], 0.25, 0.9475, 0.99),
    )
    entry = Entry(
        "w1-d1",
        1234,
        5678,
        graphs,
        File("w1-d1.tensors", 4100, "ab" * 32),
        ("int8-s8s8: a reason",),
    )
    given = {
        "labelled": True,
        "calibrated": 128,
        "preprocessing": {"inside": True, "mean": [4.5, 1.0], "std": [2.0, 1.0]},
        "about": {"method": "fedfa"},
    }
    check = File("check.tensors", 10, "cd" * 32)
    return Bundle(
        "spring", 7, (2, 8, 8), "uint8", "class", 10, 400, (entry,), check, **{**given, **changes}
    )  # type: ignore[arg-type]


def test_each_graph_has_a_row_and_each_absent_one_a_reason() -> None:
    card = render_card(bundle())
    assert card.startswith("# spring, round 7\n")
    assert "| w1-d1 | 1,234 | 5,678 | fp32 | 4 kB | 0.9500 |  | 1e-07 |" in card
    assert "| w1-d1 | 1,234 | 5,678 | int8-u8s8 | 1 kB | 0.9475 | -0.0025 | 0.25 |" in card
    assert "- w1-d1 has no int8-s8s8: a reason" in card
    assert "- method: fedfa" in card


def test_untrained_submodel_is_marked_and_not_recommended() -> None:
    (entry,) = bundle().submodels
    small, large = (
        replace(entry, trained_updates=3),
        replace(entry, submodel="w1-d2", trained_updates=0),
    )
    card = render_card(replace(bundle(), submodels=(small, large)))
    assert "| w1-d2 (not trained) | 1,234 |" in card
    assert "Not trained: w1-d2." in card
    assert "--submodel w1-d1 INPUTS" in card
    assert [
        one.submodel for one in recommended_entries(replace(bundle(), submodels=(small, large)))
    ] == ["w1-d1"]
    assert "ot trained" not in render_card(bundle()), "nothing is known of a release without counts"
    assert [one.submodel for one in recommended_entries(replace(bundle(), submodels=(large,)))] == [
        "w1-d2"
    ]


def test_card_lists_inputs_classes_and_digests() -> None:
    card = render_card(bundle(classes=("cat", "dog")))
    assert "uint8 [batch, 2, 8, 8]" in card
    assert "- mean: 4.5, 1\n- std: 2, 1\n" in card
    assert "Classes: 0 cat, 1 dog." in card
    assert "Classes are numbers, 0 to 9" in render_card(bundle())
    for digest in ("cd" * 32, "ab" * 32, f"{4000:064d}", f"{1000:064d}"):
        assert digest in card


def test_card_lists_what_was_not_measured() -> None:
    assert "Each graph was run on 400 real labelled examples" in render_card(bundle())
    assert "The ranges of int8 were found on 128 other examples." in render_card(bundle())
    assert "Not measured here: latency" in render_card(bundle())
    blind = render_card(bundle(labelled=False))
    assert "without labels, so the accuracy is unknown" in blind
    assert "| int8-u8s8 | 1 kB | 0.9900 | -0.0100 |" in blind
