"""What holding for adaptive choices costs: ``python -m benchmarks.privacy.filter``.

ε of equal runs by the privacy filter, by PLD (which holds for settings fixed beforehand), and by RDP at the best order
(what a filter of RDP alone would say at most). Writes the table of docs/theory.md too.
"""

from pathlib import Path

from benchmarks.machine import row, write
from primorl.privacy.accounting.epsilon import Training, compose
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.ledger.account import total_of

DELTA = 1e-5
COMMAND = "python -m benchmarks.privacy.filter"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "theory.md"
BEGIN, END = "<!-- filter: begin -->\n", "<!-- filter: end -->"
SETTINGS = {
    "default (q 0.1, z 8.76, T 150)": Training(0.1, 8.76, 150),
    "large cohorts (q 0.5, z 10, T 100)": Training(0.5, 10.0, 100),
    "much noise (q 0.1, z 50, T 150)": Training(0.1, 50.0, 150),
    "little noise (q 0.1, z 2, T 150)": Training(0.1, 2.0, 150),
    "small cohorts (q 0.001, z 0.55, T 1000)": Training(0.001, 0.55, 1000),
}


def main() -> None:
    """Compute, print and keep the table."""
    rows, lines = [], ["| Runs | Settings of each | PLD, fixed beforehand | Filter, any choice | Ratio | RDP |"]
    lines.append("|---|---|---|---|---|---|")
    for name, run in SETTINGS.items():
        for runs in (1, 7, 30):
            events = [run.event] * runs
            total, alone = total_of(events, DELTA), compose(events, DELTA)
            ratio = total.epsilon / alone.epsilon_pld
            rows.append(
                row(COMMAND, f"{runs} x {name}", total.epsilon, alone.epsilon_pld, "PLD, settings fixed", ratio, "ε")
            )
            figures = (alone.epsilon_pld, total.epsilon, ratio, alone.epsilon_rdp)
            lines.append(f"| {runs} | {name} | " + " | ".join(at_most(figure, 4) for figure in figures) + " |")
    write("filter", rows)
    text = DOCUMENT.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    DOCUMENT.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
