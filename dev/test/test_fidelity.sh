#!/usr/bin/env bash
# Tests scripts/lab.py fidelity. With programs that only pretend to train: every value is in its row and column, nothing
# runs twice, and failures are reported. With the real one: small runs on the CPU, one of them stopped and resumed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. dev/test/fidelity_fixture.sh

# --- dry runs and errors
said=$(scripts/lab.py fidelity --dry-run --out "$folder/dry" 'a b*' v 65k 1558M 2>&1)
check "--dry-run succeeds" $? "$said"
has "--dry-run prints the runs of setting 65k" "$said" 'train_gpt2_fp8 --health-every 0 --val-every 0 --model gpt2 --seq-len 1024 --micro-batch 64 --batch-tokens 65536 --lr 6e-4 --schedule cosine --warmup 100 --lr-final 0\.1 --beta2 0\.95 --weight-decay 0\.1 --recipe coat --master split16 --train .a b\*. --val v --steps 1526 --seed 3 '
has "--dry-run prints the runs of setting 1558M" "$said" '--model gpt2-xl .*--micro-batch 16 --batch-tokens 131072 .*--recipe bf16 --master split16 .*--steps 240 --seed 1 '
has "--dry-run prints OLMo-1B with its length and eps" "$(SEEDS=1 scripts/lab.py fidelity --dry-run --out "$folder/dry" a v olmo-1b 2>&1)" '--model olmo-1b --seq-len 2048 --micro-batch 8 --batch-tokens 131072 --lr 2e-4 .*--warmup 160 --lr-final 0 .*--eps 1e-5 --recipe coat --master split16 .*--val-batches 128 '
[ "$(grep -c -- ' --seed ' <<<"$said")" -eq 12 ]
check "--dry-run prints every setting, recipe and seed" $? "$said"
[ ! -e "$folder/dry" ]
check "--dry-run writes nothing" $?
mkdir -p "$folder/begun/262k-to-350/coat/1"
said=$(SEEDS=1 TO=350 BIN="$folder/begun" scripts/lab.py fidelity --dry-run --out "$folder/begun" a v 2>&1)
check "--dry-run with TO succeeds" $? "$said"
has "--dry-run with TO prints the runs" "$said" 'train_gpt2_fp8 --health-every 0 --val-every 0 --model gpt2 .*--recipe coat .*--steps 400 .*--val-every 350 '
has "--dry-run with TO prints the runs' last step" "$said" '^# ended at step 350$'
[ "$(find "$folder/begun" -type f | wc -l)" -eq 0 ]
check "--dry-run runs nothing in a folder with a started run" $? "$(find "$folder/begun")"
said=$(RECIPES="bf16 coat,grads=fp32,head=fp8" SEEDS="1 1@64 2@16" scripts/lab.py fidelity --dry-run --out "$folder/dry" a v 2>&1)
has "the default setting is 262k, and RECIPES accepts flags" "$said" '--batch-tokens 262144 .*--lr 3e-4 .*--recipe coat --master split16 --grads=fp32 --head=fp8 '
has "SEED@MICRO_BATCH sets the micro-batch, with the same validation tokens" "$said" '--micro-batch 16 .*--seed 2 .*--val-batches 128 .*/262k/bf16/2@16 '
[ "$(wc -l <<<"$said")" -eq 4 ] && grep -q -- '--val-batches 32 .*/262k/bf16/1 ' <<<"$said"
check "SEED@MICRO_BATCH with the setting's micro-batch is the run of SEED" $? "$said"
said=$(RECIPES="bf16 careful:coat,group-size=32" SEEDS=1 scripts/lab.py fidelity --dry-run --out "$folder/dry" a v 2>&1)
has "NAME:RECIPE names a recipe" "$said" '--recipe coat --master split16 --group-size=32 .*/262k/careful/1 '
at() { scripts/lab.py fidelity --out "$folder/refused" "$@"; }
refuses "TRAIN_GLOB without VAL_GLOB is refused" 'name TRAIN_GLOB and VAL_GLOB' at a
refuses "fidelity refuses an unknown flag" '.*--fast' at --fast
refuses "fidelity refuses an unknown setting" '66k: must be one of the settings 65k, 262k' at README.md README.md 66k
refuses "SEED@MICRO_BATCH that does not divide the setting's is refused" 'SEEDS: 1@5: .* divide 8' env SEEDS=1@5 scripts/lab.py fidelity --out "$folder/refused"
refuses "a seed that is not a number is refused" 'SEEDS: one: ' env SEEDS=one scripts/lab.py fidelity --out "$folder/refused"
refuses "a recipe that is not a valid folder name is refused" 'RECIPES: coat/x: ' env RECIPES=coat/x scripts/lab.py fidelity --out "$folder/refused"
refuses "a recipe name that is not a valid folder name is refused" 'RECIPES: a/b:coat: ' env RECIPES=a/b:coat scripts/lab.py fidelity --out "$folder/refused"
refuses "a recipe name with two meanings is refused" 'RECIPES: x:coat: two recipes have the name x' env RECIPES="bf16 x:coat-paper x:coat" scripts/lab.py fidelity --out "$folder/refused"
said=$(RECIPES=' ' SEEDS=' ' scripts/lab.py fidelity --dry-run --out "$folder/dry" 2>&1)
[ "$(grep -c -- --recipe <<<"$said")" -eq 6 ]
check "RECIPES and SEEDS that contain only spaces count as unset" $? "$said"
for limit in LIMIT EIGHTH_LIMIT; do
    refuses "$limit that is not a percentage is refused before anything is trained" "$limit: must be a percentage" env $limit=0,2 scripts/lab.py fidelity --dry-run --out "$folder/refused"
