#!/usr/bin/env bash
# The table at the end of `make bench`: a line for every operation that a benchmark has timed, in each of their formats.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh

table=$(awk -f scripts/bench_table.awk <<'LINES' | sed '1,/^== every operation/d; s/  */ /g'
== build/bench_kernels_gpu
ceiling: device copy of 1.1 GB, 4204 GB/s read and written

GPT-2 1558M, 16384 tokens
activation_forward                     16384 x 6400      0.1148 ms     419.4 MB    3654 GB/s   87.0 %   89.0 %
== build/bench_attention_gpu
GPT-2 124M   B 64 T 1024 heads 12/12 of  64  forward   0.337 ms  306 TFLOP/s 38.9 %  backward   0.796 ms  324 TFLOP/s 41.2 %  ok
== build/bench_head_gpu
| model | tokens | chunk | logits, ms (TFLOP/s, of ceiling) | loss, ms (GB/s, of copy) | sum, ms |
| --- | --- | --- | --- | --- | --- |
| 124M | 65536 | 4096 | 7.12 (711, 50 %) | 1.83 (3500, 83 %) | 8.95 |
== build/bench_group_scaling_gpu
| tensor | plain maximum, ms | read, of the copy bandwidth | from row maxima, ms (read, of a copy as short) |
| --- | --- | --- | --- |
| 4096 x 8192 | 0.025 | 2648 GB/s, 63 % | 0.0065 (5.1 GB/s, 94 %) |
LINES
)
has() { if grep -qxF "$2" <<<"$table"; then ok "$1"; else bad "$1" "$table"; fi; } # NAME LINE
has "a kernel's line, with its model" "kernels 1558M activation_forward 16384 x 6400 0.1148 ms 3654 GB/s 87.0 %"
has "two in a line: the first" "attention GPT-2 124M B 64 T 1024 heads 12/12 of 64 forward 0.337 ms 306 TFLOP/s 38.9 %"
has "and the second" "attention GPT-2 124M B 64 T 1024 heads 12/12 of 64 backward 0.796 ms 324 TFLOP/s 41.2 %"
has "a row of Markdown: a product" "head 124M 65536 4096 logits 7.12 ms 711 TFLOP/s 50 %"
has "and what is bound by memory" "head 124M 65536 4096 loss 1.83 ms 3500 GB/s 83 %"
has "a time whose rate is in the next column" "group_scaling 4096 x 8192 plain maximum 0.025 ms 2648 GB/s 63 %"
has "and one with its own" "group_scaling 4096 x 8192 from row maxima 0.0065 ms 5.1 GB/s 94 %"
if [ "$(wc -l <<<"$table")" = 7 ]; then ok "and nothing else"; else bad "and nothing else" "$table"; fi
exit $failures
