/* shapes.c -- see shapes.h. Their numbers of parameters: tests/e2e/plan_roll.sh. */
#include "plan/shapes.h"
#include "base/base.h"

#include <stdbool.h>
#include <string.h>

typedef enum family { QWEN2, QWEN3, QWEN3_MOE, LLAMA } family;

static const struct {
    const char *architecture, *model_type;
} families[] = {[QWEN2] = {"Qwen2ForCausalLM", "qwen2"},
                [QWEN3] = {"Qwen3ForCausalLM", "qwen3"},
                [QWEN3_MOE] = {"Qwen3MoeForCausalLM", "qwen3_moe"},
                [LLAMA] = {"LlamaForCausalLM", "llama"}};

/* Base, -Base and -Instruct models of a size have one shape. */
static const struct shape {
    const char *name;
    family family;
    int hidden, layers, heads, kv_heads, head_dim, mlp, vocab;
    bool is_tied;
    int num_experts, num_chosen, expert_mlp;
    int positions;
} shapes[] = {
    {"Qwen/Qwen3-0.6B", QWEN3, 1024, 28, 16, 8, 128, 3072, 151936, true, 0, 0, 0, 40960},
    {"Qwen/Qwen3-1.7B", QWEN3, 2048, 28, 16, 8, 128, 6144, 151936, true, 0, 0, 0, 40960},
    {"Qwen/Qwen3-4B", QWEN3, 2560, 36, 32, 8, 128, 9728, 151936, true, 0, 0, 0, 40960},
    {"Qwen/Qwen3-8B", QWEN3, 4096, 36, 32, 8, 128, 12288, 151936, false, 0, 0, 0, 40960},
    {"Qwen/Qwen3-14B", QWEN3, 5120, 40, 40, 8, 128, 17408, 151936, false, 0, 0, 0, 40960},
    {"Qwen/Qwen3-32B", QWEN3, 5120, 64, 64, 8, 128, 25600, 151936, false, 0, 0, 0, 40960},
    {"Qwen/Qwen3-30B-A3B", QWEN3_MOE, 2048, 48, 32, 4, 128, 6144, 151936, false, 128, 8, 768,
     40960},
    {"Qwen/Qwen3-235B-A22B", QWEN3_MOE, 4096, 94, 64, 4, 128, 12288, 151936, false, 128, 8, 1536,
     40960},
    {"Qwen/Qwen2.5-0.5B", QWEN2, 896, 24, 14, 2, 64, 4864, 151936, true, 0, 0, 0, 32768},
    {"Qwen/Qwen2.5-1.5B", QWEN2, 1536, 28, 12, 2, 128, 8960, 151936, true, 0, 0, 0, 32768},
    {"Qwen/Qwen2.5-3B", QWEN2, 2048, 36, 16, 2, 128, 11008, 151936, true, 0, 0, 0, 32768},
    {"Qwen/Qwen2.5-7B", QWEN2, 3584, 28, 28, 4, 128, 18944, 152064, false, 0, 0, 0, 32768},
    {"virtuoussy/Qwen2.5-7B-Instruct-RLVR", QWEN2, 3584, 28, 28, 4, 128, 18944, 152064, false, 0, 0,
     0, 32768}, /* the judge of ROLL's files */
    {"Qwen/Qwen2.5-72B", QWEN2, 8192, 80, 64, 8, 128, 29568, 152064, false, 0, 0, 0, 32768},
    {"meta-llama/Meta-Llama-3-8B", LLAMA, 4096, 32, 32, 8, 128, 14336, 128256, false, 0, 0, 0,
     8192},
    {"meta-llama/Meta-Llama-3-70B", LLAMA, 8192, 80, 64, 8, 128, 28672, 128256, false, 0, 0, 0,
     8192},
    {"meta-llama/Llama-3.1-8B", LLAMA, 4096, 32, 32, 8, 128, 14336, 128256, false, 0, 0, 0, 131072},
    {"meta-llama/Llama-3.1-70B", LLAMA, 8192, 80, 64, 8, 128, 28672, 128256, false, 0, 0, 0,
     131072},
    {"meta-llama/Llama-3.1-405B", LLAMA, 16384, 126, 128, 8, 128, 53248, 128256, false, 0, 0, 0,
     131072},
};

static bool is_name(const struct shape *s, const char *name)
{
    static const char *const endings[] = {"", "-Base", "-Instruct"};
    size_t n = strlen(s->name);

    for (size_t i = 0; i < CR_COUNT(endings); i++)
        if (strncmp(name, s->name, n) == 0 && strcmp(name + n, endings[i]) == 0) return true;
    return false;
}

static json_t *config_of(const struct shape *s)
{
    json_t *c = json_pack("{s:[s],s:s}", "architectures", families[s->family].architecture,
                          "model_type", families[s->family].model_type);
    const struct {
        const char *key;
        int value;
    } numbers[] = {{"hidden_size", s->hidden},
                   {"num_hidden_layers", s->layers},
                   {"num_attention_heads", s->heads},
                   {"num_key_value_heads", s->kv_heads},
                   {"head_dim", s->head_dim},
                   {"intermediate_size", s->mlp},
                   {"vocab_size", s->vocab},
                   {"max_position_embeddings", s->positions},
                   {"num_experts", s->num_experts},
                   {"num_experts_per_tok", s->num_chosen},
                   {"moe_intermediate_size", s->expert_mlp}};

    for (size_t i = 0; i < CR_COUNT(numbers); i++)
        if (numbers[i].value)
            json_object_set_new(c, numbers[i].key, json_integer(numbers[i].value));
    json_object_set_new(c, "tie_word_embeddings", json_boolean(s->is_tied));
    json_object_set_new(c, "rms_norm_eps", json_real(s->family == LLAMA ? 1e-5 : 1e-6));
    json_object_set_new(c, "rope_theta", json_real(s->family == LLAMA ? 5e5 : 1e6));
    json_object_set_new(c, "hidden_act", json_string("silu"));
    json_object_set_new(c, "torch_dtype", json_string("bfloat16"));
    if (s->num_experts) {
        json_object_set_new(c, "norm_topk_prob", json_true());
        json_object_set_new(c, "decoder_sparse_step", json_integer(1));
        json_object_set_new(c, "mlp_only_layers", json_array());
    }
    return c;
}

json_t *cr_shape_config(const char *name)
{
    for (size_t i = 0; i < CR_COUNT(shapes); i++)
        if (is_name(&shapes[i], name)) return config_of(&shapes[i]);
    return NULL;
}