done
refuses "a recipe that the trainer refuses is refused" 'RECIPES: coatt: --recipe coatt: must be one of bf16' env RECIPES="bf16 coatt" scripts/lab.py fidelity --out "$folder/refused"
refuses "--dry-run refuses a flag that the trainer refuses" 'RECIPES: slow: --lrr: unknown flag' env RECIPES="bf16 slow:bf16,lrr=1" scripts/lab.py fidelity --dry-run --out "$folder/refused"
refuses "EVALUATE with a flag that the trainer refuses is refused" 'EVALUATE: coat,head=fp9: --head fp9: must be one of' env EVALUATE="bf16 coat,head=fp9" scripts/lab.py fidelity --out "$folder/refused"
refuses "the GPU's trainer checks the recipes if it is built" 'RECIPES: coatt: --recipe coatt: must' env BIN="$folder/pretend" PATH="$folder/gpus:$path" RECIPES="bf16 coatt" scripts/lab.py fidelity --out "$folder/refused" "$folder/train*" "$folder/val"
said=$(BIN="$folder/none" RECIPES="bf16 coatt" SEEDS=1 scripts/lab.py fidelity --dry-run --out "$folder/refused" a v 2>&1)
check "--dry-run works without a trainer" $? "$said"
refuses "STEPS below 8 is refused" 'STEPS: at least 8' env STEPS=7 scripts/lab.py fidelity --out "$folder/refused"
refuses "a pattern without files is refused" 'no file matches nothing' at 'nothing*' 'nothing*'
refuses "programs that are not built are refused" 'none/train_gpt2_fp8 is not built; run: make ' env BIN="$folder/none" scripts/lab.py fidelity --out "$folder/refused" README.md README.md
refuses "--page-only without results is refused" 'refused/fidelity.tsv: contains no results' at --page-only

