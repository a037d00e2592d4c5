"""``primorl run``: the stages whose inputs changed."""

import sys


def run() -> None:
    """Check, say what will be charged, run the stages whose inputs changed, and show the results.

    The stages are run by `dvc repro`. Where nothing changed, nothing is run or charged.

    Examples:
      primorl run                             the run that params.yaml describes
      primorl run && primorl release bundle   and the bundle that may leave
    """
    from primorl.base.dvc import Status, show_dvc
    from primorl.base.paths import SUMMARY
    from primorl.commands.check import check
    from primorl.commands.results import summary

    # DVC deletes a stage's outputs before it finds a mistake in params.yaml, so that is checked
    # first. DVC takes a second to start meanwhile.
    with Status() as status:
        check()
        changed = status.changed_stages()
    if not changed and SUMMARY.exists():
        print("nothing changed since the last run: nothing is run or charged", file=sys.stderr)
    else:
        from primorl.config.params import load
        from primorl.work.bill import MAKE_DATA, preview

        show_dvc("repro", "--quiet", "plan")
        print(preview(load(), changed - {*MAKE_DATA, "plan"}), flush=True)
        show_dvc("repro")
    summary(links=True)
