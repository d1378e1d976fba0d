#!/usr/bin/env bash
# scripts/lab.py fidelity: with programs that only pretend to train, that every figure lands in its place, that nothing is
# done twice, and that what fails is told; with the real one, small runs on the CPU, one of them stopped on its way.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. dev/test/fidelity_fixture.sh

# --- what it would do
said=$(scripts/lab.py fidelity --dry-run --out "$folder/dry" 'a b*' v 65k 1558M 2>&1)
check "a dry run ends well" $? "$said"
has "it shows the runs of a setting" "$said" 'train_gpt2_fp8 --model gpt2 --seq-len 1024 --micro-batch 64 --batch-tokens 65536 --lr 6e-4 --schedule cosine --warmup 100 --lr-final 0\.1 --beta2 0\.95 --weight-decay 0\.1 --recipe coat --master split16 --train .a b\*. --val v --steps 1526 --seed 3 '
has "and of another" "$said" '--model gpt2-xl .*--micro-batch 16 --batch-tokens 131072 .*--recipe bf16 --master split16 .*--steps 240 --seed 1 '
has "OLMo-1B, with its length and eps" "$(SEEDS=1 scripts/lab.py fidelity --dry-run --out "$folder/dry" a v olmo-1b 2>&1)" '--model olmo-1b --seq-len 2048 --micro-batch 8 --batch-tokens 131072 --lr 2e-4 .*--warmup 160 --lr-final 0 .*--eps 1e-5 --recipe coat --master split16 .*--val-batches 128 '
[ "$(grep -c -- ' --seed ' <<<"$said")" -eq 12 ]
check "every setting, recipe and seed" $? "$said"
[ ! -e "$folder/dry" ]
check "and writes nothing" $?
mkdir -p "$folder/begun/262k-to-350/coat/1"
said=$(SEEDS=1 TO=350 BIN="$folder/begun" scripts/lab.py fidelity --dry-run --out "$folder/begun" a v 2>&1)
check "a dry run of runs that end early ends well" $? "$said"
has "it shows them" "$said" 'train_gpt2_fp8 --model gpt2 .*--recipe coat .*--steps 400 .*--val-every 350 '
has "and where they end" "$said" '^# ended at step 350$'
[ "$(find "$folder/begun" -type f | wc -l)" -eq 0 ]
check "and runs none, where one has begun" $? "$(find "$folder/begun")"
said=$(RECIPES="bf16 coat,grads=fp32,head=fp8" SEEDS="1 1@64 2@16" scripts/lab.py fidelity --dry-run --out "$folder/dry" a v 2>&1)
has "262k where no setting is named, and flags behind a recipe" "$said" '--batch-tokens 262144 .*--lr 3e-4 .*--recipe coat --master split16 --grads=fp32 --head=fp8 '
has "a micro-batch behind a seed, validated on the same tokens" "$said" '--micro-batch 16 .*--seed 2 .*--val-batches 128 .*/262k/bf16/2@16 '
[ "$(wc -l <<<"$said")" -eq 4 ] && grep -q -- '--val-batches 32 .*/262k/bf16/1 ' <<<"$said"
check "that of the setting is no other run" $? "$said"
said=$(RECIPES="bf16 careful:coat,group-size=32" SEEDS=1 scripts/lab.py fidelity --dry-run --out "$folder/dry" a v 2>&1)
has "a recipe by its name" "$said" '--recipe coat --master split16 --group-size=32 .*/262k/careful/1 '
[ "$(scripts/lab.py fidelity -h)" = "$(scripts/lab.py fidelity --help)" ]
check "-h is --help" $?
at() { scripts/lab.py fidelity --out "$folder/refused" "$@"; }
refuses "one glob alone" 'name TRAIN_GLOB and VAL_GLOB' at a
refuses "an unknown flag" '.*--fast' at --fast
refuses "an unknown setting" '66k: must be one of the settings 65k, 262k' at README.md README.md 66k
refuses "a micro-batch that does not divide the setting's" 'SEEDS: 1@5: .* divide 8' env SEEDS=1@5 scripts/lab.py fidelity --out "$folder/refused"
refuses "a seed that is not a number" 'SEEDS: one: ' env SEEDS=one scripts/lab.py fidelity --out "$folder/refused"
refuses "a recipe that cannot name a folder" 'RECIPES: coat/x: ' env RECIPES=coat/x scripts/lab.py fidelity --out "$folder/refused"
refuses "a name that cannot" 'RECIPES: a/b:coat: ' env RECIPES=a/b:coat scripts/lab.py fidelity --out "$folder/refused"
refuses "a recipe that the trainer does not know" 'RECIPES: coatt: --recipe coatt: must be one of bf16' env RECIPES="bf16 coatt" scripts/lab.py fidelity --out "$folder/refused"
refuses "in a dry run, too" 'RECIPES: slow: --lrr: unknown flag' env RECIPES="bf16 slow:bf16,lrr=1" scripts/lab.py fidelity --dry-run --out "$folder/refused"
refuses "one to evaluate in" 'EVALUATE: coat,head=fp9: --head fp9: must be one of' env EVALUATE="bf16 coat,head=fp9" scripts/lab.py fidelity --out "$folder/refused"
refuses "the GPU's trainer is asked, where it is there" 'RECIPES: coatt: --recipe coatt: must' env BIN="$folder/pretend" PATH="$folder/gpus:$path" RECIPES="bf16 coatt" scripts/lab.py fidelity --out "$folder/refused" "$folder/train*" "$folder/val"
said=$(BIN="$folder/none" RECIPES="bf16 coatt" SEEDS=1 scripts/lab.py fidelity --dry-run --out "$folder/refused" a v 2>&1)
check "a dry run without a trainer asks none" $? "$said"
refuses "fewer steps than eighths" 'STEPS: at least 8' env STEPS=7 scripts/lab.py fidelity --out "$folder/refused"
refuses "a pattern without files" 'no file matches nothing' at 'nothing*' 'nothing*'
refuses "programs that are not built" 'none/train_gpt2_fp8 is not built: make ' env BIN="$folder/none" scripts/lab.py fidelity --out "$folder/refused" README.md README.md
refuses "a page of nothing" 'refused/fidelity.tsv: holds no results' at --page-only

