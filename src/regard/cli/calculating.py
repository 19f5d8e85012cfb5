"""`regard steps`: the calculation of attention with numbers that a person types."""

import sys

import click

from regard.cli.manners import refusing, stop

EXAMPLES = """
Example:

\b
  regard steps --query '1 0' --keys '1 0; 0 1; 1 1' --values '10 0; 0 20; 30 30' --scale 1
"""


@click.command(epilog=EXAMPLES)
@click.option("--query", metavar="ROWS", help="Numbers; a semicolon begins a new row.")
@click.option("--keys", metavar="ROWS", help="Rows as wide as the query's.")
@click.option("--values", metavar="ROWS", help="As many rows as there are keys.")
@click.option(
    "--scale",
    type=float,
    metavar="X",
    help="What scores are multiplied by; 1/√width unless given.",
)
def steps(query: str | None, keys: str | None, values: str | None, scale: float | None) -> None:
    """Show the calculation of attention with numbers of your own.

    Without numbers: one query, three keys and their values, scale 1.
    """
    from regard.core.steps import steps as calculate
    from regard.views.pen import spell

    given = {"--query": query, "--keys": keys, "--values": values}
    if not any(given.values()):
        given = {"--query": "1 0", "--keys": "1 0; 0 1; 1 1", "--values": "10 0; 0 20; 30 30"}
        scale = 1.0 if scale is None else scale
    missing = [name for name, text in given.items() if not text]
    if missing:
        stop(f"give {' and '.join(missing)} too: query, keys and values belong together")
    rows = [matrix(name, text or "") for name, text in given.items()]
    with refusing(ValueError, TypeError):
        calculation = calculate(*rows, scale=scale)
    texts = (calculation.text(query) for query in range(len(rows[0])))
    click.echo(spell("\n\n".join(texts), sys.stdout.encoding))


def matrix(name: str, text: str) -> list[list[float]]:
    """Rows of numbers as a person types them: `1 0; 0.5 2`, commas allowed."""
    try:
        rows = [[float(n) for n in row.replace(",", " ").split()] for row in text.split(";")]
    except ValueError as error:
        stop(f"{name}: {error}; write numbers as in '1 0; 0.5 2'")
    if len({len(row) for row in rows}) > 1 or not rows[0]:
        stop(f"{name}: rows of one length expected, got lengths {[len(row) for row in rows]}")
    return rows
