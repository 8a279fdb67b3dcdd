from lockstep.envs import isaac


def test_isaac_lab_is_looked_for_and_never_imported(tmp_path, monkeypatch):
    for name in ("isaaclab", "isaaclab_tasks", "isaacsim"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    message = str(isaac.refusal("Isaac-Cartpole-v0"))
    assert "cannot start it yet" in message and "lockstep/Cartpole-v0" in message
