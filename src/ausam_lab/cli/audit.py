"""``ausam audit``: what a run says about its labels."""

from __future__ import annotations

import argparse
from pathlib import Path

from ausam_lab.cli import settings, terminal, train
from ausam_lab.cli.flags import Command, Parser, add_trust, only
from ausam_lab.config import flag_of
from ausam_lab.experiments import audit
from ausam_lab.report.pages import audit as audit_page
from ausam_lab.report.table import to_text


def flags(made: Parser, _: bool) -> None:
    """Which run, what is written, and how it is trained with --data."""
    about = "folder of a finished run or of ausam compare. With --data, of a new run (default: runs/audit-DATA)"
    made.add_argument("folder", nargs="?", metavar="RUN", help=about)
    made.add_argument("--out", metavar="FILE", help="the page (default: RUN/audit.html)")
    export = "write the ranking to this CSV file: index, path, given, likely, loss, flagged"
    made.add_argument("--export", metavar="FILE", help=export)
    decisions = "the decisions.csv that the page exports: print the share of wrong labels that follows"
    made.add_argument("--decisions", metavar="FILE", help=decisions)
    made.add_argument("--apply", metavar="FILE", help="write the labels after --decisions, for ausam train --labels")
    add_trust(made)
    of_training = ("data", "label_noise", "model", "epochs", "batch_size", "lr", "seed", "device", "workers")
    own = {"data": "none, RUN is audited", "epochs": "15, more for few images", "batch_size": "64, 16 for few images"}
    only(made, "data_dir", *of_training, own=own)


def run(args: argparse.Namespace) -> int:
    """Train first with --data. Then print what the labels look like, and write the page."""
    given = settings.given(args)
    if "data" not in given and (idle := sorted(given.keys() - {"data_dir"})):
        raise ValueError(f"{flag_of(idle[0])} is for a new training. Give --data, too, or leave it out.")
    if args.folder is None and "data" not in given:
        raise ValueError("Nothing to audit. Give the folder of a run, or --data, e.g. --data folder:PATH.")
    if args.apply is not None and args.decisions is None:
        raise ValueError("--apply writes the labels after your decisions. Give --decisions decisions.csv, too.")
    folder = Path(args.folder or audit.folder_for(given["data"]))
    if "data" in given:
        how = {"name": "sgd", "out": folder, "resume": folder.exists()}
        if code := train.run(argparse.Namespace(**audit.settings_to_train(given), **how)):
            return code
    here = {name: value for name, value in given.items() if name == "data_dir"}
    if (folder / "runs").is_dir():
        return _rows(folder, args, here)
    out = folder / "audit.html" if args.out is None else Path(args.out)
    export = None if args.export is None else Path(args.export)
    audited = audit.audit_run(folder, out, export, args.command, trust=args.trust, typed=given.get("data", ""), **here)
    if args.decisions is None:
        written, said = [out, export], audit_page.text(audited)
    else:
        labels = None if args.apply is None else Path(args.apply)
        written, said = [out, export, labels], audit.review(audited, folder, Path(args.decisions), labels)
    terminal.write("\n".join([said, "", *(str(path) for path in written if path is not None), ""]))
    return 0


def _rows(folder: Path, args: argparse.Namespace, here: dict[str, str]) -> int:
    """The audits of a comparison, one for each row."""
    for name in ("out", "export", "decisions"):
        if getattr(args, name) is not None:
            raise ValueError(
                f"--{name} is about one run, but {folder} is a comparison. Give a folder inside its runs/."
            )
    audits = audit.audit_rows(folder, args.command, trust=args.trust, **here)
    table = audit_page.rows_table([(name, audited) for name, _, audited in audits])
    terminal.write("\n".join([to_text(table), "", *(str(page) for _, page, _ in audits), ""]))
    return 0


COMMAND = Command(
    run,
    flags,
    "[RUN]",
    (
        "ausam audit --data folder:PATH   (images in PATH/CLASS/)",
        "ausam audit runs/train --decisions decisions.csv --apply labels.csv",
    ),
    "Rank the labels of a finished run by how wrong they look, and write audit.html, a page to review them. With "
    "--data, a small network is trained first. Then give the decisions of the page to --decisions and --apply.",
)
