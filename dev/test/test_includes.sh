#!/usr/bin/env bash
# Tests that dependencies between folders have one direction, for #includes and for symbols: there are no cycles, and
# only a backend includes a backend.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. dev/test/program_fixture.sh

# crossings TREE: prints "FOLDER OTHER FILE" for every FILE of FOLDER that includes a file of the folder OTHER; each
# program at the top of TREE counts as a folder
crossings() {
    (cd "$1" && find . -type f -printf '%P\n' && grep -rHoE '^[[:space:]]*#[[:space:]]*include[[:space:]]*("[^"]+"|<coat/[^>]+>)' --include='*.c' --include='*.h' --include='*.cu' --include='*.cuh' --include='*.cpp' .) |
        awk -F: '
            function folder(file) { return sub("/[^/]*$", "", file) ? file : "." }
            function plain(path) { while (sub("[^/]+/\\.\\./", "", path)) { } gsub("(^|/)\\./", "", path); return path }
            NF < 2 { is[$0]; next }
            {
                file = substr($1, 3)
                name = $2
                sub("^[^\"<]*[\"<]", "", name)
                sub("[\">].*", "", name)
                from = folder(file) == "." ? file : folder(file)
                to = plain(folder(file) "/" name)
                if (!(to in is)) to = name
                if (!(to in is)) to = "coat/" name
                if (!(to in is)) { print "nowhere nowhere " file ": " name; next }
                if (to ~ "/") to = folder(to)
                if (from != to) print from, to, file
            }' | sort -u
}
# circles CROSSINGS: prints the folders that form cycles, which tsort cannot sort
circles() { awk '{ print $1, $2 }' <<<"$1" | sort -u | tsort 2>&1 >/dev/null | sed -n '/loop/d; s/^tsort: //p' | paste -sd ' '; }

mkdir -p "$folder/tree"
cp -r coat data dev ./*.cu "$folder/tree"
found=$(crossings "$folder/tree")
[ "$(grep -c . <<<"$found")" -gt 50 ]; check "the test finds #includes" $? "$found"
wrong=$(sed -n 's/^nowhere nowhere //p' <<<"$found")
[ -z "$wrong" ]; check "every #include names an existing file" $? "$wrong"
found=$(grep -v '^nowhere' <<<"$found")
loop=$(circles "$found")
[ -z "$loop" ]; check "#includes of folders have no cycle" $? "$loop"
# misled CROSSINGS: prints the crossings that break docs/hacking.md's order of folders. Only a backend includes a
# backend. A backend includes only comm, io, files directly in coat/, config, numerics and base. Every other folder includes only
# folders of a later rank.
misled() {
    awk 'BEGIN {
            n = split("run save flags log model comm text io . config numerics base", step)
            for (i = 1; i <= n; i++)
                for (k = split(step[i], name, "|"); k > 0; k--) rank[name[k] == "." ? "coat" : "coat/" name[k]] = i
        }
        $1 !~ /^coat/ { next }
        $2 ~ /^coat\/(cpu|cuda)/ && $1 !~ /^coat\/(cpu|cuda)/ ||
            $1 ~ /^coat\/(cpu|cuda)/ && $2 in rank && $2 !~ /^coat$|comm|io|config|numerics|base/ ||
            $1 in rank && $2 in rank && rank[$2] <= rank[$1] || $1 in rank && !($2 in rank)' <<<"$1"
}
wrong=$(misled "$found")
[ -z "$wrong" ]; check "folders include only folders below them, and no backend" $? "$wrong"
wrong=$(awk '$1 ~ /^coat/ && $2 !~ /^coat/' <<<"$found")
[ -z "$wrong" ]; check "the program's modules include no test or tool" $? "$wrong"
wrong=$(awk '($1 ~ /^coat\/cpu/ && $2 ~ /^coat\/cuda/) || ($1 ~ /^coat\/cuda/ && $2 ~ /^coat\/cpu/)' <<<"$found")
[ -z "$wrong" ]; check "backends do not include each other" $? "$wrong"
# modules TREE: prints "MODULE OTHER" for the #includes among the modules of coat/text that read tokens. A module is a
# .c file and its .h file; data.*, data_about.c and data_loader.* count as one module.
modules() { grep -oHE '^#include "[^"/]+"' "$1"/coat/text/{data,data_about,data_loader,data_files,packing,mixture,permute}.* | sed -E 's|^.*/([a-z_]+)\.[ch]:#include "([a-z_]+)\.h"|\1 \2|; s/data_(about|loader)/data/g' | awk '$1 != $2' | sort -u; }
found=$(modules "$folder/tree")
loop=$(circles "$found")
[[ $found == *"data data_files"* && -z $loop ]]; check "#includes of the token reader have no cycle" $? "$loop" "$found"

