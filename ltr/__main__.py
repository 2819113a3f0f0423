"""The command line: ``python -m ltr`` or ``ltr``."""

import os
import sys

USAGE = """\
ltr: train, compare and understand text rankers.

usage: ltr COMMAND [options]      (or python -m ltr COMMAND [options])

commands
  fit        train a ranker               ltr fit --config experiments/cross_encoder/medquad.yaml
  validate   measure it on the dev split  ltr validate --config runs/EXPERIMENT/seed=0/config.yaml --ckpt_path best
  test       measure it on the test split, and write test.run, per_query.tsv, metrics.json
  predict    rank the test candidates, and write predict.run

Options of a command: ltr COMMAND --help; its whole configuration: ltr COMMAND --config FILE --print_config.
A run lies in runs/EXPERIMENT/seed=N/; 'fit --ckpt_path last' goes on with one that was interrupted.
LTR_DEBUG=1 shows the traceback of an error, LTR_CACHE sets the folder of derived data (now ~/.cache/ltr).
"""


def main(args: list[str] | None = None) -> int:
    """Run a command and return the exit code: 0, 2 for bad input (one line on stderr), 130 after Ctrl-C."""
    args = sys.argv[1:] if args is None else args
    if not args or args[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if args[0] == "--version":
        from ltr import __version__

        print(__version__)
        return 0
    try:
        from ltr.cli import run  # Lightning takes seconds to import: only where it is needed

        run(args)
    except (KeyboardInterrupt, SystemExit) as stop:
        # Lightning turns Ctrl-C into exit code 1.
        if isinstance(stop, KeyboardInterrupt) or isinstance(stop.__context__, KeyboardInterrupt):
            return 130
        raise
    except Exception as error:
        from ltr.cli import one_line

        message = one_line(error)
        if message is None or os.environ.get("LTR_DEBUG") == "1":
            raise
        rank = os.environ.get("LOCAL_RANK", "0")
        print("ltr:" if rank == "0" else f"ltr [rank {rank}]:", message, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