# --- with programs that pretend to run on two GPUs
said=$(pretend "bf16 coat" "1 3" 262k)
check "a study on two GPUs succeeds" $? "$said"
page=$(cat "$folder/study/fidelity.md")
has "the page names the machine without its paths" "$page" '^20[0-9-]*, on Pretended GPU; version '
has "the page has the command that made it" "$page" "^    RECIPES='bf16 coat' SEEDS='1 3' STEPS=20 scripts/lab.py fidelity --out study 'train\*' val 262k\$"
has "the page has the setting's flags and data" "$page" '^`--model gpt2 --seq-len 1024 .*--steps 20`; data: train\*, 100000 bytes; validation: val, 100000 bytes\.$'
has "the page has the baseline's losses, also in eight windows" "$page" '^\| bf16 \| 2 \| 100\.0 \| 3\.0300 \|  \| 38\.500 \| 36\.000 \| 33\.500 \| 31\.000 \| 28\.500 \| 26\.000 \| 23\.500 \| 21\.000 \|$'
has "the page has the mean difference with standard error, also in eight windows" "$page" '^\| coat \| 2 \| 80\.0 \| 3\.0909 \| \+2\.00 ± 1\.00 % \|( \+1\.00 \|){7} \+3\.00 \|$'
has "the page tells whether each difference is within its limit" "$page" '^\| 262k \| coat \| 2 \| \+2\.00 ± 1\.00 % \| beyond \| \+3\.00 ± 0\.00 % \(8/8\) \| beyond \|$'
has "the page has the mean losses of runs without a pair" "$page" '^\| coat \| 2 \| 3\.0909 ± 0\.0861 \| \+2\.01 ± 2\.24 % \|$'
has "the page has a run without a pair" "$page" '^\| coat \| 3 \| 3\.1518 \| \+3\.00 % \|( \+1\.00 \|){7} \+3\.00 \| 12\.5 \|$'
! grep -qF "$folder" "$folder/study/fidelity.md"
check "no absolute path is on the page" $? "$page"
! grep -q '^- noise of' <<<"$page"
check "without seeds of another micro-batch, the page has no run-to-run noise" $? "$page"
[ "$(cut -d: -f2 "$folder/calls" | sort -u | wc -l)" -eq 4 ] && [ "$(grep -c . "$folder/calls")" -eq 4 ] && grep -q 'GPU 0: ' "$folder/calls" && grep -q 'GPU 1: ' "$folder/calls"
check "both GPUs train, and each run is trained once" $? "$(cat "$folder/calls")"
grep -q ': bf16 1@64' <<<"$(head -n 2 "$folder/calls")" && grep -q ': coat 1@64' <<<"$(head -n 2 "$folder/calls")"
check "the runs of a seed are trained at the same time" $? "$(cat "$folder/calls")"
[ -z "$(find "$folder/study" -name 'step-*' -o -name .copy)" ]
check "a finished study leaves no checkpoint" $? "$(find "$folder/study")"
mv "$folder/calls" "$folder/calls.before"
said=$(pretend "bf16 coat" "1 3")
[ $? -eq 0 ] && [ ! -e "$folder/calls" ] && [ "$(page_of "$folder/study")" = "$(sed -n '/^## /,$p' <<<"$page")" ]
check "the same command again runs nothing and writes the same page" $? "$said"
said=$(VERSION="by name" pretend "bf16 coat,head=fp8" "1 1@16")
check "a diverged run counts as a result, not as a failure" $? "$said"
[ "$(grep -c . "$folder/calls")" -eq 3 ]
check "a study with results trains only new runs" $? "$(cat "$folder/calls")"
page=$(cat "$folder/study/fidelity.md")
has "the page lists VERSION next to the earlier version" "$page" '^20[0-9-]*, on Pretended GPU; version tested, by name\.$'
has "the page has the windows of a diverged run up to its end" "$page" '^\| coat,head=fp8 \| 2, 2 diverged \| 80\.0 \| – \| – \|( \+1\.00 \|){4}( – \|){4}$'
has "the page has the baseline's run-to-run noise" "$page" '^- noise of \*\*bf16\*\* with 2 sizes of the micro-batch \(seeds 1, 1@16\): final losses 3\.0000 to 3\.0060, \*\*0\.20 %\*\* apart; largest difference of a window 0\.00 %$'
has "the page still lists recipes of earlier commands" "$page" '^\| 262k \| coat \| 2 \| \+2\.00 ± 1\.00 % \|'
has "the page judges a diverged recipe as beyond its limit" "$page" '^\| 262k \| coat,head=fp8 \| 0, 2 diverged \| – \| beyond \| \+1\.00 ± 0\.00 % \(1/8\) \| beyond \|$'
has "LIMIT and EIGHTH_LIMIT set the limits" "$(LIMIT=2.01 EIGHTH_LIMIT=2.5 scripts/lab.py fidelity --page-only --out "$folder/study" >/dev/null; grep '^| 262k' "$folder/study/fidelity.md")" \
    '^\| 262k \| coat \| 2 \| .* \| within \| \+3\.00 ± 0\.00 % \(8/8\) \| beyond \|$'

