#!/usr/bin/env bash
# Runs the example of docs/vision.md. At least 90 % of the answers about unseen images must be right, and at most 35 % of
# those about empty images.
cd "$(dirname "$0")/../.." || exit 1
. dev/test/program_fixture.sh
needs_python "the example of docs/vision.md"

commands=$(sed -n '/^```sh$/,/^```$/{/^```/!p}' docs/vision.md)
commands=${commands//runs\/shapes/$folder}
bash -ec "${commands//.\/train_gpt2_fp8_cpu/$program}" >"$folder/said" 2>&1
check "the example of docs/vision.md runs" $? "$(tail -5 "$folder/said")"
mapfile -t right < <(sed -n 's/.*, \([0-9.]*\) % of answers right.*/\1/p' "$folder/said" | tail -n 2)
awk -v unseen="${right[0]:-0}" -v empty="${right[1]:-100}" 'BEGIN { exit !(unseen >= 90 && empty <= 35) }'
check "at least 90 % of answers about unseen images are right (${right[0]:-no} %), and at most 35 % about empty images (${right[1]:-no} %)" $? "$(tail -5 "$folder/said")"
exit $failures
