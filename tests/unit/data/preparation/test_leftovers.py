"""What killed preparations leave behind is removed by the next one of the same name."""

from lockstep.data.preparation.scratch import remove_leftovers


def test_preparations_of_other_names_are_left_alone(tmp_path):
    """`data.eval` may be in preparation beside `data`, or may be between the two renames of a replacement."""
    unfinished, replaced = tmp_path / ".data.eval.1a2b.unfinished", tmp_path / ".data.eval.1a2b.replaced"
    for folder in (unfinished, replaced / "data", tmp_path / ".data.p6_z.unfinished"):
        folder.mkdir(parents=True)
    remove_leftovers(tmp_path / "data")
    assert sorted(tmp_path.iterdir()) == [replaced, unfinished]
    assert (replaced / "data").is_dir()
    remove_leftovers(tmp_path / "data.eval")
    assert [path.name for path in tmp_path.iterdir()] == ["data.eval"]
