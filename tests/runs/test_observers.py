"""Who follows a run from Python: tools by name, bars, and observers that are none."""

from __future__ import annotations

import pytest

import proxyfl
from proxyfl import Experiment
from proxyfl.core.errors import ConfigError

SMALL = {"clients": 4, "per_round": 1, "subset": 120, "train__epochs": 1, "width": 1, "rounds": 1}


def test_a_tool_is_named_with_log(tmp_path):
    pytest.importorskip("tensorboard")
    run = Experiment("fedavg", **SMALL).run(tmp_path / "run", workers=0, log="tensorboard")
    assert list((run.path / "tensorboard").glob("events*"))


def test_the_name_of_a_tool_is_no_observer(tmp_path):
    experiment = Experiment("fedavg", **SMALL)
    for wrong in (["tensorboard"], "tensorboard"):
        with pytest.raises(ConfigError, match="name a tool with log='tensorboard'"):
            experiment.run(tmp_path / "run", observers=wrong)
    with pytest.raises(ConfigError, match="int is not an observer"):
        experiment.run(tmp_path / "run", observers=[3])
    with pytest.raises(ConfigError, match="unknown logger"):
        experiment.run(tmp_path / "run", log="tensorbord")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="record"):
        experiment.federation(workers=0).run(log="tensorboard")


def test_progress_is_shown_where_it_is_asked_for(capsys):
    federation = Experiment("fedavg", **SMALL).federation(workers=0)
    assert federation.run().state.round == 1
    assert capsys.readouterr().err == ""
    Experiment("fedavg", **SMALL).federation(workers=0).run(progress=True)
    assert "round 1/1  accuracy" in capsys.readouterr().err


def test_objects_say_what_they_are(tmp_path):
    experiment = Experiment("fedavg", **SMALL)
    assert repr(experiment) == "<Experiment: fedavg on 'digits', 1 rounds, seed 1>"
    run = experiment.run(tmp_path / "run", workers=0)
    assert repr(run) == f"<Run {tmp_path / 'run'}: fedavg on 'digits', 1 of 1 rounds>"
    assert repr(run.model()) == "<TrainedModel: resnet8 of fedavg, 1 × 8 × 8 to 10 classes>"
    assert {"Experiment", "Federation", "load_model"} <= set(dir(proxyfl))
    assert {name for name in dir(proxyfl) if not name.startswith("_")} <= set(proxyfl.__all__)
