#!/usr/bin/env bash
# Tests the example of docs/finetuning.md: runs its commands, and checks their output and the number of right answers. Without
# TEST_LONG=yes (`make test-long`), it trains fewer steps and does not check the answers.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh
if [[ $build = *asan* ]] || ! command -v python3 >/dev/null; then
    echo "skip - the example of fine-tuning: sanitizers are too slow, or python3 is missing"
    exit 77
fi

block() { awk -v fence='```'"$1" '/^```/ { inside = $0 == fence; next } inside' docs/finetuning.md; }
block sh >"$folder/commands"
block python >"$folder/opened.py"
long=${TEST_LONG:-}
[ "$long" ] || sed -i 's/--steps 300/--steps 30/; s/step-00000300/step-00000030/; s/--epochs 60/--epochs 2/' "$folder/commands"
ln -s "$PWD"/{coat,data,dev} "$program" "$folder"
ln -s "$(realpath "$build")" "$folder/build"
export OMP_NUM_THREADS=1 # because the machine's cores may be busy
(cd "$folder" && bash -e commands) >"$folder/said" 2>&1; check "the commands of docs/finetuning.md succeed" $? "$(tail -n 5 "$folder/said")"

for line in '{"prompt": "' '1,501 examples, the longest' 'train .*13,509' 'examples .*108' ${long:+'length .*1,620 steps'}; do
    said=$(grep -m 1 "^$line" "$folder/said")
    grep -qxF -- "$said" docs/finetuning.md && [ -n "$said" ] && ok "the commands of docs/finetuning.md print: $said" || bad "the commands of docs/finetuning.md print: $line" "$said"
done
if [ "$long" ]; then
    read -r -d '' base bf16 coat _ < <(sed -n 's/^\([0-9]*\) of 99 right.*/\1/p' "$folder/said"; printf '\0')
    [ "${base:-99}" -le 2 ]; check "before fine-tuning, at most 2 of 99 answers are right" $? "$base of 99"
    [ "${bf16:-0}" -gt 89 ]; check "after fine-tuning in BF16, at least 90 of 99 answers are right" $? "$bf16 of 99"
    [ "${coat:-0}" -gt 89 ]; check "after fine-tuning in COAT, at least 90 of 99 answers are right" $? "$coat of 99"
else
    [ "$(grep -c '^[0-9]* of 99 right' "$folder/said")" -eq 3 ]; check "additions.py counts the right answers" $? "$(tail -n 3 "$folder/said")"
fi

if pytorch_tests "transformers writes the same answer"; then
    said=$(cd "$folder" && python3 -B opened.py 2>&1 | tail -n 1)
    text=$(python3 -c 'import json, sys; print(bytes(i for i in json.loads(sys.argv[1]) if i < 256).decode())' "$said" 2>&1)
    [ "$text" = "$(grep '^24+14=' "$folder/said" | tail -n 1)" ]
    check "transformers writes the same answer" $? "$said" "$text"
fi

# functions.py writes an example per function: the prompt is the head with its docstring, the response the body. Checks
# the examples of two source files.
said=$(python3 -B dev/tools/functions.py "$folder/functions.jsonl" data dev 2>&1) && python3 -B - "$folder/functions.jsonl" <<'PYTHON'
import ast
import json
import sys

records = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
sources = [open(path, encoding="utf-8").read() for path in ("data/prepare_masks.py", "data/prepare_chat.py")]
whole = [record["prompt"] + record["response"] for record in records]
names = [name for name in ("masked_file", "examples_of") if not any("def %s(" % name in text for text in whole)]
parts = [text for text in whole if any(text in source for source in sources)]
docs = [ast.get_docstring(ast.parse(text).body[0]) for text in parts if text.startswith("def ")]
sys.exit("missing: %s; %d functions of the two files, %s" % (names, len(parts), docs) if names or len(docs) < 3 or not all(docs) else 0)
PYTHON
[ $? -eq 0 ] && ok "functions.py makes examples: $(sed 's/.*: //' <<<"$said")" || bad "functions.py makes examples of functions" "$said"
said=$(python3 -B dev/tools/functions.py "$folder/none.jsonl" "$folder/none" 2>&1)
[ $? -eq 1 ] && [ "$said" = "error: $folder/none: no such folder" ]; check "functions.py names a missing folder in one line" $? "$said"
exit $failures
