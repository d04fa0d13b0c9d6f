"""What Flower calls at a site: an answer in any case, and no word of the site's own files in it."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from flwr.app import Context, Message, RecordDict
from wireless import carried

from proxyfl.deploy import client_app
from proxyfl.engines.flower import codec

HANDLERS = {"train": client_app.train, "evaluate": client_app.evaluate, "query": client_app.enrol}


def answered(kind):
    message = carried(Message(codec.content({"kind": "anything"}), 7, kind))
    reply = HANDLERS[kind](message, Context(1, 7, {}, RecordDict(), {}))
    assert not reply.has_error()
    return codec.header_of(reply.content)


@pytest.mark.parametrize("kind", HANDLERS)
def test_a_site_without_its_settings_answers_without_naming_them(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(client_app.SITE, str(tmp_path / "patients"))
    monkeypatch.setenv(client_app.SITE_DATA, str(tmp_path))
    header = answered(kind)
    assert header["kind"] == "failure"
    assert "could not begin (ConfigError)" in header["reason"]
    assert str(tmp_path) not in str(header)
    assert f"{tmp_path / 'patients' / 'site.toml'} does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("kind", HANDLERS)
def test_an_error_of_another_kind_is_told_in_full_at_the_site_alone(kind, monkeypatch, capsys):
    def broken():
        raise OSError("/data/ward/site.toml cannot be read")

    monkeypatch.setattr(client_app, "this_site", broken)
    assert "ward" not in str(answered(kind))
    assert "/data/ward/site.toml cannot be read" in capsys.readouterr().err
