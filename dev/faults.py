"""Injects faults into training, ./tokenize and ./generate, and checks what is left. Run it through dev/faults.sh,
which builds what it needs.

Each scenario runs once undisturbed, with tests/faults/shim.c counting its calls on files. Then it runs once per call and kind of
fault. Afterwards an oracle checks what the disturbed run said and left, and what --resume (or the same command again) makes of it:
  exit       the exit code is in the contract, with a sentence on stderr, within the time limit; EINTR and short transfers change nothing
  lost       an announced checkpoint is gone or damaged
  hash       exit 0, or --resume afterwards, with other results than the undisturbed run's
  hole       log.jsonl lacks a step, or has one twice, or has a line that is not JSON, and no "gap" record says so
"""
import argparse, collections, concurrent.futures, json, os, pathlib, random, re, shutil, signal, subprocess, sys, tempfile, threading, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHIM = ROOT / "build/tests/faults.so"
CODES = (0, 2, 3, 4, 5, 6, 7, 75)
TRAIN = [ROOT / "train_causal"] + ("--device cpu --model qwen-tiny --seq-len 16 --batch-size 2 --checkpoint-every 2 --val-every 2 "
         "--val-batches 1 --sample-every 0 --plot 0 --threads 1 --watchdog-seconds 5 --out out "
         "--train-data data/x_train_*.bin --val-data data/x_val_*.bin").split()
TOKENIZE = [ROOT / "tokenize", "--name", "x", "--threads", "1", "--shard-tokens", "3000", "--out", "data", "text.jsonl"]
GENERATE = [ROOT / "build/generate_causal"] + ("--device cpu --threads 1 --temperature 0 --tokens 4 --print-ids --ignore-eos "
            "--checkpoint out/step_00000004 --prompts prompts.jsonl --out texts.jsonl").split()
MPI = ["mpirun", "--oversubscribe", "-np", "2"]

# Faults that each call may meet. A kill before a reading call leaves what a kill before the next writing call leaves.
INTERRUPTED = {"open", "openat", "creat", "mkstemp", "fopen", "opendir", "read", "pread", "readv", "write", "pwrite", "writev",
               "fsync", "fdatasync", "ftruncate", "flock", "close", "statvfs"}
TRANSFERS = {"read", "pread", "readv", "write", "pwrite", "writev"}
NEED_SPACE = {"open", "openat", "creat", "mkstemp", "fopen", "write", "pwrite", "writev", "fsync", "fdatasync", "ftruncate", "mkdir",
              "rename", "renameat2", "link", "symlink"}


def kinds_of(calls, name):
    kinds = ["kill"] if calls == "writing" else []
    kinds += ["EIO"] + (["EINTR"] if name in INTERRUPTED else []) + (["short", "zero"] if name in TRANSFERS else [])
    if calls == "writing":
        return kinds + (["ENOSPC"] if name in NEED_SPACE else []) + (["stays-full", "kill-torn"] if name in TRANSFERS else [])
    return kinds + (["EMFILE", "ESTALE"] if name in {"open", "openat", "fopen", "opendir"} else [])


def environment(**faults):
    found = {k: v for k, v in os.environ.items() if not k.startswith("FAULT_")}
    return found | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_WAIT_POLICY": "passive",
                    "LC_ALL": "C.UTF-8", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"} | {k: str(v) for k, v in faults.items()}


Result = collections.namedtuple("Result", "code out err")


def run(folder, command, limit=30, **faults):
    if faults:   # the shim is in the program itself, and not in mpirun
        program = command.index("-np") + 2 if "-np" in command else 0
        command = command[:program] + ["env", f"LD_PRELOAD={SHIM}"] + command[program:]
    process = subprocess.Popen([str(word) for word in command], cwd=folder, env=environment(**faults), text=True,
                               errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True)
    try:
        out, err = process.communicate(timeout=limit)
        return Result(process.returncode, out, err)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)   # the session that was started above, and nothing else
        out, err = process.communicate()
        return Result("time limit", out, err)


def weights_hash(result):
    found = re.findall(r"weights hash ([0-9a-f]{16})", result.out)
    return found[-1] if found else None


