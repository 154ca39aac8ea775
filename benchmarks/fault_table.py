"""Runs every case of fault_cases.py in a process of its own and writes what it prints to the table in docs/faults.md.

python benchmarks/fault_table.py            write the table
python benchmarks/fault_table.py F05 F06    print these alone
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "faults.md"
LIMIT_S = 60
TOO_LONG = 330

# What is injected, and what others do with it, with the default settings of gymnasium 1.4 (AsyncVectorEnv),
# stable-baselines3 2.9 (SubprocVecEnv), TorchRL 0.14 (ParallelEnv), EnvPool 1.2.5, DI-engine 0.5.3
# (SyncSubprocessEnvManager), PufferLib 3.0 (Multiprocessing) and Ray 2.60 (actors).
FAULTS: dict[str, tuple[str, str]] = {
    "F01": (
        "`step` raises",
        "gymnasium names it; SB3 `EOFError ''`, then `close` hangs; TorchRL \"worker 1 dead\"; Puffer spins for ever",
    ),
    "F02": (
        "the exception's class needs two arguments",
        "gymnasium: a `TypeError` of its own, `close` hangs; DI-engine `EOFError`",
    ),
    "F03": ("the exception cannot be pickled", "gymnasium and SB3 (fork) hang; DI-engine `EOFError`"),
    "F04": ("`sys.exit()` in an env", "gymnasium `EOFError`, `close` hangs; DI-engine exits the trainer"),
    "F05": (
        "a worker is killed, crashes, or runs out of memory",
        "gymnasium and SB3 `EOFError ''`, then `close` hangs; Puffer spins; EnvPool takes the trainer along",
    ),
    "F06": ("`step` never returns", "all hang by default; TorchRL after 10,000 s without naming the worker"),
    "F07": ("going on after a timeout", "gymnasium pairs observations with older rewards, silently, for ever"),
    "F08": ("a constructor raises", "gymnasium `ConnectionReset`; SB3 `BrokenPipe` or hang; TorchRL `EOFError`"),
    "F09": ("a constructor kills its process", "`BrokenPipe` or `EOFError`; SB3 (fork) and Puffer hang"),
    "F10": ("`reset` raises", "gymnasium names it; SB3 `EOFError`; Puffer hangs"),
    "F11": ("too few actions", "gymnasium and SB3 raise, then give rows that are out of step; EnvPool aborts"),
    "F12": ("too many actions", "gymnasium raises, then a torn batch; EnvPool ignores the rest"),
    "F13": ("an action out of range", "taken by all; Puffer checks the first call"),
    "F14": ("an env id twice, or out of range", "EnvPool steps it twice, or segfaults"),
    "F15": ("an observation of another shape", "named without its env by most; Puffer hangs"),
    "F16": ("a scalar where an array belongs", "gymnasium and Puffer fill the array with it, silently"),
    "F17": ("1.5e300 into float32", "infinity, silently, in all but SB3, whose batch turns float64"),
    "F18": ("NaN in an observation", "passed on, silently, by all"),
    "F19": ("reward `None`", "NaN (gymnasium, Puffer), 0.0 (TorchRL), `None` (DI-engine), silently"),
    "F20": ('reward `"1.0"`', "parsed, or a batch of strings (SB3), silently"),
    "F21": ("a step of the old API", "gymnasium names it; SB3 as F01; Puffer hangs"),
    "F22": ("an info that cannot be pickled", "gymnasium loses the worker; SB3 hangs in `close`; Puffer hangs"),
    "F23": ("holding a batch over the next steps", "gymnasium `copy=False` and Puffer overwrite it"),
    "F24": ("global generators in forked workers", "gymnasium: all workers draw the same"),
    "F25": ("Ctrl-C (SIGINT to the group)", "23 to 87 lines of tracebacks"),
    "F26": ("SIGINT to the trainer alone", "TorchRL and Puffer still run after 10 s"),
    "F27": ("SIGTERM to the trainer", "SB3 (fork) and Puffer leave three orphans"),
    "F28": ("SIGKILL of the trainer", "SB3 (fork) and Puffer leave three orphans"),
    "F29": ("`close` after a death, twice; then `step`", "gymnasium hangs; SB3, TorchRL and DI-engine raise"),
    "F30": ("a pool that nobody closes", "gymnasium closes it; Puffer has no finaliser"),
    "F31": ("not enough memory for the rows", "gymnasium moves to a file in /tmp, silently"),
    "F32": ("not enough file descriptors", "gymnasium `OSError 24` in a constructor"),
    "F33": ("`fork` while threads run", "gymnasium, DI-engine and Puffer fork, and may hang"),
    "F34": ("a factory that cannot be sent", "`TypeError: cannot pickle '_thread.lock'`"),
    "F35": ("two threads use one pool", "gymnasium `UnpicklingError` and `EOFError`"),
    "F36": ("more workers than cores", "silent, but for Puffer, which refuses"),
}

BEGIN, END = "<!-- faults:start -->\n", "<!-- faults:end -->"
HEAD = "| | fault | shoal | others |\n|---|---|---|---|\n"


def see(case: str) -> str:
    """What a case prints; if it fails or hangs, that ends the program, so that it never becomes a row of the page."""
    start = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / "fault_cases.py"), case], capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{case} hangs: nothing after {LIMIT_S} s") from None
    took = time.monotonic() - start
    if done.returncode:
        raise SystemExit(f"{case} failed with exit code {done.returncode}:\n{done.stderr}")
    print(f"{case} {took:.1f} s", file=sys.stderr)
    return done.stdout


def brief(output: str) -> str:
    """The first line, and for a hang the name of the function it hangs in."""
    text = output.splitlines()[0] if output else "nothing"
    if hangs := re.search(r"File \".*?([^/]+\.py)\", line \d+ in (_hang)", output):
        text += f" (stack below it: ... {hangs[1]} in {hangs[2]} ...)"
    if len(text) > TOO_LONG:
        text = text[:TOO_LONG] + " ..."
    return "`" + text.replace("|", "\\|").replace("`", "'") + "`"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="case", help="F01 to F36; the table of all, if none is given")
    if cases := parser.parse_args().cases:
        if unknown := [case for case in cases if case not in FAULTS]:
            parser.error(f"there is no case {', '.join(unknown)}; there are {', '.join(FAULTS)}")
        for case in cases:
            print(see(case))
        return
    rows = [f"| {case} | {what} | {brief(see(case))} | {others} |" for case, (what, others) in FAULTS.items()]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + HEAD + "\n".join(rows) + "\n" + END + rest.partition(END)[2])
    print(f"wrote {PAGE}", file=sys.stderr)


if __name__ == "__main__":
    main()
