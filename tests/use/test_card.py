"""The model card."""


def test_a_card_says_what_it_is(exported):
    folder, _, _ = exported
    text = (folder / "to-cross/README.md").read_text()
    for part in (
        "ltr.losses.SoftmaxLoss",
        "| negatives | candidates |",
        "| seed | 0 |",
        "95 % interval",
        "nDCG@10",
        "@software{ltr",
    ):
        assert part in text
    code = (
        text.partition("```python\n")[2]
        .partition("```")[0]
        .replace("FOLDER", str(folder / "to-cross"))
    )
    found: dict = {}
    exec(code, found)  # noqa: S102  # the card's own
    assert len(found["scores"]) == 2
    assert "Training" not in (folder / "to-bert/README.md").read_text(), "nothing is known of it"
