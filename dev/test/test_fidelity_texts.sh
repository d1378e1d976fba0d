#!/usr/bin/env bash
# scripts/lab.py fidelity with TEXTS: with a program that only pretends to evaluate, that every figure lands in its place and
# no run is evaluated or trained twice; with the real one, that a text's loss is that of the weights.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. dev/test/fidelity_fixture.sh

wiki=$folder/wiki_train_000000.bin
head -c 400000 /dev/zero >"$wiki" # three micro-batches of 65,536 tokens
head -c 140000 /dev/zero >"$folder/c4.bin"
rows_of() { grep -E '^\| (text|wiki|c4|more) \||^- (not evaluated|text) ' "$1/fidelity.md"; } # STUDY

# --- what it would do, and what it refuses
said=$(TEXTS="wiki=w* c4=b/c.bin" SEEDS="1 2@16" scripts/lab.py fidelity --dry-run --out "$folder/dry" a v 2>&1)
check "a dry run with texts" $? "$said"
has "shows the evaluation in a run's own recipe" "$said" 'train_gpt2_fp8 --eval-only --model [^ ]*/dry/262k/coat/1/step-00000400 --recipe coat --master split16 --micro-batch 64 --val .w\*. --val-batches 32 --quiet --json'
has "of the other text, in micro-batches of the run" "$said" '/dry/262k/bf16/2@16/step-00000400 --recipe bf16 .* --micro-batch 16 --val b/c\.bin --val-batches 128 '
[ "$(grep -c -- --eval-only <<<"$said")" -eq 8 ] && [ ! -e "$folder/dry" ]
check "each run on each text, and nothing is written" $? "$said"
with_texts() { env TEXTS="$1" BIN="$folder/pretend" PATH="$folder/gpus:$path" scripts/lab.py fidelity --out "$folder/refused" "$folder/train*" "$folder/val"; } # TEXTS
refuses "a text without a name" 'TEXTS: =x: must be NAME=GLOB' with_texts =x
refuses "without files" 'TEXTS: wiki=: must be NAME=GLOB' with_texts wiki=
refuses "a name alone" 'TEXTS: wiki: must be NAME=GLOB' with_texts "c4=$folder/c4.bin wiki"
refuses "a name that cannot name a file" 'TEXTS: a/b=x: must be NAME=GLOB' with_texts a/b=x
refuses "one that would break a table" 'TEXTS: a\|b=x: must be NAME=GLOB' with_texts 'a|b=x'
refuses "two of one name" 'TEXTS: wiki: two texts' with_texts 'wiki=a wiki=b'
refuses "a pattern without files" 'TEXTS: wiki: no file matches nothing\*; make token files with data/prepare\.py' with_texts 'wiki=nothing*'
refuses "less than a micro-batch" 'TEXTS: short: too short for 262k, whose micro-batches read 65536 tokens' with_texts "short=$folder/val"

# --- on two GPUs that are pretended
export TEXTS="wiki=$folder/wiki_train* c4=$folder/c4.bin"
said=$(pretend "bf16 coat" "1 1@16 3" 262k)
check "a study with two texts" $? "$said"
[ "$(sort "$folder/calls.texts")" = "$(for seed in 1@16 1@64 3@64; do
    batches=$([ $seed = 1@16 ] && echo "12 4" || echo "3 1")
    for recipe in bf16 coat; do echo "$recipe $seed in $recipe: ${batches% *} of wiki_train*"; echo "$recipe $seed in $recipe: ${batches#* } of c4.bin"; done
done | sort)" ]
check "every run in its own recipe and micro-batch, on each text once" $? "$(cat "$folder/calls.texts")"
[ "$(figures "$folder/study" 262k coat 3 'on wiki,on c4')" = "3.605 4" ] && [ "$(grep -c $'^262k\tcoat\t3\t' "$folder/study/fidelity.tsv")" -eq 1 ]
check "a run has a column per text" $? "$(cat "$folder/study/fidelity.tsv")"
page=$(cat "$folder/study/fidelity.md")
has "loss and perplexity of each recipe, the difference with its error" "$page" '^\| wiki \| 3\.4333 \| 30\.980 \| 3\.4910 \| 32\.819 \| \+1\.67 ± 0\.67 % \|$'
has "where there is none" "$page" '^\| c4 \| 4\.0000 \| 54\.598 \| 4\.0000 \| 54\.598 \| \+0\.00 ± 0\.00 % \|$'
has "what the columns are" "$page" '^\| text \| bf16, loss \| perplexity \| coat, loss \| perplexity \| difference \|$'
has "what the texts are" "$page" '^- text wiki: `wiki_train\*`, 400000 bytes$'
has "and the command, without folders" "$page" "^    RECIPES='bf16 coat' SEEDS='1 1@16 3' TEXTS='wiki=wiki_train\* c4=c4\.bin' STEPS=20 scripts/lab\.py fidelity "
! grep -qF "$folder" <<<"$page" && ! grep -q 'not evaluated' <<<"$page"
check "nor is one elsewhere; nothing is missing" $? "$page"
[ -z "$(find "$folder/study" -name 'step-*')" ]
check "no checkpoint is left" $? "$(find "$folder/study")"
mkdir "$folder/copy" "$folder/bare"
cp "$folder/study/fidelity.tsv" "$folder/copy"
sed '/^# text/d; /^#/!s/\t[^\t]*\t[^\t]*$//' "$folder/study/fidelity.tsv" >"$folder/bare/fidelity.tsv" # without the last two columns
scripts/lab.py fidelity --page-only --out "$folder/copy" >/dev/null 2>&1 && diff <(page_of "$folder/study") <(page_of "$folder/copy") >"$folder/difference"
check "results alone make the same page" $? "$(cat "$folder/difference")"
scripts/lab.py fidelity --page-only --out "$folder/bare" >/dev/null 2>&1 && ! grep -q '^| text\|further texts\|^- text' "$folder/bare/fidelity.md" &&
    diff <(page_of "$folder/bare") <(page_of "$folder/study" | sed '/^| text/,/^The last checkpoints/d' | cat -s) >"$folder/difference"
