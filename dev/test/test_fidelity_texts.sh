#!/usr/bin/env bash
# Tests scripts/lab.py fidelity with TEXTS. With a program that only pretends to evaluate: every value is in its row and
# column, and no run is evaluated or trained twice. With the real one: a run's loss on the validation text, given in
# TEXTS, is its validation loss.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. dev/test/fidelity_fixture.sh

wiki=$folder/wiki_train_000000.bin
head -c 400000 /dev/zero >"$wiki" # three micro-batches of 65,536 tokens
head -c 140000 /dev/zero >"$folder/c4.bin"
rows_of() { grep -E '^\| (text|wiki|c4|more) \||^- (not evaluated|text) ' "$1/fidelity.md"; } # STUDY

# --- dry runs and errors
said=$(TEXTS="wiki=w* c4=b/c.bin" SEEDS="1 2@16" scripts/lab.py fidelity --dry-run --out "$folder/dry" a v 2>&1)
check "--dry-run with TEXTS succeeds" $? "$said"
has "--dry-run prints the evaluation of a text in the run's recipe" "$said" 'train_gpt2_fp8 --eval-only --model [^ ]*/dry/262k/coat/1/step-00000400 --recipe coat --master split16 --micro-batch 64 --val .w\*. --val-batches 32 --quiet --json'
has "--dry-run prints the evaluation of a text with the run's micro-batch" "$said" '/dry/262k/bf16/2@16/step-00000400 --recipe bf16 .* --micro-batch 16 --val b/c\.bin --val-batches 128 '
[ "$(grep -c -- --eval-only <<<"$said")" -eq 8 ] && [ ! -e "$folder/dry" ]
check "--dry-run evaluates each run on each text, and writes nothing" $? "$said"
with_texts() { env TEXTS="$1" BIN="$folder/pretend" PATH="$folder/gpus:$path" scripts/lab.py fidelity --out "$folder/refused" "$folder/train*" "$folder/val"; } # TEXTS
refuses "TEXTS without a name is refused" 'TEXTS: =x: must be NAME=GLOB' with_texts =x
refuses "TEXTS without a pattern is refused" 'TEXTS: wiki=: must be NAME=GLOB' with_texts wiki=
refuses "TEXTS with only a name is refused" 'TEXTS: wiki: must be NAME=GLOB' with_texts "c4=$folder/c4.bin wiki"
refuses "TEXTS with an invalid name is refused" 'TEXTS: a/b=x: must be NAME=GLOB' with_texts a/b=x
refuses "TEXTS with a name that breaks a table is refused" 'TEXTS: a\|b=x: must be NAME=GLOB' with_texts 'a|b=x'
refuses "TEXTS with the same name twice is refused" 'TEXTS: wiki: two texts' with_texts 'wiki=a wiki=b'
refuses "TEXTS with a pattern without files is refused" 'TEXTS: wiki: no file matches nothing\*; make token files with data/prepare\.py' with_texts 'wiki=nothing*'
refuses "a text shorter than a micro-batch is refused" 'TEXTS: short: is too short for 262k, whose micro-batches read 65536 tokens' with_texts "short=$folder/val"