# --- with programs that pretend to run on two GPUs
said=$(pretend "bf16 coat" "1 3" 262k)
check "a study on two GPUs" $? "$said"
page=$(cat "$folder/study/fidelity.md")
has "the machine, not where it lies" "$page" '^20[0-9-]*, on Pretended GPU; version '
has "the command" "$page" "^    RECIPES='bf16 coat' SEEDS='1 3' STEPS=20 scripts/lab.py fidelity --out study 'train\*' val 262k\$"
has "what defines the setting" "$page" '^`--model gpt2 --seq-len 1024 .*--steps 20`; data: train\*, 100000 bytes; validation: val, 100000 bytes\.$'
has "the baseline's losses, with its eighths" "$page" '^\| bf16 \| 2 \| 3\.0300 \|  \| 38\.500 \| 36\.000 \| 33\.500 \| 31\.000 \| 28\.500 \| 26\.000 \| 23\.500 \| 21\.000 \|$'
has "mean difference, its standard error, and that of the eighths" "$page" '^\| coat \| 2 \| 3\.0909 \| \+2\.00 ± 1\.00 % \|( \+1\.00 \|){7} \+3\.00 \|$'
has "the judgement" "$page" '^\| 262k \| coat \| 2 \| \+2\.00 ± 1\.00 % \| beyond \| \+3\.00 ± 0\.00 % \(8/8\) \| beyond \|$'
has "means without pairs" "$page" '^\| coat \| 2 \| 3\.0909 ± 0\.0861 \| \+2\.01 ± 2\.24 % \|$'
has "a single run" "$page" '^\| coat \| 3 \| 3\.1518 \| \+3\.00 % \|( \+1\.00 \|){7} \+3\.00 \| 12\.5 \|$'
! grep -qF "$folder" "$folder/study/fidelity.md"
check "no absolute path is on the page" $? "$page"
! grep -q 'alone' <<<"$page"
check "no scatter without other micro-batches" $? "$page"
[ "$(cut -d: -f2 "$folder/calls" | sort -u | wc -l)" -eq 4 ] && [ "$(grep -c . "$folder/calls")" -eq 4 ] && grep -q 'GPU 0: ' "$folder/calls" && grep -q 'GPU 1: ' "$folder/calls"
check "both GPUs work, and no run is done twice" $? "$(cat "$folder/calls")"
grep -q ': bf16 1@64' <<<"$(head -n 2 "$folder/calls")" && grep -q ': coat 1@64' <<<"$(head -n 2 "$folder/calls")"
check "a pair runs side by side" $? "$(cat "$folder/calls")"
[ -z "$(find "$folder/study" -name 'step-*' -o -name .copy)" ]
check "no checkpoint is left" $? "$(find "$folder/study")"
mv "$folder/calls" "$folder/calls.before"
said=$(pretend "bf16 coat" "1 3")
[ $? -eq 0 ] && [ ! -e "$folder/calls" ] && [ "$(page_of "$folder/study")" = "$(sed -n '/^## /,$p' <<<"$page")" ]
check "the same once more does nothing again, and writes the same" $? "$said"
said=$(VERSION="by name" pretend "bf16 coat,head=fp8" "1 1@16")
check "a run that diverges is a result" $? "$said"
[ "$(grep -c . "$folder/calls")" -eq 3 ]
check "only what is new has run" $? "$(cat "$folder/calls")"
page=$(cat "$folder/study/fidelity.md")
has "a version by name, beside the one before" "$page" '^20[0-9-]*, on Pretended GPU; version tested, by name\.$'
has "it counts as such, with the eighths that it has" "$page" '^\| coat,head=fp8 \| 2, 2 diverged \| – \| – \|( \+1\.00 \|){4}( – \|){4}$'
has "the scatter of the baseline alone" "$page" '^- \*\*bf16\*\* alone, its micro-batches cut in 2 ways \(1, 1@16\): 3\.0000 to 3\.0060, \*\*0\.20 %\*\* apart; largest \|difference\| of an eighth 0\.00 %$'
has "and what was there before is on the page" "$page" '^\| 262k \| coat \| 2 \| \+2\.00 ± 1\.00 % \|'
has "what diverged is beyond" "$page" '^\| 262k \| coat,head=fp8 \| 0, 2 diverged \| – \| beyond \| \+1\.00 ± 0\.00 % \(1/8\) \| beyond \|$'
has "limits by name" "$(LIMIT=2.01 EIGHTH_LIMIT=2.5 scripts/lab.py fidelity --page-only --out "$folder/study" >/dev/null; grep '^| 262k' "$folder/study/fidelity.md")" \
    '^\| 262k \| coat \| 2 \| .* \| within \| \+3\.00 ± 0\.00 % \(8/8\) \| beyond \|$'

