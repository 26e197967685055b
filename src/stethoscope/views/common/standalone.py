"""The frame of every file we write for a browser: one file, nothing loaded, a policy by hash lets nothing else run."""

from __future__ import annotations

import base64
import hashlib
import html
from typing import Final

from stethoscope.record import StethoscopeError

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>{style}</style>
</head>
<body>{body}
<script>{script}</script>
</body>
</html>
"""


def one_file(title: str, body: str, *, style: str, script: str, images: str = "") -> str:
    """The page; `body` is markup that its maker has escaped, `images` what kinds of sources pictures may have."""
    script, style = script.strip(), style.strip()
    if "</script" in script.lower() or "<!--" in script or "</style" in style.lower():
        raise StethoscopeError("The page's own script cannot be put into a file", do="Install Stethoscope again")
    policy = f"default-src 'none'; script-src '{_policy_hash(script)}'; style-src '{_policy_hash(style)}'; "
    policy += f"img-src {images}; " if images else ""
    policy += "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    return _PAGE.format(policy=policy, title=html.escape(title), style=style, body=body, script=script)


def _policy_hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
