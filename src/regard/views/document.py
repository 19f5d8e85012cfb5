"""The page's own text, put together: HTML, CSS, and modules of JavaScript joined into one script.

The browser is told to run nothing but that script, and to load nothing at all; token text is data,
never markup.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from regard.views.overview import MEASURES
from regard.views.palette import INKS, ink, shade

FILES = Path(__file__).parent / "page"
# Each file after those that it leans on.
SCRIPTS = (
    "data", "attention", "say", "groups", "palette", "state", "dom", "compare", "patches", "words",
    "ranking", "heads", "calculation", "lines", "save", "controls", "plane", "matrix", "main",
)  # fmt: skip
MEASURED = {name: meaning for name, (_, meaning) in MEASURES.items()}
STEPS = 100  # shades from the ground to a pole


def document(
    header: dict[str, Any], lines: Sequence[str], measured: dict[str, str] = MEASURED
) -> str:
    """The page that shows this."""
    style, script = _style(), _script()
    policy = (
        "default-src 'none'; img-src data: blob:; base-uri 'none'; form-action 'none'; "
        f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(f"regard · {header['model']}"),
        "style": style,
        "script": script,
        "page": as_data(header | {"palette": _shades(), "measured": measured}),
        "arrays": "\n".join(f'<script type="text/plain">{line}</script>' for line in lines),
    }
    frame = (FILES / "index.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], frame)


def as_data(value: Any) -> str:
    r"""JSON that ends no script and starts none, whatever is in it.

    >>> as_data("</script>")
    '"\\u003c/script>"'
    """
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("&", "\\u0026")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


@cache
def _style() -> str:
    """The sheet, with the palette's colours as custom properties."""

    def inks(ground: Any) -> str:
        return "".join(
            f"--{name}:{colour};" for name, colour in INKS[ground]._asdict().items()
            if isinstance(colour, str)
        )  # fmt: skip

    light, dark = f"color-scheme:light;{inks('light')}", f"color-scheme:dark;{inks('dark')}"
    colours = (
        f":root{{{light}}}\n@media(prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        f":root[data-theme=light]{{{light}}}\n:root[data-theme=dark]{{{dark}}}\n"
    )
    return "\n" + colours + (FILES / "page.css").read_text(encoding="utf-8")


@cache
def _script() -> str:
    """The modules as one script, each in a scope of its own: what a browser makes of them."""
    parts = []
    for name in SCRIPTS:
        text = (FILES / f"{name}.js").read_text(encoding="utf-8")
        given = re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", text, re.MULTILINE)
        text = re.sub(r"^export ", "", text, flags=re.MULTILINE)
        text = re.sub(
            r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', r"const \1 = in_\2;", text,
            flags=re.MULTILINE,
        )  # fmt: skip
        parts.append(f"const in_{name} = (() => {{\n{text}return {{ {', '.join(given)} }};\n}})();")
    return "\n" + "\n".join(parts) + "\n"


@cache
def _shades() -> dict[str, list[list[str]]]:
    """For each ground: shade and the ink on it, from -1 to 1."""
    values = [n / STEPS for n in range(-STEPS, STEPS + 1)]
    return {
        ground: [[shade(v, ground) for v in values], [ink(v, ground) for v in values]]
        for ground in ("light", "dark")
    }
