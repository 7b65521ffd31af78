"""Names of commands and options in other programs, and their names here."""

from collections.abc import Iterable

from bench.grammar.near import nearest

COMMANDS = {
    "run": "fit", "train": "fit", "training": "fit", "start": "fit", "launch": "fit", "trainer": "fit", "eval": "fit",
    "grid": "sweep", "multirun": "sweep", "sensitivity": "sweep", "seeds": "sweep", "scan": "sweep",
    "search": "tune", "optimize": "tune", "optimise": "tune", "hpo": "tune", "hparams": "tune", "optuna": "tune",
    "benchmark": "suite", "study": "studies", "trials": "studies",
    "rank": "leaderboard", "ranking": "leaderboard", "board": "leaderboard", "boards": "leaderboard",
    "results": "leaderboard", "table": "leaderboard", "html": "report", "page": "report",
    "draw": "plot", "figure": "plot", "chart": "plot", "charts": "plot", "curves": "plot", "paper": "reproduce",
    "replicate": "reproduce", "query": "sql", "db": "sql", "copy": "merge", "import": "merge", "sync": "merge",
    "cmp": "diff", "init": "new", "create": "new", "template": "new", "test": "check",
    "lint": "check", "conformance": "check", "ls": "list", "runs": "list", "tasks": "list", "optimizers": "list",
    "info": "show", "describe": "show", "cat": "show", "download": "data", "dataset": "data", "datasets": "data",
    "fetch": "data", "env": "doctor", "status": "doctor", "version": "--version", "completions": "completion",
}  # fmt: skip
"""Commands of other programs, and ours."""

_MEANT = {
    "opt.lr": "lr learningrate stepsize eta baselr initlr",
    "opt.betas opt.momentum": "betas beta beta1 beta2 adambeta1 adambeta2",
    "opt.momentum opt.betas": "momentum mom mu",
    "opt.weight_decay": "wd weightdecay decay l2",
    "opt.eps": "eps epsilon adamepsilon",
    "opt.max_step": "maxstep stepcap cap",
    "trainer.max_epochs": "epochs epoch maxepochs numepochs nepochs numtrainepochs",
    "trainer.max_steps": "steps maxsteps numsteps nsteps iterations iters maxiters numiterations trainsteps",
    "trainer.max_seconds budget": "maxseconds maxtime timelimit timeout time walltime hours maxhours seconds minutes",
    "trainer.batch_size": "batch batchsize bs trainbatchsize minibatchsize perdevicetrainbatchsize",
    "trainer.micro_batch_size": "microbatch microbatchsize gradaccum accumulategradbatches gradientaccumulationsteps",
    "trainer.gradient_clip_val": "clip gradclip clipgrad clipgradnorm maxgradnorm gradientclip gradientclipval",
    "trainer.schedule": "schedule scheduler lrscheduler lrschedule lrschedulertype",
    "trainer.warmup": "warmup warmupsteps warmupratio",
    "trainer.average": "average averaging ema swa lawa polyakaveraging modelema weightaveraging useema",
    "trainer.average_decay": "emadecay averagedecay",
    "trainer.val_every": "valevery evalevery evalsteps valcheckinterval evalinterval",
    "trainer.checkpoint_seconds": "checkpointevery savesteps saveevery",
    "trainer.strategy": "strategy ddp fsdp distributed",
    "trainer.num_nodes": "nodes numnodes machines",
    "workers trainer.devices": "gpus gpu ngpus numgpus ngpu devices nprocpernode worldsize",
    "workers": "workers numworkers nworkers jobs j njobs processes procs nproc threads",
    "opt": "optimizer optimizers optim optimiser method algorithm algo",
    "task": "tasks dataset datasets problem benchmark model arch",
    "task.depth task.layers": "layers depth nlayers numlayers nlayer numhiddenlayers",
    "task.num_heads task.H task.heads": "heads nheads nhead numheads numattentionheads",
    "task.embed_dim task.width task.d": "dim dmodel hidden hiddensize embeddim width nembd",
    "task.dropout": "dropout",
    "out store": "out output outputs outputdir outdir outfile outputfile savedir saveto dest destination o",
    "store": "runs runsdir storedir logdir resultsdir results checkpointdir db",
    "data": "datadir datapath dataroot datafolder root",
    "seed seeds": "seed randomseed manualseed rngseed s",
    "seeds": "seeds nseeds numseeds repeats repeat replicates",
    "precision": "precision dtype amp fp16 bf16 half mixedprecision float64",
    "device": "device cuda cpu mps accelerator",
    "logger": "logger log wandb tensorboard mlflow trackio",
    "config": "config cfg conf configfile yaml settings params file",
    "tuned": "tuned best usetuned",
    "resume": "resume continue restart checkpoint ckpt ckptpath resumefrom resumefromcheckpoint",
    "rerun": "rerun force overwrite retrain again fresh",
    "dry_run": "dryrun dry simulate whatif plan n printconfig",
    "json": "json asjson jsonl machine",
    "format": "format fmt type",
    "trials budget": "trials ntrials numtrials maxtrials evals maxevals nevals",
    "sampler": "sampler search searcher strategy",
    "only": "only filter where select",
    "reference": "reference baseline ref",
    "name": "name studyname runname experiment",
    "limit": "limit timeout",
}
"""Our options, in order of preference, and their names in other programs (without dashes and underscores)."""

_GROUPS = {
    "optimizer": "opt",
    "optim": "opt",
    "optimiser": "opt",
    "model": "task",
    "dataset": "task",
    "data": "task",
    "train": "trainer",
    "training": "trainer",
}


_SHORT = 3
"""Up to so many letters, a name in another group is likelier than a misspelling. Ours."""


def meant(word: str, known: Iterable[str]) -> str | None:
    """The option, with its dashes, that a word means: a synonym, else the nearest.

    Args:
        word: as it was typed, with its dashes.
        known: options with their dashes.
    """
    names = {each.lstrip("-"): each for each in known}
    typed = word.lstrip("-\u2010\u2011\u2012\u2013\u2014\u2015\u2212").replace("-", "_")
    group, _, last = typed.rpartition(".")
    group = _GROUPS.get(group, group)
    if (full := f"{group}.{last}" if group else last) in names:
        return names[full]
    before, _, role = group.rpartition(".")
    roles = {each.split(".")[-2] for each in names if each.count(".") > 1}
    if before and (role := nearest(role, roles) or "") and (full_ := f"{before}.{role}.{last}") in names:
        return names[full_]  # --opt.vecter.lr
    key = last.replace("_", "").lower()
    for ours, theirs in _MEANT.items():
        if key in theirs.split():
            for name in ours.split():
                if name in names and (not group or name.startswith(f"{group}.")):
                    return names[name]
    if group and (same := next((names[n] for n in names if n == f"{group.split('.')[0]}.{last}"), None)):
        return same  # --opt.ngd.lr
    if not group and (same := next((names[n] for n in names if n.endswith(f".{last}")), None)):
        return same  # --flip
    if group and last in names:
        return names[last]  # --trainer.precision
    elsewhere = (names[n] for n in names if group and n.endswith(f".{last}"))  # --opt.max_steps
    near = nearest(full, names.values())
    return near if near and len(last) > _SHORT else next(elsewhere, near)