mv "$folder/calls" "$folder/calls.before"
said=$(pretend "bf16 coat,recompute=0" 3)
[ $? -eq 1 ] && grep -q '^failed: 262k, coat,recompute=0, seed 3, status 3: the GPU is lost' <<<"$said"
check "a failed run is reported, and the exit code is 1" $? "$said"
has "the page lists a failed run" "$(cat "$folder/study/fidelity.md")" '^- not finished: coat,recompute=0 3$'
said=$(steps=24 pretend "bf16 coat" 3)
[ $? -eq 1 ] && grep -q '^error: setting 262k: .* --steps 20; .* --steps 24; .*choose another --out' <<<"$said"
check "other flags for a setting with results are refused" $? "$said"
said=$(steps=24 pretend "bf16 coat" 3 524k)
check "another setting accepts other flags" $? "$said"
[ "$(grep -c '^## ' "$folder/study/fidelity.md")" -eq 2 ] && grep -q '^| coat | 1 | 3.1518 | +3.00 % |' "$folder/study/fidelity.md"
check "another setting gets a separate section; one pair has no standard error" $? "$(cat "$folder/study/fidelity.md")"
said=$(pretend "bf16 old:coat,grads=fp32" 3)
[ $? -eq 0 ] && grep -qxF -- '- old: `--recipe coat --grads=fp32`' "$folder/study/fidelity.md" && grep -q '^| 262k | old | 1 | +3.00 % |' "$folder/study/fidelity.md"
check "the page has a recipe's name and its flags" $? "$said" "$(cat "$folder/study/fidelity.md")"
said=$(pretend "bf16 old:coat" 3)
[ $? -eq 1 ] && grep -q "^error: recipe old: .*study.* 'coat,grads=fp32', .* 'coat'; choose another name$" <<<"$said"
check "a recipe name with other flags is refused" $? "$said"
exec 8>"$folder/study/.lock"
flock 8
said=$(pretend "bf16 coat" 1)
[ $? -eq 1 ] && grep -q '^error: .*study: another process uses this folder' <<<"$said"
check "a second process in the folder is refused" $? "$said"
said=$(python3 -B 2>&1 - "$folder" <<'PYTHON'
import errno, sys
sys.path.insert(0, "scripts")
from lab import work
def without_locks(*_):
    raise OSError(errno.ENOSYS, "Function not implemented")
work.fcntl.flock = without_locks
try:
    work.Work(sys.argv[1] + "/unlocked", False).begin()
except work.Failure as failure:
    print(failure)
PYTHON
)
[ "$said" = "$folder/unlocked: cannot be locked (Function not implemented); choose an --out on another file system" ]
check "on a file system without locks, the error names the reason" $? "$said"
said=$(scripts/lab.py fidelity --page-only --out "$folder/study" 2>&1)
check "--page-only works while another process uses the folder" $? "$said"
exec 8>&-

# --page-only reads only fidelity.tsv
mkdir "$folder/copy" && cp "$folder/study/fidelity.tsv" "$folder/copy"
said=$(BIN=$folder/none scripts/lab.py fidelity --page-only --out "$folder/copy" 2>&1)
check "--page-only needs neither programs nor data" $? "$said"
is "--page-only on a copy writes the same page" "$(page_of "$folder/copy")" "$(page_of "$folder/study" | grep -v '^- not finished')"
! grep -q '^- trained on another kind of GPU' "$folder/copy/fidelity.md"
check "the page does not mention GPU kinds if there is only one" $?
sed -i '/^262k\tcoat\t3\t/s/Pretended GPU/Other GPU/' "$folder/copy/fidelity.tsv"
scripts/lab.py fidelity --page-only --out "$folder/copy" >/dev/null 2>&1
has "the page lists pairs on different kinds of GPU" "$(cat "$folder/copy/fidelity.md")" "^- trained on another kind of GPU than bf16: coat 3\$"
sed -i '/^# setting/s/--model gpt2 /--model gpt2-xl /' "$folder/copy/fidelity.tsv"
scripts/lab.py fidelity --page-only --out "$folder/copy" >/dev/null 2>&1 && ! grep -q '^124M' "$folder/copy/fidelity.md"
check "the page does not describe a setting whose model was replaced" $?

