"""Backups and stores whose description names a stream that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import StoreDamagedError
from penstock.store import open_backup, open_store


@pytest.mark.parametrize("name", ["\ud800", "a.b", "../up", "", 7, None])
def test_a_name_that_no_stream_has_is_damage(tmp_path: Path, name: object) -> None:
    """Half of a character, a path or no text, where a stream's name should be, is told before anything is read."""
    (tmp_path / "backup.json").write_text(json.dumps({"config": {"name": name}}))
    (tmp_path / "stream.arc.s2").write_bytes(b"")
    with pytest.raises(StoreDamagedError, match="not the description of a stream"):
        open_backup(str(tmp_path))
    store = tmp_path / "store"
    (store / "msgs").mkdir(parents=True)
    (store / "meta.inf").write_text(json.dumps({"name": name}))
    with pytest.raises(StoreDamagedError, match="not the description of a stream"):
        open_store(str(store))
