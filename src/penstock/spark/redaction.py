"""What Spark must not show of what it is given: settings that hide secrets in plans, event logs and pages.

Spark hides the value of an option by the option's name: whatever holds secret, password, token, access key, credential
or url. So each of our options that may hold a secret has such a name (`nkeySecret`), and that holds in any session. In
a session that Penstock starts the settings here hide the others as well, and secrets in the middle of a text: a login
in an address, an nkey seed, a JWT, a private key, and the options of a plan as Spark Connect writes them down. Pure.
"""

from __future__ import annotations

from typing import Final

__all__ = ["SETTINGS"]

# Spark's own names, then ours.
_NAMES = "secret|password|token|access[.]?key|credential|nkey|jwt|tlskey|socksproxy"
_TEXTS = (
    r"\bS[UANOCX][A-Z2-7]{56}\b",
    r"\beyJ[\w-]+\.[\w-]+\.[\w-]+",
    r"-----BEGIN [A-Z ]*(?:PRIVATE KEY|SEED|JWT)-----[\s\S]*?(?:-----END|\z)",
    r"(?<=://)[^\s/@\"']+@",
    rf'(?i:key: "[^"]*(?:{_NAMES}|url)[^"]*"\s*value: "(?:[^"\\]|\\.)*")',
)
SETTINGS: Final = {
    "spark.redaction.regex": f"(?i){_NAMES}",
    "spark.redaction.string.regex": "|".join(_TEXTS),
}
"""For the configuration of a Spark that begins."""