# --- runs that continue from one checkpoint of the baseline, on two GPUs
branch() { # FOLDER RECIPES SEEDS: runs a study from step 12 of 28
    PATH="$folder/gpus:$path" BIN=$folder/pretend CALLS=$folder/calls RECIPES=$2 SEEDS=$3 STEPS=28 FROM=12 \
        exec scripts/lab.py fidelity --out "$1" "$folder/train*" "$folder/val" 262k 2>&1
}
calls() { sed 's/^GPU [01]: //' "$folder/calls" | sort; }
rm "$folder/calls"
said=$(EVALUATE="bf16 coat" branch "$folder/branch" "bf16 coat" "1 1@16 3")
check "a study with FROM succeeds" $? "$said"
[ "$(head -n 2 "$folder/calls" | cut -d' ' -f3- | sort)" = "bf16 1@64 from scratch 0, log 0, branch point
bf16 3@64 from scratch 0, log 0, branch point" ]
check "FROM trains one branch point per seed, at the same time" $? "$(cat "$folder/calls")"
[ "$(calls | grep -v 'branch point')" = "bf16 1@16 from bf16 1 12, log 12
bf16 1@64 from bf16 1 12, log 12
bf16 3@64 from bf16 3 12, log 12
coat 1@16 from bf16 1 12, log 12
coat 1@64 from bf16 1 12, log 12
coat 3@64 from bf16 3 12, log 12" ]
check "every run continues from its seed's branch point and log" $? "$(cat "$folder/calls")"
[ -z "$(find "$folder/branch" -name 'step-*' -o -name .copy)" ]
check "a finished study with FROM leaves no checkpoint" $? "$(find "$folder/branch")"
page=$(cat "$folder/branch/fidelity.md")
has "the page's section describes FROM" "$page" '^124M, 262,144 .* All runs of a seed continue from one checkpoint: step 12 of bf16\. .* cover steps 13 to 28\.$'
has "with FROM, the windows cover the steps after the branch point" "$page" '^\| coat \| 3 \| 80\.0 \| 3\.0726 \| .* \| \+1\.00 \| \+1\.00 \| \+1\.98 \|( \+3\.00 \|){5} \+0\.50 ± 0\.00 % \| \+1\.00 ± 0\.00 % \|$'
has "EVALUATE: the page has the baseline in another recipe" "$page" '^\| bf16 \| 3 \| 100\.0 \| 3\.0220 \|  \| 26\.500 \|.* \| 3\.0000 \| 3\.0060 \|$'
has "EVALUATE: the page has another run in both recipes" "$page" '^\| coat \| 3 \| 3\.1518 \| \+3\.00 % \|.* 9\.5 \| 3\.0150 \| 3\.0361 \|$'
has "the page has the command with FROM and EVALUATE" "$page" "^    RECIPES='bf16 coat' SEEDS='1 1@16 3' FROM=12 EVALUATE='bf16 coat' STEPS=28 scripts/lab.py fidelity"
mkdir "$folder/old"
sed '/^#/!s/\t[^\t]*\t[^\t]*$//' "$folder/branch/fidelity.tsv" >"$folder/old/fidelity.tsv" # removes the last two columns
said=$(scripts/lab.py fidelity --page-only --out "$folder/old" 2>&1)
has "--page-only works on results without EVALUATE" "$(cat "$folder/old/fidelity.md")" '^\| coat \| 3 \| 80\.0 \| 3\.0726 \| .* \| \+1\.00 \| \+1\.00 \| \+1\.98 \|( \+3\.00 \|){5}$'

rm "$folder/calls"
said=$(EVALUATE="bf16 coat" branch "$folder/branch" "bf16 coat" "1 1@16 3")
[ $? -eq 0 ] && [ ! -e "$folder/calls" ]
check "a finished study with FROM runs nothing again" $? "$said" "$(cat "$folder/calls" 2>/dev/null)"
said=$(KEEP_BRANCH_POINTS=1 branch "$folder/branch" "bf16 coat fp8-linear" 3)
[ $? -eq 0 ] && [ "$(calls)" = "bf16 3@64 from scratch 0, log 0, branch point
fp8-linear 3@64 from bf16 3 12, log 12" ]
check "another recipe trains the branch points again" $? "$said" "$(cat "$folder/calls")"
[ "$(find "$folder/branch" -name 'step-*')" = "$folder/branch/branch-points/262k-from-12/3/step-00000012" ]
check "KEEP_BRANCH_POINTS=1 keeps the branch points" $? "$(find "$folder/branch" -name 'step-*')"
rm "$folder/calls"
said=$(branch "$folder/branch" "bf16 none" 3)
[ $? -eq 0 ] && [ "$(calls)" = "none 3@64 from bf16 3 12, log 12" ] && [ -z "$(find "$folder/branch" -name 'step-*')" ]
check "another recipe uses the kept branch points" $? "$said" "$(cat "$folder/calls")"
sed -i 's/^{"step":12,"loss":28,/{"step":12,"loss":28.1,/' "$folder/branch/262k-from-12/bf16/3/log.jsonl"
said=$(branch "$folder/branch" "bf16 other" 3)
[ $? -eq 1 ] && grep -q '^failed: 262k-from-12, bf16, seed 3, to step 12: was trained again, but its loss' <<<"$said" && ! grep -q other "$folder/calls"
check "a branch point that differs after it was trained again is an error" $? "$said" "$(cat "$folder/calls")"
said=$(RECIPES="coat bf16" FROM=12 STEPS=28 BIN=$folder/pretend PATH="$folder/gpus:$path" scripts/lab.py fidelity --out "$folder/branch" "$folder/train*" "$folder/val" 2>&1)
[ $? -eq 1 ] && grep -q '^error: setting 262k-from-12: .* step 12 of bf16.* step 12 of coat' <<<"$said"
check "another baseline for FROM is refused" $? "$said"

said=$(EVALUATE="bf16 lost" branch "$folder/evaluated" bf16 1)
[ $? -eq 1 ] && grep -q '^failed: 262k-from-12, bf16, seed 1, evaluated in lost, status 3: the GPU is lost' <<<"$said" && [ -z "$(figures "$folder/evaluated" 262k-from-12 bf16 1)" ]
check "a failed evaluation is reported" $? "$said"
rm "$folder/calls"
said=$(EVALUATE=bf16 branch "$folder/evaluated" bf16 1)
[ $? -eq 0 ] && [ ! -e "$folder/calls" ] && [ "$(figures "$folder/evaluated" 262k-from-12 bf16 1 'in bf16')" = 3 ]
check "a failed evaluation is repeated without training" $? "$said"

# stops the study while the baseline trains to a branch point, and a second time in a run after it
halt() { # SLOW PATTERN COUNT: runs the study, and stops it when COUNT logs have reached the step
    SLOW=$1 branch "$folder/halted" "bf16 coat" "1 3" >"$folder/said" &
    study=$!
    reached() { [ "$(grep -ls "^{\"step\":$1," "$folder"/halted/$2/log.jsonl | wc -l)" -ge "$3" ]; }
    wait_for $study reached "${1#*:}" "$2" "$3"
    kill -TERM $study
    wait $study
    [ $? -eq 1 ] && grep -q '^error: stopped; ' "$folder/said" && [ -z "$(find "$folder/halted" -name '.copy' -o -name '*.part')" ]
}
halt bf16:8 'branch-points/262k-from-12/*' 2
check "a study stopped before a branch point saves and ends" $? "$(cat "$folder/said")"
halt coat:20 '262k-from-12/coat/*' 1
check "a study stopped in a run saves and ends" $? "$(cat "$folder/said")"
[ "$(calls | grep 'branch point' | sed 's/ [0-9]*, log [0-9]*,/,/')" = "bf16 1@64 from bf16 1, branch point
bf16 1@64 from scratch, branch point
bf16 3@64 from bf16 3, branch point
bf16 3@64 from scratch, branch point" ] && calls | grep -q 'from bf16 . 8, log 8, branch point'
check "a stopped branch point resumes" $? "$(cat "$folder/calls")"
said=$(branch "$folder/halted" "bf16 coat" "1 3")
check "a study stopped twice succeeds when started again" $? "$said"
[ "$(calls | grep -c '^coat .* from coat . 20, log 20$')" -ge 1 ] && [ "$(calls | grep -c 'branch point')" -eq 4 ]
check "stopped runs resume from their checkpoints" $? "$(cat "$folder/calls")"
all_figures() { for recipe in bf16 coat; do figures "$1" 262k-from-12 $recipe 1; figures "$1" 262k-from-12 $recipe 3; done; } # STUDY
diff <(all_figures "$folder/branch") <(all_figures "$folder/halted") >"$folder/difference" && [ "$(all_figures "$folder/halted" | wc -l)" -eq 4 ]
check "a study stopped twice has the results of an uninterrupted one" $? "$(cat "$folder/difference")"

# --- small models, on the CPU
refuses "a large setting without a GPU is refused" '262k: needs a GPU' env BIN="$folder/pretend" scripts/lab.py fidelity --out "$folder/refused" README.md README.md
export STEPS=60 SEEDS="1 1@4" MODEL="--layers 1 --heads 2 --channels 32 --positions 32" TEXT=coat OMP_NUM_THREADS=1
export BATCH="--seq-len 32 --micro-batch 8 --batch-tokens 256 --threads 1" TRAINING="--lr 4e-3 --warmup 10"
said=$(scripts/lab.py fidelity --out "$folder/small" 2>&1)
check "a study on the CPU succeeds" $? "$said"
page=$(cat "$folder/small/fidelity.md")
run=$folder/small/bytes/coat/1@4
loss=$(field val_loss "$run/log.jsonl") base=$(field val_loss "$folder/small/bytes/bf16/1@4/log.jsonl")
# the last of eight windows of 60 steps starts at step 53
last=$(sed -n 's/^{"step":\([0-9]*\),"loss":\([0-9.]*\).*/\1 \2/p' "$run/log.jsonl" | awk '$1 > 52 { sum += $2; n++ } END { printf "%.4f", sum / n }')
result=$(figures "$folder/small" bytes coat 1@4)
[ "$(cut -d' ' -f1-6 <<<"$result")" = "bytes coat 1@4 done 60 $loss" ] && [ "$(awk '{ printf "%.4f", $16 }' <<<"$result")" = "$last" ]
check "fidelity.tsv has the run's losses" $? "$loss, $last" "$result"
has "the page has the run's losses" "$page" "^\| coat \| 1@4 \| $(printf %.4f "$loss") \| $(awk -v a="$loss" -v b="$base" 'BEGIN { printf "%+.2f", 100 * (a / b - 1) }' | sed 's/^+/\\+/; s/^-0.00/\\+0.00/') % \|"

# With FROM=30, all runs continue from the baseline's checkpoint of step 30. The baseline must end like the run without
# FROM.
said=$(SEEDS=1 FROM=30 EVALUATE="bf16 coat" scripts/lab.py fidelity --out "$folder/small" 2>&1)
check "a study on the CPU with FROM succeeds" $? "$said"
result=$(figures "$folder/small" bytes-from-30 bf16 1 steps,val_loss,first_loss)
[ -n "$result" ] && [ "$result" = "$(figures "$folder/small" bytes bf16 1 steps,val_loss,first_loss)" ]
check "with FROM, the baseline ends with the same losses as without it" $? "$result" "$(figures "$folder/small" bytes bf16 1)"
read -r loss in_coat in_bf16 < <(figures "$folder/small" bytes-from-30 coat 1 'val_loss,in coat,in bf16')
[ "$in_coat" = "$loss" ] && [[ $in_bf16 = [0-9]* ]] && [ "$in_bf16" != "$loss" ]
check "EVALUATE: COAT's weights have the run's loss if evaluated in COAT, and another loss in BF16" $? "$loss $in_coat $in_bf16"
[ "$(head -n 30 "$folder/small/bytes-from-30/coat/1/log.jsonl" | cut -d, -f1,2)" = "$(head -n 30 "$folder/small/bytes/bf16/1/log.jsonl" | cut -d, -f1,2)" ] &&
    ! diff -q <(sed -n 31,60p "$folder/small/bytes-from-30/coat/1/log.jsonl" | cut -d, -f1,2) <(sed -n 31,60p "$folder/small/bytes/bf16/1/log.jsonl" | cut -d, -f1,2) >/dev/null
check "with FROM, a run's log starts with the baseline's" $?

# TO=50 ends runs at step 50 of a schedule of 60. The last of eight windows, steps 48 to 50, must have the mean loss
# that these steps have in the run without TO.
said=$(SEEDS=1 FROM=30 TO=50 scripts/lab.py fidelity --out "$folder/small" 2>&1)
check "a study on the CPU with TO succeeds" $? "$said"
part=$folder/small/bytes-from-30-to-50/coat/1
mean=$(sed -n 's/^{"step":\([0-9]*\),"loss":\([0-9.]*\).*/\1 \2/p' "$folder/small/bytes-from-30/coat/1/log.jsonl" | awk '$1 > 47 && $1 <= 50 { sum += $2; n++ } END { printf "%.5f", sum / n }')
result=$(figures "$folder/small" bytes-from-30-to-50 coat 1)
[ "$(cut -d' ' -f1-5 <<<"$result")" = "bytes-from-30-to-50 coat 1 done 50" ] && [ "$(awk '{ printf "%.5f", $16 }' <<<"$result")" = "$mean" ] &&
    [ -z "$(find "$part" -name 'step-*')" ] && grep -q 'Runs end at step 50 of their schedule' "$folder/small/fidelity.md"
check "with TO, runs have the losses of runs without TO" $? "$mean" "$result"
refuses "TO after the last step is refused" 'TO: must be at most 60, the steps of bytes .is 61' env TO=61 scripts/lab.py fidelity --out "$folder/refused"
refuses "TO that is not a number is refused" 'TO: must be a whole number' env TO=x scripts/lab.py fidelity --out "$folder/refused"

# stops the study in the middle of a run; started again, it must have the same result
export RECIPES=coat SEEDS=1 STEPS=500
scripts/lab.py fidelity --out "$folder/straight" >/dev/null 2>&1
scripts/lab.py fidelity --out "$folder/stopped" >"$folder/said" 2>&1 &
study=$! run=$folder/stopped/bytes/coat/1
wait_for $study grep -q '"loss"' "$run/log.jsonl"
kill -TERM $study
wait $study
[ $? -eq 1 ] && [ -z "$(figures "$folder/stopped" bytes coat 1)" ] && grep -q '^ended by SIGTERM after step [0-9]* of 500: saved' "$run/output.txt" && grep -q '^error: stopped; ' "$folder/said"
check "a stopped study saves its run" $? "$(cat "$folder/said" "$run/output.txt")"
[ -z "$(find "$folder/stopped" -name '.copy' -o -name '*.part')" ]
check "a stopped study removes its temporary files" $?
said=$(scripts/lab.py fidelity --out "$folder/stopped" 2>&1)
check "a stopped study succeeds when started again" $? "$said"
diff <(figures "$folder/straight" bytes coat 1) <(figures "$folder/stopped" bytes coat 1) >"$folder/difference" && [ -n "$(figures "$folder/stopped" bytes coat 1)" ]
check "a stopped and resumed study has the same result" $? "$(cat "$folder/difference")"
exit $failures
