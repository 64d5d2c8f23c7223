#!/bin/sh
# readme.sh -- the YAML that README.md gives a new user passes `croll config` and `croll plan` as it is.
# Not covered: running it (it names a model and data that are not here).
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
    "$CROLL" "$command" --help | grep -A 1 '^example:' | grep -q "croll $command" ||
        { echo "croll $command --help has no example"; exit 1; }
done < "$folder/commands"