check "and without texts the same but for their table" $? "$(cat "$folder/difference")"

# one more text: runs that have ended have no checkpoint for it
mv "$folder/calls" "$folder/calls.before"
rm "$folder/calls.texts"
TEXTS+=" more=$folder/c4.bin"
said=$(EVALUATE=bf16 pretend "bf16 coat" "1 3" 262k)
[ $? -eq 0 ] && [ ! -e "$folder/calls" ] && [ ! -e "$folder/calls.texts" ]
check "runs that have ended are left as they are" $? "$said"
has "which is told" "$said" '^note: ended before, not evaluated on more: 262k bf16 1, 262k coat 1, 262k bf16 3, 262k coat 3; their checkpoints are gone, another --out trains them again$'
has "so are recipes of EVALUATE" "$said" '^note: ended before, not evaluated in bf16: 262k bf16 1, 262k coat 1, '
[ "$(grep -c '^note' <<<"$said")" -eq 2 ]
check "but no text that they have" $? "$said"
said=$(EVALUATE=bf16 pretend "bf16 coat,head=fp8" "1 5" 262k)
[ $? -eq 0 ] && [ "$(grep -c . "$folder/calls")" -eq 3 ]
check "new runs are evaluated, also in another recipe" $? "$said" "$(cat "$folder/calls")"
[ "$(figures "$folder/study" 262k bf16 5 'ended,steps,val_loss,in bf16,on wiki,on c4,on more')" = "done 20 3.06 3 3.5 4 4" ]
check "and have all texts" $? "$(cat "$folder/study/fidelity.tsv")"
[ "$(figures "$folder/study" 262k coat,head=fp8 1 'ended,on wiki,on c4,on more')" = "diverged - - -" ]
check "but not those that diverged" $? "$(cat "$folder/study/fidelity.tsv")"
rows=$(rows_of "$folder/study")
has "the mean is over the runs that have it" "$rows" '^\| more \| 4\.0000 \| 54\.598 \| – \| – \| – \|$'
has "a recipe that diverged has no column" "$rows" '^\| text \| bf16, loss \| perplexity \| coat, loss \| perplexity \| difference \|$'
has "and the page says which runs lack it" "$rows" '^- not evaluated on more: bf16 1, bf16 1@16, bf16 3, coat 1, coat 1@16, coat 3$'
said=$(TEXTS="wiki=$folder/c4.bin" pretend "bf16 coat" 7 262k)
[ $? -eq 1 ] && grep -q "^error: text wiki: .*study.* 'wiki_train\*, 400000 bytes', .* 'c4.bin, 140000 bytes'; choose another name$" <<<"$said"
check "a name keeps its meaning" $? "$said"

# an evaluation that fails
rm "$folder/calls"
said=$(TEXTS="c4=$folder/c4.bin wiki=$folder/wiki_train*" LOST=wiki pretend "bf16" 9 262k)
[ $? -eq 1 ] && grep -q '^failed: 262k, bf16, seed 9, evaluated on wiki, status 3: the GPU is lost' <<<"$said" && [ -z "$(figures "$folder/study" 262k bf16 9)" ]
check "a text that fails is told" $? "$said"
[ -e "$folder/study/262k/bf16/9/step-00000020" ]
check "and the checkpoint stays" $? "$(ls "$folder/study/262k/bf16/9")"
rm "$folder/calls"
said=$(pretend bf16 9 262k)
[ $? -eq 0 ] && [ ! -e "$folder/calls" ] && [ "$(figures "$folder/study" 262k bf16 9 'on wiki')" = 3.5 ]
check "so that it is made up for without training" $? "$said"

# --- the pages of the results in the repository
for study in scripts/results/fidelity*; do
    cp -r "$study" "$folder/published"
    scripts/lab.py fidelity --page-only --out "$folder/published" >/dev/null 2>&1
    diff <(sed '2s/^[0-9-]*//' "$study/fidelity.md") <(sed '2s/^[0-9-]*//' "$folder/published/fidelity.md") >"$folder/difference"
    check "$study is still what the script writes, but for its date" $? "$(cat "$folder/difference")"
    rm -r "$folder/published"
done

# --- small models, on the CPU: the validation text as a further one has the validation loss
"$BUILD/prepare_bytes" --out "$folder/text" coat >/dev/null
export STEPS=40 SEEDS="1 1@4" MODEL="--layers 1 --heads 2 --channels 32 --positions 32" TEXT=coat OMP_NUM_THREADS=1
export BATCH="--seq-len 32 --micro-batch 8 --batch-tokens 256 --threads 1" TRAINING="--lr 4e-3 --warmup 10"
export TEXTS="same=$folder/text_val.bin
    other=$folder/text_train.bin"
said=$(RECIPES="bf16 odd:coat,moments=bf16,grads=fp32" scripts/lab.py fidelity --out "$folder/small" 2>&1)
check "a study on the CPU, of a recipe with flags of training" $? "$said"
for run in bf16/1 odd/1 odd/1@4; do
    read -r loss same other < <(figures "$folder/small" bytes "${run%/*}" "${run#*/}" 'val_loss,on same,on other')
    [ -n "$loss" ] && [ "$loss" = "$same" ] && [[ $other = [0-9]* ]] && [ "$other" != "$loss" ]
    check "$run: its own loss on the text that it was validated on" $? "$loss $same $other"
done
exit $failures
