#!/bin/bash
# readme.sh -- README.md and docs/ against the program. The YAML that README.md gives a new user passes `croll config` and
# `croll plan`; every file that is named exists; every `croll COMMAND --option` is in that command's help; every
# `key: value` is a key of the schema; every metric is one that the sources can write; every other name in
# back quotes with an underscore is a word of the sources. FILE.. as arguments: only these pages are looked at.
# Not covered: sentences without names; whether a run writes the metric; running the YAML (its model and data are not
# here).
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sed -n '/^```yaml/,/^```/p' README.md | grep -v '^```' > "$folder/my.yaml"
[ -s "$folder/my.yaml" ] || { echo "README.md has no yaml block"; exit 1; }
"$CROLL" config "$folder/my.yaml" > "$folder/config" 2> "$folder/said" || { cat "$folder/said"; exit 1; }
mkdir "$folder/model"
cat > "$folder/model/config.json" <<'END'
{"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":100,"hidden_size":64,"intermediate_size":96,
 "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":512,"rms_norm_eps":1e-6}
END
"$CROLL" plan "$folder/my.yaml" pretrain="$folder/model" --memory 80GB > "$folder/plan" || exit 1
# every command of `croll --help` has --help with an example
"$CROLL" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p' > "$folder/commands"
[ "$(wc -l < "$folder/commands")" -ge 12 ] || { echo "croll --help lists too few commands"; exit 1; }
while read -r command; do
    "$CROLL" "$command" --help > "$folder/help.$command"
    grep -A 1 '^example:' "$folder/help.$command" | grep -q "croll $command" ||
        { echo "croll $command --help has no example"; exit 1; }
done < "$folder/commands"

# ids that errors begin with are explained
for id in $(git grep -hoE '"[MU][0-9]+: ' -- '*.c' | grep -oE '[MU][0-9]+' | sort -u); do
    grep -q "^| $id | " docs/rules.md || { echo "docs/rules.md does not explain $id"; exit 1; }
done

pages=${*:-README.md docs/*.md examples/*/README.md}
bad=0
missing() { echo "$page: $*"; bad=1; }
git ls-files '*.c' '*.h' | grep -vE '^(tests|bench|jinja|models|kernels|mesh|rewards/math)/' | xargs cat > "$folder/sources"
# what metrics may be called: text literals with a slash, %s and the like standing for anything
grep -o '"[^"]*/[^"]*"' "$folder/sources" | tr -d '"' | sed 's/[.+*^$[(){}|\\]/\\&/g; s/%[-0-9.]*l*[a-z]/.+/g' |
    grep -E '^[^ ]+$' | sort -u > "$folder/formats"
grep -v '^\.+' "$folder/formats" > "$folder/metrics"
grep '^\.+/' "$folder/formats" > "$folder/metrics_of_a_prefix" # whose first part is a text of its own
[ "$(wc -l < "$folder/metrics")" -ge 40 ] || { echo "too few metrics in the sources"; exit 1; }
git ls-files '*.c' '*.h' '*.sh' '*.yaml' '*.py' '*.inc' '*.txt' scripts | xargs cat | grep -oE '[A-Za-z_][A-Za-z0-9_]*' | sort -u > "$folder/words"
grep -ohE '^ *\{ *"[^"]*", *"[^"]+"|^ *[A-Z_]+\( *"?[a-z_]*"?, *"?[a-z_]+"?' configs/*.c | grep -oE '[a-z][a-z_0-9]*"?$' | tr -d '"' | sort -u > "$folder/keys"
[ "$(wc -l < "$folder/keys")" -ge 100 ] || { echo "too few keys in configs/"; exit 1; }

metric() { # is NAME, or NAME without its last part, one that the sources write?
    local name=$1
    [[ $name == X/* ]] && name=${name#X} && { grep -qE -- "$(echo "$name" | sed "s/X/.+/g")" "$folder/formats"; return; } # any prefix
    while :; do
        echo "$name" | grep -qxE -f "$folder/metrics" && return 0
        grep -qF "\"${name%%/*}\"" "$folder/sources" && echo "$name" | grep -qxE -f "$folder/metrics_of_a_prefix" && return 0
        echo "time/$name/total" | grep -qxE -f "$folder/metrics" && [[ $name =~ ^(actor_train|actor_infer|reference|teacher)/[a-z_]*$ ]] && return 0 # a phase
        case $name in */*/*) name=${name%/*} ;; *) return 1 ;; esac
    done
}
for page in $pages; do
    # without blocks of code: words in back quotes; links
    sed '/^```/,/^```/d' "$page" | grep -o '`[^`]*`' | tr -d '`' | sort -u > "$folder/quoted"
    here=$(dirname "$page")
    for path in $(grep -o '](\([^)#:]*\))' "$page" | tr -d ']()'); do
        [ -e "$here/$path" ] || missing "the link $path leads nowhere"
    done
    for path in $(grep -oE '(^|[ `(])\.?(actors|base|bench|configs|docs|examples|exchange|kernels|mesh|models|moe|rl|scripts|strategies|tests|ulysses|\.ci)/[A-Za-z0-9_./*-]*[A-Za-z0-9_*]' "$page" | tr -d ' `(' | sort -u); do
        case $path in models/Qwen* | models/Smol* | examples/gsm8k/*.jsonl | exchange/*.json) continue ;; esac # downloaded, or of a run
        compgen -G "$path" > /dev/null || compgen -G "$path.*" > /dev/null || missing "there is no $path"
    done
    # commands and their options, in blocks of code, too
    grep -oE 'croll [a-z]+( [^`|]*)?' "$page" | sort -u > "$folder/calls"
    while read -r _ command rest; do
        [ -f "$folder/help.$command" ] || continue # "croll reads .."
        for option in $(echo "$rest" | grep -oE '(^| )--[a-z][a-z-]*'); do
            grep -q -- "$option" "$folder/help.$command" || missing "croll $command has no $option"
        done
    done < "$folder/calls"
    while IFS= read -r name; do
        case $name in
        */*/* | actor/* | critic/* | token/* | time/* | system/* | memory/* | scheduler/* | rewards/* | val_*/* | sft_*/* | actor_*/*)
            [[ $name == *[![:alnum:]_/.@{},\<\>-]* ]] && continue # no name but a path with spaces or a formula
            [ -e "$name" ] || [[ $name == */ ]] || [[ $name =~ ^(models|Qwen|HuggingFaceTB|tests|docs|scripts|configs|output|examples|bench|build|kernels|mesh|actors|data|rl|unit|e2e|checkpoint-|flight|exchange|\.|/) ]] && continue
            for one in $(eval "echo $(echo "$name" | sed 's/<[^>]*>/X/g')"); do
                metric "$one" || missing "no source writes the metric $one"
            done
            ;;
        *:\ *)
            key=${name%%:*}
            [[ $key =~ ^[a-z_0-9.]+$ ]] || continue
            grep -qx "${key##*.}" "$folder/keys" || grep -qx "${key##*.}" "$folder/words" || missing "no key $key"
            ;;
        *)
            [[ $name =~ ^[a-z][a-z0-9]*(_[a-z0-9]+)+$ ]] || continue
            grep -qx "$name" "$folder/words" || missing "nothing is called $name"
            ;;
        esac
    done < "$folder/quoted"
done
exit $bad
