"""Where the project keeps things: every path is spelt here once.

Paths of inputs and outputs are relative to `primorl.base.files.workspace`, where DVC starts the
stages. `STATE` and what lies in it are relative to `primorl.base.files.home`: they outlive one
experiment.
"""

from pathlib import Path

PARAMS = Path("params.yaml")
ONLINE_SETTINGS = Path("online.yaml")
DATASETS = Path("datasets")
PIPELINE, LOCK = Path("dvc.yaml"), Path("dvc.lock")

# Inside the trust boundary.
RAW = Path("data/raw")
COPIES = RAW / "_source.json"
TRAJECTORIES = Path("data/trajectories")
WITHDRAWALS = Path("data/withdrawals")
CONSENT = Path("data/consent")
PARTITIONS = Path("data/partitions")
PRIVATE = PARTITIONS / "private"

# What later stages read.
PUBLIC = PARTITIONS / "public"
MANIFEST = PARTITIONS / "manifest.json"
PLAN = Path("data/plan.json")
MODELS = Path("models")
MODEL, POLICY = MODELS / "dynamics", MODELS / "policy"
BEHAVIOUR = MODELS / "behaviour"
STAGES = Path("metrics/stages")
SUMMARY = Path("metrics/summary.json")
PRIVATE_EVALUATION = Path("metrics/private_evaluation.json")
ONLINE = MODELS / "online"
ONLINE_METRICS, ONLINE_CURVE = Path("metrics/online.json"), Path("plots/online.csv")
CURVES = Path("plots/curves.csv")
REPORTS = Path("reports")
REPORT, LATEST_REPORT = REPORTS / "report.html", REPORTS / "latest.html"

STATE = Path(".primorl")
SECRET = STATE / "secret"
LEDGER, LEDGER_HEAD = STATE / "ledger.db", STATE / "ledger.head"
UNITS = STATE / "units"
CHECKPOINTS = STATE / "checkpoints"
PAID_PLANS = STATE / "plans"

PARENTS = (
    *(Path(folder) for folder in ("", "data", "metrics", "plots", ".dvc/tmp")),
    PARTITIONS,
    MODELS,
    MODEL,
    POLICY,
    BEHAVIOUR,
    ONLINE,
    STAGES,
    REPORTS,
    STATE,
    UNITS,
    CHECKPOINTS,
    PAID_PLANS,
)
"""Folders that outputs are written into, and so the folders in which a killed process leaves
temporary files.
"""


def stage_log(stage: str) -> Path:
    """The file that holds a stage's wall time and its numbers for MLflow."""
    return STAGES / f"{stage}.json"