# violations that the test must detect
while read -r file line; do
    echo "$line" >>"$folder/tree/coat/$file"
    [[ $(misled "$(crossings "$folder/tree")") == *"coat/$file"* ]]; check "the test detects $line in $file" $?
done <<'END'
model/plan.c #include "cpu/cpu_workspace.h"
run/report.c # include "cuda/device_check.h"
save/hf.c  #include <coat/cpu/cpu_kernels.h>
model/plan.h #include "log/log.h"
flags/config_parse.c #include "save/hf.h"
log/log.c #include "flags/flags.h"
config/shapes.c #include "model/plan.h"
base/error.c #include "numerics/rng.h"
text/data.c #include "comm/comm.h"
cpu/cpu_ops.c #include "run/run.h"
cuda/fp8/fp8_norm.cu #include "save/saver.h"
END
echo '#include "data.h"' >>"$folder/tree/coat/text/mixture.c"
[ -n "$(circles "$(modules "$folder/tree")")" ]; check "the test detects a cycle of modules" $?
echo '#include "save/checkpoint.h"' >>"$folder/tree/coat/model/arena.c"
[ -n "$(circles "$(crossings "$folder/tree")")" ]; check "the test detects a cycle of folders" $?

# --- symbols, which a header of another folder may declare

# takes FOLDER: prints "FOLDER OTHER OBJECT SYMBOL" for every symbol that an object below FOLDER uses from another
# folder
takes() {
    (cd "$1" && find coat -name '*.o' -exec nm -A -g {} +) | awk '
        function folder(file) { sub("/[^/]*$", "", file); return file }
        { file = $1; sub(":.*", "", file) }
        $2 ~ /^[Uvw]$/ { object[++n] = file; symbol[n] = $3; next }
        { home[$3] = folder(file) }
        END {
            for (i = 1; i <= n; i++)
                if (symbol[i] in home && folder(object[i]) != home[symbol[i]])
                    print folder(object[i]), home[symbol[i]], object[i], symbol[i]
        }'
}
# upward FOLDER: prints forbidden uses of symbols. coat/model may ask both backends for the size of their workspace
# (ops.h).
upward() {
    local found
    found=$(takes "$1" | grep -vE '^coat/model coat/(cpu|cuda) .* (cpu|cuda)_workspace$')
    misled "$found"
    awk '$1 ~ /^coat\/cpu/ && $2 ~ /^coat\/cuda/ || $1 ~ /^coat\/cuda/ && $2 ~ /^coat\/cpu/' <<<"$found"
}
mkdir "$folder/objects"
for source in coat/*.c coat/*/*.c coat/*/*/*.c; do # ignores objects of source files that no longer exist
    (cd "$build/cpu" 2>/dev/null && cp --parents "${source%.c}.o" "$folder/objects" 2>/dev/null)
done
if [ ! -d "$folder/objects/coat" ] || ! command -v nm >"$folder/nm"; then
    echo "skip - symbols: nothing is compiled in $build/cpu, or there is no nm"
    exit $failures
fi
[ "$(takes "$folder/objects" | grep -c .)" -gt 50 ]; check "the test finds symbols" $?
wrong=$(upward "$folder/objects")
[ -z "$wrong" ]; check "folders call only folders below them, and no backend" $? "$wrong"
while read -r file symbol; do
    echo "void $symbol(void); void upward(void) { $symbol(); }" | "${CC:-gcc}" -x c -c -o "$folder/objects/coat/$file.o" -
    [[ $(upward "$folder/objects") == *"coat/$file.o $symbol"* ]]; check "the test detects a call of $symbol in $file" $?
    rm -f "$folder/objects/coat/$file.o"
done <<'END'
model/upward config_check
save/upward cpu_ops
flags/upward checkpoint_steps
config/upward flag_find
base/upward moments_load
cpu/upward cuda_workspace
cpu/upward checkpoint_steps
upward json_read_object
END
exit $failures