# --- on two pretended GPUs
export TEXTS="wiki=$folder/wiki_train* c4=$folder/c4.bin"
said=$(pretend "bf16 coat" "1 1@16 3" 262k)
check "a study with two texts succeeds" $? "$said"
[ "$(sort "$folder/calls.texts")" = "$(for seed in 1@16 1@64 3@64; do
    batches=$([ $seed = 1@16 ] && echo "12 4" || echo "3 1")
    for recipe in bf16 coat; do echo "$recipe $seed in $recipe: ${batches% *} of wiki_train*"; echo "$recipe $seed in $recipe: ${batches#* } of c4.bin"; done
done | sort)" ]
check "every run is evaluated on each text once, in its recipe and micro-batch" $? "$(cat "$folder/calls.texts")"
[ "$(figures "$folder/study" 262k coat 3 'on wiki,on c4')" = "3.605 4" ] && [ "$(grep -c $'^262k\tcoat\t3\t' "$folder/study/fidelity.tsv")" -eq 1 ]
check "fidelity.tsv has a column per text" $? "$(cat "$folder/study/fidelity.tsv")"
page=$(cat "$folder/study/fidelity.md")
has "the page has loss, perplexity and difference with standard error of a text" "$page" '^\| wiki \| 3\.4333 \| 30\.980 \| 3\.4910 \| 32\.819 \| \+1\.67 ± 0\.67 % \|$'
has "the page has a difference of 0 between equal losses on a text" "$page" '^\| c4 \| 4\.0000 \| 54\.598 \| 4\.0000 \| 54\.598 \| \+0\.00 ± 0\.00 % \|$'
has "the table of texts has a column per recipe" "$page" '^\| text \| bf16, loss \| perplexity \| coat, loss \| perplexity \| difference \|$'
has "the page describes the texts of TEXTS" "$page" '^- text wiki: `wiki_train\*`, 400000 bytes$'
has "the page has the command with TEXTS, without folders" "$page" "^    RECIPES='bf16 coat' SEEDS='1 1@16 3' TEXTS='wiki=wiki_train\* c4=c4\.bin' STEPS=20 scripts/lab\.py fidelity "
! grep -qF "$folder" <<<"$page" && ! grep -q 'not evaluated' <<<"$page"
check "the page has no absolute path and misses no evaluation" $? "$page"
[ -z "$(find "$folder/study" -name 'step-*')" ]
check "a finished study with texts leaves no checkpoint" $? "$(find "$folder/study")"
mkdir "$folder/copy" "$folder/bare"
cp "$folder/study/fidelity.tsv" "$folder/copy"
sed '/^# text/d; /^#/!s/\t[^\t]*\t[^\t]*$//' "$folder/study/fidelity.tsv" >"$folder/bare/fidelity.tsv" # without the last two columns
scripts/lab.py fidelity --page-only --out "$folder/copy" >/dev/null 2>&1 && diff <(page_of "$folder/study") <(page_of "$folder/copy") >"$folder/difference"
check "--page-only on a copy writes the same page" $? "$(cat "$folder/difference")"
scripts/lab.py fidelity --page-only --out "$folder/bare" >/dev/null 2>&1 && ! grep -q '^| text\|further texts\|^- text' "$folder/bare/fidelity.md" &&
    diff <(page_of "$folder/bare") <(page_of "$folder/study" | sed '/^| text/,/^This table evaluates/d' | cat -s) >"$folder/difference"
check "--page-only on results without texts writes the same page without the table of texts" $? "$(cat "$folder/difference")"

# a vision-language model
cp "$folder/c4.bin" "$folder/asked.bin"
said=$(TEXTS="asked=$folder/asked.bin c4=$folder/c4.bin" pretend "bf16 coat" "1 3" vision) && page=$(cat "$folder/study/fidelity.md")
has "the table of texts has a column of right answers per recipe" "$page" '^\| text \|.* difference \| bf16, right answers \| coat, right answers \|$'
has "the page has the mean of right answers with standard deviation" "$page" '^\| asked \|.* \| 92\.0 ± 1\.4 % \| 92\.0 ± 1\.4 % \|$'
has "the table of texts has no right answers for a text without answers" "$page" '^\| c4 \|.* \| – \| – \|$'

