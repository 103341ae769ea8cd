"""The search for secrets finds them: a test that looks for leaks is worth nothing if it cannot see one."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.secret_forms import leaks, leaks_in_files

SECRET = "s3cr3t-p@ss/w0rd-of-tests"
KEY = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEGCCqGSM49\nAwEHBG0wawIBAQQg\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize("before", ["", "a", "ab", "user:"])
@pytest.mark.parametrize("coded", [base64.b64encode, base64.urlsafe_b64encode, bytes.hex, bytes])
def test_a_secret_is_found_wherever_it_stands(before: str, coded):
    """Plain and coded, at each place of a coded text."""
    written = coded(f"{before}{SECRET} and more".encode())
    assert leaks(written, [SECRET])


def test_other_forms(tmp_path: Path):
    """In an address, in JSON, and one line of a key; what is not there is not found."""
    for content in (quote(SECRET, safe=""), json.dumps({"a": SECRET}), "x MIGHAgEAMBMGByqGSM49AgEGCCqGSM49"):
        (tmp_path / "file").write_text(content)
        assert leaks_in_files(tmp_path, [SECRET, KEY])
    assert not leaks("-----BEGIN PRIVATE KEY-----\ns3cr3t", [SECRET, KEY])


def test_a_folder_without_files_is_no_proof(tmp_path: Path):
    """A search that looked at nothing fails."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(AssertionError, match="nothing was written"):
        leaks_in_files(tmp_path, [SECRET])
