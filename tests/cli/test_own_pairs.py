"""A choice of pairs of the user's own, named in the configuration."""

from tests.world.commands import run_ltr


def test_a_choice_of_your_own_is_named_in_the_configuration(tmp_path, letor_folder, capsys):
    config = tmp_path / "own.yaml"
    config.write_text(f"""
model:
  ranker: {{class_path: ltr.models.FeatureRanker, init_args: {{n_features: 5, preset: linear}}}}
  loss:
    class_path: ltr.losses.MarginRankingLoss
    init_args: {{pairs: {{class_path: tests.pairs.test_choices.WorstOfTheBest}}}}
data:
  class_path: ltr.datamodules.FeatureDataModule
  init_args: {{path: {letor_folder}}}
trainer: {{accelerator: cpu, max_epochs: 1, default_root_dir: {tmp_path / "run"}}}
""")
    assert run_ltr(f"fit --config {config}") == 0
    assert run_ltr(f"test {tmp_path / 'run'}") == 0
    assert "WorstOfTheBest" in (tmp_path / "run/config.yaml").read_text()
    assert run_ltr(f"fit --config {config} --model.loss.pairs hardes") == 2
    assert "hardes" in capsys.readouterr().err