mv "$folder/calls" "$folder/calls.before"
said=$(pretend "bf16 coat,recompute=0" 3)
[ $? -eq 1 ] && grep -q '^failed: 262k, coat,recompute=0, seed 3, status 3: the GPU is lost' <<<"$said"
check "a failure is told, and the script ends with 1" $? "$said"
has "on the page too" "$(cat "$folder/study/fidelity.md")" '^- not finished: coat,recompute=0 3$'
said=$(steps=24 pretend "bf16 coat" 3)
[ $? -eq 1 ] && grep -q '^error: setting 262k: .* --steps 20; .* --steps 24; .*choose another --out' <<<"$said"
check "other settings are refused" $? "$said"
said=$(steps=24 pretend "bf16 coat" 3 524k)
check "another setting may have others" $? "$said"
[ "$(grep -c '^## ' "$folder/study/fidelity.md")" -eq 2 ] && grep -q '^| coat | 1 | 3.1518 | +3.00 % |' "$folder/study/fidelity.md"
check "and has a section of its own; one pair has no error" $? "$(cat "$folder/study/fidelity.md")"
said=$(pretend "bf16 old:coat,grads=fp32" 3)
[ $? -eq 0 ] && grep -qxF -- '- old: `--recipe coat --grads=fp32`' "$folder/study/fidelity.md" && grep -q '^| 262k | old | 1 | +3.00 % |' "$folder/study/fidelity.md"
check "a recipe is on the page by its name, and what it stands for" $? "$said" "$(cat "$folder/study/fidelity.md")"
said=$(pretend "bf16 old:coat" 3)
[ $? -eq 1 ] && grep -q "^error: recipe old: .*study.* 'coat,grads=fp32', .* 'coat'; choose another name$" <<<"$said"
check "a name keeps its meaning" $? "$said"
exec 8>"$folder/study/.lock"
flock 8
said=$(pretend "bf16 coat" 1)
[ $? -eq 1 ] && grep -q '^error: .*study: another process works there' <<<"$said"
check "two at the same time are refused" $? "$said"
said=$(scripts/lab.py fidelity --page-only --out "$folder/study" 2>&1)
check "but not the page" $? "$said"
exec 8>&-

