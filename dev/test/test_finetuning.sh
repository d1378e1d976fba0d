#!/usr/bin/env bash
# The example of docs/finetuning.md: its commands as they stand there, what they say, and how many answers are right.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh
if [[ $build = *asan* ]] || ! command -v python3 >/dev/null; then
    echo "skip - the example of fine-tuning: under sanitizers it takes too long, and without python3 there is none"
    exit 77
fi

block() { awk -v fence='```'"$1" '/^```/ { inside = $0 == fence; next } inside' docs/finetuning.md; }
block sh >"$folder/commands"
block python >"$folder/opened.py"
ln -s "$PWD"/{coat,data,dev} "$program" "$folder"
ln -s "$(realpath "$build")" "$folder/build"
export OMP_NUM_THREADS=1 # the machine's cores may be busy
(cd "$folder" && bash -e commands) >"$folder/said" 2>&1 && ok "the commands run" || bad "the commands run" "$(tail -n 5 "$folder/said")"

for line in '{"prompt": "' '1,501 examples, the longest' 'train .*13,509' 'examples .*108' 'length .*810 steps'; do
    said=$(grep -m 1 "^$line" "$folder/said")
    grep -qxF -- "$said" docs/finetuning.md && [ -n "$said" ] && ok "they say: $said" || bad "they say: $line" "$said"
done
read -r -d '' base bf16 coat _ < <(sed -n 's/^\([0-9]*\) of 99 right.*/\1/p' "$folder/said"; printf '\0')
[ "${base:-99}" -le 2 ] && ok "$base of 99 answers are right before" || bad "answers before" "$base of 99"
[ "${bf16:-0}" -gt 89 ] && ok "$bf16 after, in BF16" || bad "answers after, in BF16" "$bf16 of 99"
[ "${coat:-0}" -gt 89 ] && ok "$coat after, in COAT" || bad "answers after, in COAT" "$coat of 99"

if python3 -c 'import torch, transformers as t; exit([*map(int, t.__version__.split(".")[:2])] < [4, 56])' 2>/dev/null; then
    said=$(cd "$folder" && python3 -B opened.py 2>&1 | tail -n 1)
    text=$(python3 -c 'import json, sys; print(bytes(i for i in json.loads(sys.argv[1]) if i < 256).decode())' "$said" 2>&1)
    [ "$text<|endoftext|>" = "$(grep '^24+14=' "$folder/said" | tail -n 1 | sed 's/\(<|endoftext|>\).*/\1/')" ] &&
        ok "transformers writes the same answer: $text" || bad "transformers writes the same answer" "$said" "$text"
else
    echo "skip - transformers writes the same answer: Python has no torch, or no transformers from 4.56 on"
fi
exit $failures