def hash_in_copy(folder, command):
    """The weights at which the command ends in a copy of the folder."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        copy = shutil.copytree(folder, pathlib.Path(name, "copy"), symlinks=True)
        return weights_hash(run(copy, command))


def log_holes(folder, steps):
    """What is wrong with the log, "" if nothing is, or if it says itself what it lacks."""
    path, seen, gap = folder / "out/log.jsonl", collections.Counter(), False
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            return f"a line that is not JSON: {line[:60]!r}"
        gap = gap or record.get("event") == "gap"
        if "loss" in record and "event" not in record:
            seen[record["step"]] += 1
    twice = [s for s, n in seen.items() if n > 1]
    lacking = [s for s in range(1, steps + 1) if s not in seen]
    return f"steps twice: {twice}" if twice else f"steps lacking: {lacking}" if lacking and not gap else ""


class Training:
    """A training command; `before` are commands that have made the folder. `other` = the command that goes on with the run before."""
    def __init__(self, steps, ranks=1, before=(), resume=False, other=None):
        launch = MPI if ranks == 2 else []
        whole = lambda words: launch + TRAIN + (["--zero-stage", "1"] if ranks == 2 else []) + words.split()
        self.steps, self.ranks = steps, ranks
        self.before = [TOKENIZE] + [whole(words) for words in before]
        self.command = whole(f"--steps {steps}" + (" --resume" if resume else ""))
        self.again = whole(f"--steps {steps} --resume")
        self.other = other and whole(other)

    def learn(self, folder):
        self.others_hash = self.other and hash_in_copy(folder, self.other)
        self.hash = weights_hash(run(folder, self.command))
        assert self.hash and not log_holes(folder, self.steps), "the undisturbed run is not complete"

    def check(self, folder, result):
        announced = [int(s) for s in re.findall(r"^checkpoint \S*step_(\d+)", result.out, re.M)]
        if result.code == 0:
            if weights_hash(result) != self.hash:
                return "hash", f"exit 0 with weights {weights_hash(result)}"
            hole = log_holes(folder, self.steps)
            if hole and "log.jsonl" not in result.err:
                return "hole", f"exit 0: {hole}"
        if self.other and not announced and hash_in_copy(folder, self.other) == self.others_hash:
            return None
        resumed = run(folder, self.again)
        first = re.search(r"^step +(\d+)/", resumed.out, re.M)   # none if all steps were done
        if resumed.code != 0:
            return "lost" if announced else "hash", f"--resume ends with {resumed.code}: {resumed.err.strip()[-200:]}"
        if announced and first and int(first[1]) <= announced[-1]:
            return "lost", f"announced step {announced[-1]}, resumed at step {first[1]}: {resumed.err.strip()[-200:]}"
        if weights_hash(resumed) != self.hash:
            return "hash", f"--resume ends at weights {weights_hash(resumed)}"
        hole = log_holes(folder, self.steps)
        return ("hole", f"after --resume: {hole}") if hole else None


class Files:
    """A command whose results are files: the same command afterwards must make them, and so must the command itself if it ends with 0."""
    ranks = 1
    def __init__(self, command, results, before=(), killed_at=0):
        self.command, self.results, self.before, self.killed_at = command, results, before, killed_at

    def made(self, folder):
        files = {str(f.relative_to(folder)): f for f in sorted(folder.rglob("*")) if f.is_file() and f.name != "lock"}
        return {name: f.read_bytes() for name, f in files.items() if re.match(self.results, name)}

    def learn(self, folder):
        if self.killed_at:   # the folder of a run that was killed, which the scenario goes on with
            run(folder, self.command, FAULT_FOLDER=folder, FAULT_KIND="kill", FAULT_AT=self.killed_at)
        self.template = folder.with_name(folder.name + "_killed")
        shutil.copytree(folder, self.template)
        assert run(folder, self.command).code == 0
        self.expected = self.made(folder)

    def check(self, folder, result):
        if result.code == 0 and self.made(folder) != self.expected:
            return "hash", "exit 0 with other files: " + str([n for n in self.expected if self.made(folder).get(n) != self.expected[n]])
        again = run(folder, self.command)
        if again.code != 0 or self.made(folder) != self.expected:
            return "hash", f"the same command afterwards: {again.code}, {again.err.strip()[-200:]}"
        return None


SCENARIOS = {
    "run": Training(4),
    "resume": Training(6, before=["--steps 4"], resume=True),
    "fresh": Training(4, before=["--steps 6 --seed 2"], other="--steps 8 --seed 2 --resume"),
    "run2": Training(4, ranks=2),
    "resume2": Training(6, ranks=2, before=["--steps 4"], resume=True),
    "fresh2": Training(4, ranks=2, before=["--steps 6 --seed 2"], other="--steps 8 --seed 2 --resume"),
    "tokenize": Files(TOKENIZE, "data/"),
    "tokenize_resumed": Files(TOKENIZE, "data/", killed_at=20),
    "generate": Files(GENERATE, "texts", before=[TOKENIZE, TRAIN + ["--steps", "4"]]),
}


def prepare(folder, before):
    folder.mkdir(parents=True)
    lines = (ROOT / "data/bundled/sotu.jsonl").read_text().splitlines()[:12]
    texts = [json.dumps({"text": json.loads(line)["text"][:900]}) for line in lines]
    (folder / "text.jsonl").write_text("\n".join(texts) + "\n")
    (folder / "prompts.jsonl").write_text("".join('{"prompt_ids": [%d, 2, 3]}\n' % n for n in range(3)))
    for command in before:
        result = run(folder, command)
        assert result.code == 0, (command, result)


def judge(scenario, kind, fits, folder, result):
    """(class, finding or None): what a case has come to. `fits`: whether the disturbed call can meet such a fault."""
    killed = result.code in (-9, 137) or (scenario.ranks == 2 and kind.startswith("kill"))
    name = "killed" if kind.startswith("kill") and killed else "clean" if result.code == 0 else f"code {result.code}"
    if result.code not in CODES and name != "killed":
        return name, ("exit", f"ends with {result.code}: {result.err.strip()[:300]}")
    if name.startswith("code") and " error: " not in result.err:
        return name, ("exit", "no sentence on stderr")
    if kind in ("EINTR", "short") and fits and name != "clean":
        return name, ("exit", f"{kind} ends it: {result.err.strip()[-300:]}")
    return name, scenario.check(folder, result)


def on_rank(scenario, rank):
    return {"FAULT_RANK": rank} if scenario.ranks == 2 else {}


def enumerate_calls(name, work, every, pool, table):
    scenario, template = SCENARIOS[name], work / name
    prepare(template, scenario.before)
    plain = work / f"{name}_undisturbed"
    shutil.copytree(template, plain)
    scenario.learn(plain)
    template = getattr(scenario, "template", template)
    cases = []
    for rank in range(scenario.ranks):
        for calls in ("writing", "reading"):
            counted, log = work / f"{name}_{calls}_{rank}", work / f"{name}_{calls}_{rank}.log"
            shutil.copytree(template, counted)
            run(counted, scenario.command, FAULT_FOLDER=counted, FAULT_CALLS=calls, FAULT_LOG=log, **on_rank(scenario, rank))
            for line in log.read_text().splitlines() if log.exists() else []:
                n, call, path = line.split(" ", 2)
                cases += [(rank, calls, int(n), call, os.path.relpath(path, counted), kind) for kind in kinds_of(calls, call)]
    cases = sorted(random.sample(cases, max(min(2 if scenario.ranks == 2 else 5, len(cases)), len(cases) // every)))

    def one(case):
        rank, calls, n, call, path, kind = case
        folder = work / f"{name}_{threading.get_ident()}"
        log = folder.with_suffix(".log")
        shutil.copytree(template, folder, symlinks=True)
        result = run(folder, scenario.command, FAULT_FOLDER=folder, FAULT_CALLS=calls, FAULT_AT=n, FAULT_KIND=kind, FAULT_LOG=log,
                     **on_rank(scenario, rank))
        try:   # threads may have changed the order of calls
            met = [word[1] for word in map(str.split, log.read_text().splitlines()) if word[0] == str(n)] if log.exists() else []
            return case, judge(scenario, kind, kind in kinds_of(calls, *met or [call]), folder, result)
        finally:
            log.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)

    findings = 0
    for case, (outcome, finding) in pool.map(one, cases):
        row = table[name, case[5]]
        row["cases"] += 1
        row["code" if outcome.startswith("code") else outcome] += 1
        if finding:
            findings += 1
            row[finding[0]] += 1
            rank, calls, n, call, path, kind = case
            print(f"FAIL {name} rank {rank}: {kind} at {calls} call {n}, {call} {path}: {outcome}; {finding[0]}: {finding[1]}", flush=True)
    print(f"{'FAIL' if findings else 'ok'} {name}: {len(cases)} cases, {findings} findings", flush=True)


def random_kills(work, kills):
    """SIGKILL at random moments for the process, one rank or mpirun, and --resume until the run ends; returns the number of failures."""
    failures, done = 0, 0
    words = "--steps 150 --seq-len 64 --checkpoint-every 5 --keep-checkpoints 2 --val-every 50 --watchdog-seconds 5".split()
    one, two = TRAIN + words, MPI + TRAIN + words + ["--zero-stage", "1"]
    expected = {}
    for target, command in (("process", one), ("rank", two), ("mpirun", two)):
        prepare(work / target, [TOKENIZE])
        folder = work / target
        expected[target] = weights_hash(run(folder, command, limit=120))
        count, share = 0, -(-kills // 3)
        while count < share:
            shutil.rmtree(folder / "out")
            while True:
                process = subprocess.Popen([str(w) for w in command + ["--resume"]], cwd=folder, env=environment(), text=True,
                                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
                time.sleep(random.uniform(0.1, 1.0 if target == "process" else 2.0))
                victims = children(process.pid) if target == "rank" else [process.pid]
                over = process.poll() is not None or not victims or count >= share
                if not over:
                    os.kill(random.choice(victims), signal.SIGKILL)
                    count += 1
                try:
                    out = process.communicate(timeout=120)[0]
                except subprocess.TimeoutExpired:   # Open MPI 4.1's mpirun may hang by itself when a rank is killed in MPI_Init
                    alone = target != "process" and not children(process.pid)
                    os.killpg(process.pid, signal.SIGKILL)
                    out = process.communicate()[0] + ("mpirun hung, with no rank left" if alone else "TIME LIMIT")
                    if alone: print(f"note kills of {target}: mpirun hung, with no rank left", flush=True)
                if re.search(r"warning: \S*step_|TIME LIMIT", out):
                    failures += 1
                    print(f"FAIL kills of {target}: {out.strip()[-300:]}", flush=True)
                while lock_is_held(folder / "out/lock"):   # ranks outlive mpirun by a moment
                    time.sleep(0.05)
                if over and "another run is writing there" not in out:   # ranks of a killed mpirun, just before they end
                    break
            if f"weights hash {expected[target]}" not in out or log_holes(folder, 150):
                failures += 1
                print(f"FAIL kills of {target}: not {expected[target]}: {log_holes(folder, 150)} {out.strip()[-300:]}", flush=True)
        done += count
        print(f"{count} kills of {target}, weights {expected[target]}", flush=True)
    print(f"{'FAIL' if failures else 'ok'} random kills: {done} kills, {failures} failures")
    return failures


def children(process):
    """Those of its children that have not ended."""
    path = pathlib.Path(f"/proc/{process}/task/{process}/children")
    found = [int(child) for child in path.read_text().split()] if path.exists() else []
    return [child for child in found if not is_zombie(child)]


def is_zombie(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def lock_is_held(path):
    return path.exists() and subprocess.run(["flock", "--nonblock", path, "true"]).returncode != 0


def slow_save(work, seconds):
    """Saves in which single calls of fsync() take longer than the watchdog's limit: two ranks must end at the undisturbed weights."""
    prepare(work / "slow", [TOKENIZE])
    limit = max(1, min(5, seconds // 11))   # an fsync takes a tenth of `seconds`
    command = MPI + TRAIN + f"--zero-stage 1 --steps 2 --watchdog-seconds {limit}".split()
    expected = weights_hash(run(work / "slow", command))
    shutil.rmtree(work / "slow/out")
    began = time.time()
    result = run(work / "slow", command, limit=seconds * 20 + 60, FAULT_FOLDER=work / "slow", FAULT_SLOW_FSYNC=seconds * 100)
    good = result.code == 0 and weights_hash(result) == expected
    print(f"{'ok' if good else 'FAIL'} a save slowed to {time.time() - began:.0f} s with --watchdog-seconds {limit} and two ranks: "
          f"{'weights ' + expected if good else f'{result.code}: {result.err.strip()[-300:]}'}", flush=True)
    return not good


def print_table(table):
    columns = ["cases", "clean", "code", "killed", "exit", "lost", "hash", "hole"]
    print("\n| scenario | fault | cases | clean | refused with a code | killed | wrong exits | lost checkpoints | wrong hashes "
          "| silent holes |")
    print("| --- " * 10 + "|")
    total = collections.Counter()
    for (name, kind), row in sorted(table.items(), key=lambda item: (list(SCENARIOS).index(item[0][0]), item[0][1])):
        print(f"| {name} | {kind} | " + " | ".join(str(row[c]) for c in columns) + " |")
        total.update(row)
    print("| all | | " + " | ".join(str(total[c]) for c in columns) + " |")
    return total["exit"] + total["lost"] + total["hash"] + total["hole"]


def main():
    parser = argparse.ArgumentParser(prog="dev/faults.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), help="scenarios to run")
    parser.add_argument("--every", type=int, default=1, help="run one of N cases of each scenario, and at least two to five")
    parser.add_argument("--quick", action="store_const", const=1000, dest="every", help="about one minute: --every 1000")
    parser.add_argument("--kills", type=int, default=0, help="instead: so many kills at random moments")
    parser.add_argument("--slow-save", type=int, default=0, metavar="SECONDS", help="instead: a save that takes about so long")
    parser.add_argument("--jobs", type=int, default=2, help="cases at once")
    parser.add_argument("--seed", type=int, default=1, help="seed of what is random")
    options = parser.parse_args()
    for program in (TRAIN[0], TOKENIZE[0], GENERATE[0], SHIM):
        if not program.exists():
            parser.error(f"there is no {program}; build it with make")
    random.seed(options.seed)
    work = pathlib.Path(tempfile.mkdtemp(prefix="faults_")).resolve()
    try:
        if options.kills:
            return random_kills(work, options.kills) > 0
        if options.slow_save:
            return slow_save(work, options.slow_save) > 0
        table = collections.defaultdict(collections.Counter)
        names = [n for n in options.only if SCENARIOS[n].ranks == 1 or shutil.which("mpirun")]
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for name in names:
                enumerate_calls(name, work, options.every, pool, table)
        return print_table(table) > 0
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