# fidelity.tsv is enough for the page
mkdir "$folder/copy" && cp "$folder/study/fidelity.tsv" "$folder/copy"
said=$(BIN=$folder/none scripts/lab.py fidelity --page-only --out "$folder/copy" 2>&1)
check "a page of results alone, without programs and data" $? "$said"
diff <(page_of "$folder/study" | grep -v '^- not finished') <(page_of "$folder/copy") >"$folder/difference"
check "is the same" $? "$(cat "$folder/difference")"
! grep -q '^- on another kind of card' "$folder/copy/fidelity.md"
check "on one kind of card, too" $?
sed -i '/^262k\tcoat\t3\t/s/Pretended GPU/Other GPU/' "$folder/copy/fidelity.tsv"
scripts/lab.py fidelity --page-only --out "$folder/copy" >/dev/null 2>&1
has "or says of which pairs not" "$(cat "$folder/copy/fidelity.md")" "^- on another kind of card than bf16's: coat 3\$"

# --- runs that go on from one checkpoint of the baseline, on two GPUs
branch() { # FOLDER RECIPES SEEDS: from step 12 of 28; what it says
    PATH="$folder/gpus:$path" BIN=$folder/pretend CALLS=$folder/calls RECIPES=$2 SEEDS=$3 STEPS=28 FROM=12 \
        exec scripts/lab.py fidelity --out "$1" "$folder/train*" "$folder/val" 262k 2>&1
}
calls() { sed 's/^GPU [01]: //' "$folder/calls" | sort; }
rm "$folder/calls"
said=$(EVALUATE="bf16 coat" branch "$folder/branch" "bf16 coat" "1 1@16 3")
check "a study that continues from checkpoints of the baseline" $? "$said"
[ "$(head -n 2 "$folder/calls" | cut -d' ' -f3- | sort)" = "bf16 1@64 from scratch 0, log 0, branch point
bf16 3@64 from scratch 0, log 0, branch point" ]
check "one per seed, side by side" $? "$(cat "$folder/calls")"
[ "$(calls | grep -v 'branch point')" = "bf16 1@16 from bf16 1 12, log 12
bf16 1@64 from bf16 1 12, log 12
bf16 3@64 from bf16 3 12, log 12
coat 1@16 from bf16 1 12, log 12
coat 1@64 from bf16 1 12, log 12
coat 3@64 from bf16 3 12, log 12" ]
check "every run continues from that of its seed, with the log up to there" $? "$(cat "$folder/calls")"
[ -z "$(find "$folder/branch" -name 'step-*' -o -name .copy)" ]
check "and no checkpoint is left" $? "$(find "$folder/branch")"
page=$(cat "$folder/branch/fidelity.md")
has "the section says what it is" "$page" '^124M, 262,144 .* All runs of a seed continue from one checkpoint, that of step 12 of bf16; .* of steps 13 to 28\.$'
has "the eighths are of the steps behind it" "$page" '^\| coat \| 3 \| 3\.0726 \| .* \| \+1\.00 \| \+1\.00 \| \+1\.98 \|( \+3\.00 \|){5} \+0\.50 ± 0\.00 % \| \+1\.00 ± 0\.00 % \|$'
has "the baseline in another recipe" "$page" '^\| bf16 \| 3 \| 3\.0220 \|  \| 26\.500 \|.* \| 3\.0000 \| 3\.0060 \|$'
has "so is a run" "$page" '^\| coat \| 3 \| 3\.1518 \| \+3\.00 % \|.* 9\.5 \| 3\.0150 \| 3\.0361 \|$'
has "and the command" "$page" "^    RECIPES='bf16 coat' SEEDS='1 1@16 3' FROM=12 EVALUATE='bf16 coat' STEPS=28 scripts/lab.py fidelity"
mkdir "$folder/old"
sed '/^#/!s/\t[^\t]*\t[^\t]*$//' "$folder/branch/fidelity.tsv" >"$folder/old/fidelity.tsv" # the last two columns
said=$(scripts/lab.py fidelity --page-only --out "$folder/old" 2>&1)
has "a page of results without these" "$(cat "$folder/old/fidelity.md")" '^\| coat \| 3 \| 3\.0726 \| .* \| \+1\.00 \| \+1\.00 \| \+1\.98 \|( \+3\.00 \|){5}$'

rm "$folder/calls"
said=$(EVALUATE="bf16 coat" branch "$folder/branch" "bf16 coat" "1 1@16 3")
[ $? -eq 0 ] && [ ! -e "$folder/calls" ]
check "nothing is done again, though the checkpoints are gone" $? "$said" "$(cat "$folder/calls" 2>/dev/null)"
said=$(KEEP_BRANCH_POINTS=1 branch "$folder/branch" "bf16 coat fp8-linear" 3)
[ $? -eq 0 ] && [ "$(calls)" = "bf16 3@64 from scratch 0, log 0, branch point
fp8-linear 3@64 from bf16 3 12, log 12" ]
check "for another recipe they are made again" $? "$said" "$(cat "$folder/calls")"
[ "$(find "$folder/branch" -name 'step-*')" = "$folder/branch/branch-points/262k-from-12/3/step-00000012" ]
check "and kept if asked to" $? "$(find "$folder/branch" -name 'step-*')"
rm "$folder/calls"
said=$(branch "$folder/branch" "bf16 none" 3)
[ $? -eq 0 ] && [ "$(calls)" = "none 3@64 from bf16 3 12, log 12" ] && [ -z "$(find "$folder/branch" -name 'step-*')" ]
check "for the next" $? "$said" "$(cat "$folder/calls")"
sed -i 's/^{"step":12,"loss":28,/{"step":12,"loss":28.1,/' "$folder/branch/262k-from-12/bf16/3/log.jsonl"
said=$(branch "$folder/branch" "bf16 other" 3)
[ $? -eq 1 ] && grep -q '^failed: 262k-from-12, bf16, seed 3, to step 12: trained again, it differs' <<<"$said" && ! grep -q other "$folder/calls"
check "one that comes out otherwise is refused" $? "$said" "$(cat "$folder/calls")"
said=$(RECIPES="coat bf16" FROM=12 STEPS=28 BIN=$folder/pretend PATH="$folder/gpus:$path" scripts/lab.py fidelity --out "$folder/branch" "$folder/train*" "$folder/val" 2>&1)
[ $? -eq 1 ] && grep -q '^error: setting 262k-from-12: .* step 12 of bf16.* step 12 of coat' <<<"$said"
check "another baseline, too" $? "$said"

said=$(EVALUATE="bf16 lost" branch "$folder/evaluated" bf16 1)
[ $? -eq 1 ] && grep -q '^failed: 262k-from-12, bf16, seed 1, evaluated in lost, status 3: the GPU is lost' <<<"$said" && [ -z "$(figures "$folder/evaluated" 262k-from-12 bf16 1)" ]
check "an evaluation that fails is told" $? "$said"
rm "$folder/calls"
said=$(EVALUATE=bf16 branch "$folder/evaluated" bf16 1)
[ $? -eq 0 ] && [ ! -e "$folder/calls" ] && [ "$(figures "$folder/evaluated" 262k-from-12 bf16 1 'in bf16')" = 3 ]
check "and made up for without training" $? "$said"

# stopped while a checkpoint of the baseline is made, and in a run behind it
halt() { # SLOW PATTERN COUNT: the study, stopped when so many of its logs have come to the step
    SLOW=$1 branch "$folder/halted" "bf16 coat" "1 3" >"$folder/said" &
    study=$!
    for ((i = 0; i < 1000; i++)); do
        [ "$(grep -ls "^{\"step\":${1#*:}," "$folder"/halted/$2/log.jsonl | wc -l)" -lt "$3" ] || break
        sleep 0.02
    done
    kill -TERM $study
    wait $study
    [ $? -eq 1 ] && grep -q '^error: stopped; the same command' "$folder/said" && [ -z "$(find "$folder/halted" -name '.copy' -o -name '*.part')" ]
}
halt bf16:8 'branch-points/262k-from-12/*' 2
check "stopped on the way to a checkpoint" $? "$(cat "$folder/said")"
halt coat:20 '262k-from-12/coat/*' 1
check "and in a run" $? "$(cat "$folder/said")"
[ "$(calls | grep 'branch point' | sed 's/ [0-9]*, log [0-9]*,/,/')" = "bf16 1@64 from bf16 1, branch point
bf16 1@64 from scratch, branch point
bf16 3@64 from bf16 3, branch point
bf16 3@64 from scratch, branch point" ] && calls | grep -q 'from bf16 . 8, log 8, branch point'
check "the checkpoints go on from where they were" $? "$(cat "$folder/calls")"
said=$(branch "$folder/halted" "bf16 coat" "1 3")
check "in the end it ends well" $? "$said"
[ "$(calls | grep -c '^coat .* from coat . 20, log 20$')" -ge 1 ] && [ "$(calls | grep -c 'branch point')" -eq 4 ]
check "runs go on from their own checkpoints" $? "$(cat "$folder/calls")"
all_figures() { for recipe in bf16 coat; do figures "$1" 262k-from-12 $recipe 1; figures "$1" 262k-from-12 $recipe 3; done; } # STUDY
diff <(all_figures "$folder/branch") <(all_figures "$folder/halted") >"$folder/difference" && [ "$(all_figures "$folder/halted" | wc -l)" -eq 4 ]
check "with the same results" $? "$(cat "$folder/difference")"

# --- small models, on the CPU
refuses "a large model without a GPU" '262k: needs a GPU' env BIN="$folder/pretend" scripts/lab.py fidelity --out "$folder/refused" README.md README.md
export STEPS=60 SEEDS="1 1@4" MODEL="--layers 1 --heads 2 --channels 32 --positions 32" TEXT=coat OMP_NUM_THREADS=1
export BATCH="--seq-len 32 --micro-batch 8 --batch-tokens 256 --threads 1" TRAINING="--lr 4e-3 --warmup 10"
said=$(scripts/lab.py fidelity --out "$folder/small" 2>&1)
check "a study on the CPU" $? "$said"
page=$(cat "$folder/small/fidelity.md")
run=$folder/small/bytes/coat/1@4
loss=$(sed -n 's/.*"val_loss":\([0-9.]*\).*/\1/p' "$run/log.jsonl")
base=$(sed -n 's/.*"val_loss":\([0-9.]*\).*/\1/p' "$folder/small/bytes/bf16/1@4/log.jsonl")
# of 60 steps the last eighth has those from 53 on
last=$(sed -n 's/^{"step":\([0-9]*\),"loss":\([0-9.]*\).*/\1 \2/p' "$run/log.jsonl" | awk '$1 > 52 { sum += $2; n++ } END { printf "%.4f", sum / n }')
result=$(figures "$folder/small" bytes coat 1@4)
[ "$(cut -d' ' -f1-6 <<<"$result")" = "bytes coat 1@4 done 60 $loss" ] && [ "$(awk '{ printf "%.4f", $16 }' <<<"$result")" = "$last" ]
check "the result has the run's losses" $? "$loss, $last" "$result"
has "and the page" "$page" "^\| coat \| 1@4 \| $(printf %.4f "$loss") \| $(awk -v a="$loss" -v b="$base" 'BEGIN { printf "%+.2f", 100 * (a / b - 1) }' | sed 's/^+/\\+/; s/^-0.00/\\+0.00/') % \|"

# from the baseline's checkpoint of step 30: the baseline comes to the same end as the run that was not stopped there
said=$(SEEDS=1 FROM=30 EVALUATE="bf16 coat" scripts/lab.py fidelity --out "$folder/small" 2>&1)
check "runs that go on from a checkpoint" $? "$said"
result=$(figures "$folder/small" bytes-from-30 bf16 1 steps,val_loss,first_loss)
[ -n "$result" ] && [ "$result" = "$(figures "$folder/small" bytes bf16 1 steps,val_loss,first_loss)" ]
check "the baseline as if it had not been stopped" $? "$result" "$(figures "$folder/small" bytes bf16 1)"
read -r loss in_coat in_bf16 < <(figures "$folder/small" bytes-from-30 coat 1 'val_loss,in coat,in bf16')
[ "$in_coat" = "$loss" ] && [[ $in_bf16 = [0-9]* ]] && [ "$in_bf16" != "$loss" ]
check "COAT's weights in COAT have its loss, in BF16 another" $? "$loss $in_coat $in_bf16"
[ "$(head -n 30 "$folder/small/bytes-from-30/coat/1/log.jsonl" | cut -d, -f1,2)" = "$(head -n 30 "$folder/small/bytes/bf16/1/log.jsonl" | cut -d, -f1,2)" ] &&
    ! diff -q <(sed -n 31,60p "$folder/small/bytes-from-30/coat/1/log.jsonl" | cut -d, -f1,2) <(sed -n 31,60p "$folder/small/bytes/bf16/1/log.jsonl" | cut -d, -f1,2) >/dev/null
check "its log is the baseline's up to there" $?

# and end at step 50 of the schedule of 60: eighths of five, as in the whole run
said=$(SEEDS=1 FROM=30 TO=50 scripts/lab.py fidelity --out "$folder/small" 2>&1)
check "runs that end before their schedule" $? "$said"
part=$folder/small/bytes-from-30-to-50/coat/1
mean=$(sed -n 's/^{"step":\([0-9]*\),"loss":\([0-9.]*\).*/\1 \2/p' "$folder/small/bytes-from-30/coat/1/log.jsonl" | awk '$1 > 47 && $1 <= 50 { sum += $2; n++ } END { printf "%.5f", sum / n }')
result=$(figures "$folder/small" bytes-from-30-to-50 coat 1)
[ "$(cut -d' ' -f1-5 <<<"$result")" = "bytes-from-30-to-50 coat 1 done 50" ] && [ "$(awk '{ printf "%.5f", $16 }' <<<"$result")" = "$mean" ] &&
    [ -z "$(find "$part" -name 'step-*')" ] && grep -q 'Runs end at step 50 of their schedule' "$folder/small/fidelity.md"
check "and have the losses of those that do not" $? "$mean" "$result"
refuses "beyond the schedule" 'TO: bytes has 60 steps' env TO=61 scripts/lab.py fidelity --out "$folder/refused"
refuses "a step that is not a number" 'TO: must be a whole number' env TO=x scripts/lab.py fidelity --out "$folder/refused"

# stopped in the middle of a run: it continues from there, to the same result
export RECIPES=coat SEEDS=1 STEPS=500
scripts/lab.py fidelity --out "$folder/straight" >/dev/null 2>&1
scripts/lab.py fidelity --out "$folder/stopped" >"$folder/said" 2>&1 &
study=$! run=$folder/stopped/bytes/coat/1
for ((i = 0; i < 600; i++)); do
    ! grep -q '"loss"' "$run/log.jsonl" 2>/dev/null || break
    sleep 0.05
done
kill -TERM $study
wait $study
[ $? -eq 1 ] && [ -z "$(figures "$folder/stopped" bytes coat 1)" ] && grep -q '^ended by SIGTERM after step [0-9]* of 500: saved' "$run/output.txt" && grep -q '^error: stopped; the same command' "$folder/said"
check "a study that is stopped saves its run" $? "$(cat "$folder/said" "$run/output.txt")"
[ -z "$(find "$folder/stopped" -name '.copy' -o -name '*.part')" ]
check "and cleans up" $?
said=$(scripts/lab.py fidelity --out "$folder/stopped" 2>&1)
check "started again, it ends well" $? "$said"
diff <(figures "$folder/straight" bytes coat 1) <(figures "$folder/stopped" bytes coat 1) >"$folder/difference" && [ -n "$(figures "$folder/stopped" bytes coat 1)" ]
check "and has gone on to the same result" $? "$(cat "$folder/difference")"
exit $failures