# adds a text to a finished study, whose runs cannot be evaluated any more, because their checkpoints were removed
mv "$folder/calls" "$folder/calls.before"
rm "$folder/calls.texts"
TEXTS+=" more=$folder/c4.bin"
said=$(EVALUATE=bf16 pretend "bf16 coat" "1 3" 262k)
[ $? -eq 0 ] && [ ! -e "$folder/calls" ] && [ ! -e "$folder/calls.texts" ]
check "another text does not train or evaluate finished runs" $? "$said"
has "finished runs without the new text are listed" "$said" '^note: not evaluated on more: 262k bf16 1, 262k coat 1, 262k bf16 3, 262k coat 3; these runs ended earlier, and their checkpoints are deleted; use another --out to train them again$'
has "finished runs without a recipe of EVALUATE are listed" "$said" '^note: not evaluated in bf16: 262k bf16 1, 262k coat 1, '
[ "$(grep -c '^note' <<<"$said")" -eq 2 ]
check "finished runs are not listed for texts on which they were evaluated" $? "$said"
said=$(EVALUATE=bf16 pretend "bf16 coat,head=fp8" "1 5" 262k)
[ $? -eq 0 ] && [ "$(grep -c . "$folder/calls")" -eq 3 ]
check "new runs are evaluated on texts and in another recipe" $? "$said" "$(cat "$folder/calls")"
[ "$(figures "$folder/study" 262k bf16 5 'ended,steps,val_loss,in bf16,on wiki,on c4,on more')" = "done 20 3.06 3 3.5 4 4" ]
check "new runs are evaluated on all texts" $? "$(cat "$folder/study/fidelity.tsv")"
[ "$(figures "$folder/study" 262k coat,head=fp8 1 'ended,on wiki,on c4,on more')" = "diverged - - -" ]
check "diverged runs are not evaluated" $? "$(cat "$folder/study/fidelity.tsv")"
rows=$(rows_of "$folder/study")
has "the mean loss on a text is over the runs that were evaluated on the text" "$rows" '^\| more \| 4\.0000 \| 54\.598 \| – \| – \| – \|$'
has "the table of texts omits a diverged recipe" "$rows" '^\| text \| bf16, loss \| perplexity \| coat, loss \| perplexity \| difference \|$'
has "the page lists runs that were not evaluated on a text" "$rows" '^- not evaluated on more: bf16 1, bf16 1@16, bf16 3, coat 1, coat 1@16, coat 3$'
said=$(TEXTS="wiki=$folder/c4.bin" pretend "bf16 coat" 7 262k)
[ $? -eq 1 ] && grep -q "^error: text wiki: .*study.* 'wiki_train\*, 400000 bytes', .* 'c4.bin, 140000 bytes'; choose another name$" <<<"$said"
check "a text name with other files is refused" $? "$said"

# an evaluation that fails
rm "$folder/calls"
said=$(TEXTS="c4=$folder/c4.bin wiki=$folder/wiki_train*" LOST=wiki pretend "bf16" 9 262k)
[ $? -eq 1 ] && grep -q '^failed: 262k, bf16, seed 9, evaluated on wiki, status 3: the GPU is lost' <<<"$said" && [ -z "$(figures "$folder/study" 262k bf16 9)" ]
check "a failed evaluation of a text is reported" $? "$said"
[ -e "$folder/study/262k/bf16/9/step-00000020" ]
check "a failed evaluation of a text keeps the checkpoint" $? "$(ls "$folder/study/262k/bf16/9")"
rm "$folder/calls"
said=$(pretend bf16 9 262k)
[ $? -eq 0 ] && [ ! -e "$folder/calls" ] && [ "$(figures "$folder/study" 262k bf16 9 'on wiki')" = 3.5 ]
check "a failed evaluation of a text is repeated without training" $? "$said"

# --- the pages of the results in the repository
for study in scripts/results/fidelity*; do
    cp -r "$study" "$folder/published" && rm "$folder/published/fidelity.md"
    scripts/lab.py fidelity --page-only --out "$folder/published" >/dev/null 2>&1
    diff <(sed '2s/^[0-9-]*//' "$study/fidelity.md") <(sed '2s/^[0-9-]*//' "$folder/published/fidelity.md") >"$folder/difference" && [ -s "$study/fidelity.md" ]
    check "scripts/results: the script still writes $study, apart from the date" $? "$(cat "$folder/difference")"
    rm -r "$folder/published"
done

# --- small models on the CPU: the validation text, given in TEXTS, has the validation loss
"$BUILD/prepare_bytes" --out "$folder/text" coat >/dev/null
export STEPS=40 SEEDS="1 1@4" MODEL="--layers 1 --heads 2 --channels 32 --positions 32" TEXT=coat OMP_NUM_THREADS=1
export BATCH="--seq-len 32 --micro-batch 8 --batch-tokens 256 --threads 1" TRAINING="--lr 4e-3 --warmup 10"
export TEXTS="same=$folder/text_val.bin
    other=$folder/text_train.bin"
said=$(RECIPES="bf16 odd:coat,moments=bf16,grads=fp32" scripts/lab.py fidelity --out "$folder/small" 2>&1)
check "a study on the CPU with texts and flags succeeds" $? "$said"
for run in bf16/1 odd/1 odd/1@4; do
    read -r loss same other < <(figures "$folder/small" bytes "${run%/*}" "${run#*/}" 'val_loss,on same,on other')
    [ -n "$loss" ] && [ "$loss" = "$same" ] && [[ $other = [0-9]* ]] && [ "$other" != "$loss" ]
    check "$run has its validation loss on the validation text" $? "$loss $same $other"
done
exit $failures
