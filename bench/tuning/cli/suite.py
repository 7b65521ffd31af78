"""`bench suite`."""

import json
import shlex
import sys
from contextlib import redirect_stdout, suppress

from bench.errors import UserError
from bench.grammar.commands import parse
from bench.tuning.cli.shared import note, open_studies, without_storage


def main(words: list[str]) -> int:
    """`bench suite` with these words: 0 done, 1 an optimizer has no winner, 130 stopped.

    Raises:
        UserError: the request cannot be carried out.
    """
    command = shlex.join(["bench", "suite", *without_storage(words)])
    args = parse("suite", words)
    from bench.execute.slots import slots
    from bench.papers.reproduce import make_output
    from bench.plugins import naming
    from bench.tuning import suite, tuned
    from bench.tuning.studies import NoDatabase
    from bench.tuning.study_result import missing_runs, study_result
    from bench.tuning.summary import as_json
    from bench.tuning.workers import Workers

    places = {"data": args.data, "store": args.store}
    asked = suite.load(args.file)
    try:
        specs = asked.specs(places)
    except UserError as error:
        raise UserError(f"{args.file}: {error}") from None
    cut = min((slots(args.workers, spec.typical(places)) for spec in specs), key=len)
    if args.plan:
        studies = None
        with suppress(NoDatabase):
            studies = open_studies(args, read_only=True)
        with redirect_stdout(sys.stderr):
            steps = suite.plan(asked, studies, places, suite.measured(places, cut[0].threads))
        if args.json:
            print(json.dumps([vars(step) | {"spec": step.spec.model_dump(mode="json")} for step in steps]))
        else:
            print("\n".join([asked.title, *suite.plan_lines(steps, len(cut))]))
        return 0
    make_output(args.out)  # before hours of training
    studies = open_studies(args)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with Workers(studies, cut, places, args.engine, naming(*(spec.names for spec in specs))) as workers:
        done = suite.carry_out(asked, studies, places, workers, say)
    if done is None:
        say("bench: stopped; nothing is lost, and the same command goes on")
        return 130
    found = [study_result(study) for study in done]
    for each in found:
        tuned.remember(each, args.store)
        note(missing_runs(each, args.store))
        note(tuned.replaced(args.out, each) if each.best is not None else None)
    paths = suite.write(args.out, found, command)
    if args.json:
        print(json.dumps({"out": str(args.out), "studies": [as_json(each) for each in found]}))
    else:
        print("\n".join([asked.title, "", *suite.result_lines(found)]))
        print(f"written to {args.out}: {len(paths)} files, such as {paths[-4] if paths else 'none'}")
    return 0 if all(each.best is not None for each in found) else 1
