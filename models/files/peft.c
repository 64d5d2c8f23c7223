/* peft.c -- adapter_config.json, read and written (see peft.h). */
#include "models/files/peft.h"

#include "base/hub.h"
#include "base/json.h"

#include <math.h>
#include <string.h>
#include <strings.h>

enum { MAX_RANK = 1 << 16 };

#define MERGE_IT                                                                             \
    "let PEFT merge the adapter into its model (merge_and_unload, save_pretrained) and use " \
    "that model"

char *cr_peft_tensor_name(const char *param_name)
{
    return cr_asprintf("base_model.model.%s", param_name);
}

/* ---- reading ---- */

/* That have no part in the numbers of a trained adapter, or are read. */
static bool is_known(const char *key)
{
    static const char *const keys[] = {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "inference_mode",
        "loftq_config",
        "lora_alpha",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "r",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
        "use_rslora",
    };

    for (size_t i = 0; i < CR_COUNT(keys); i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return false;
}

static bool is_text(const json_t *v, const char *text)
{
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

/* As it is without the feature that the key stands for. */
static bool is_unset(const char *key, const json_t *v)
{
    if (strcmp(key, "bias") == 0 && is_text(v, "none")) return true;
    if (strcmp(key, "init_lora_weights") == 0 && (json_is_boolean(v) || is_text(v, "gaussian")))
        return true;
    return json_is_null(v) || json_is_false(v) || is_text(v, "") ||
           (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

static cr_status check_keys(json_t *config, cr_err *err)
{
    const json_t *type = json_object_get(config, "peft_type");
    const char *key;
    json_t *v;

    if (!json_is_object(config)) return cr_fail(err, CR_EFORMAT, "expected an object");
    if (!is_text(type, "LORA"))
        return cr_fail(err, CR_EABSENT, "peft_type is %.40s, and only LORA is available: " MERGE_IT,
                       json_is_string(type) ? json_string_value(type) : "missing");
    json_object_foreach(config, key, v)
    {
        if (!is_known(key) && !is_unset(key, v))
            return cr_fail(err, CR_EABSENT, "%.60s is not available: " MERGE_IT, key);
    }
    return CR_OK;
}

static cr_status bad_target(cr_err *err)
{
    return cr_fail(err, CR_EFORMAT,
                   "target_modules must be a list of names of Linears or ends of them, or a "
                   "regular expression");
}

/* To a list with commas, an expression with one of * $ | ( in it, or all-linear (cr_adapter_options). */
static cr_status read_target(const json_t *v, char **out, cr_err *err)
{
    cr_buf list = {0};
    size_t i;
    json_t *entry;

    if (json_is_string(v)) {
        const char *text = json_string_value(v);
        if (json_string_length(v) == 0 || json_string_length(v) != strlen(text))
            return bad_target(err);
        if (strcasecmp(text, "all-linear") == 0)
            *out = cr_strdup("all-linear");
        else
            *out = cr_adapter_is_pattern(text) ? cr_strdup(text) : cr_asprintf("(?:%s)", text);
        return CR_OK;
    }
    if (json_array_size(v) == 0) return bad_target(err);
    json_array_foreach(v, i, entry)
    {
        const char *text = json_string_value(entry);
        if (!text || !text[0] || json_string_length(entry) != strlen(text) || strpbrk(text, ", ") ||
            cr_adapter_is_pattern(text)) {
            cr_buf_free(&list);
            return bad_target(err);
        }
        cr_buf_addf(&list, "%s%s", i ? "," : "", text);
    }
    *out = cr_strdup(list.data);
    cr_buf_free(&list);
    return CR_OK;
}

static cr_status read_options(json_t *config, const char *folder, cr_adapter_options *o,
                              char **base_model, cr_err *err)
{
    const json_t *rank = json_object_get(config, "r"),
                 *alpha = json_object_get(config, "lora_alpha"),
                 *rslora = json_object_get(config, "use_rslora"),
                 *dropout = json_object_get(config, "lora_dropout"),
                 *base = json_object_get(config, "base_model_name_or_path");
    char *target = NULL;

    CR_TRY(check_keys(config, err));
    if (!json_is_integer(rank) || json_integer_value(rank) < 1 ||
        json_integer_value(rank) > MAX_RANK)
        return cr_fail(err, CR_EFORMAT, "r must be an integer from 1 to %d", MAX_RANK);
    if (!json_is_number(alpha) || !isfinite((float)json_number_value(alpha)))
        return cr_fail(err, CR_EFORMAT, "lora_alpha must be a number");
    if (dropout && !(json_is_number(dropout) && json_number_value(dropout) >= 0 &&
                     json_number_value(dropout) < 1))
        return cr_fail(err, CR_EFORMAT, "lora_dropout must be a number from 0 on and below 1");
    if (rslora && !json_is_boolean(rslora) && !json_is_null(rslora))
        return cr_fail(err, CR_EFORMAT, "use_rslora must be true or false");
    CR_TRY(read_target(json_object_get(config, "target_modules"), &target, err));
    *o = (cr_adapter_options){.target = target,
                              .rank = json_integer_value(rank),
                              .alpha = json_number_value(alpha),
                              .use_rslora = json_is_true(rslora),
                              .folder = cr_strdup(folder),
                              .dropout = json_number_value(dropout)};
    if (json_is_string(base)) *base_model = cr_strdup(json_string_value(base));
    return CR_OK;
}

cr_status cr_peft_config_read(const char *name, cr_adapter_options *o, char **base_model,
                              cr_err *err)
{
    char *folder = cr_hub_find(name), *path;
    json_t *config = NULL;

    *o = (cr_adapter_options){0};
    *base_model = NULL;
    if (!folder) return cr_hub_absent(name, err);
    path = cr_path_join(folder, CR_PEFT_CONFIG);
    if (!cr_file_exists(path))
        cr_fail(err, CR_EFORMAT, "%s has no " CR_PEFT_CONFIG ": it is not the folder of an adapter",
                folder);
    else if (cr_json_read_file(path, &config, err) == CR_OK &&
             read_options(config, folder, o, base_model, err) != CR_OK)
        cr_fail_add(err, "%s", path);
    json_decref(config);
    cr_free(path);
    cr_free(folder);
    return err->status;
}

void cr_peft_options_fini(cr_adapter_options *o)
{
    cr_free((void *)(uintptr_t)o->target);
    cr_free((void *)(uintptr_t)o->folder);
    *o = (cr_adapter_options){0};
}

/* ---- writing ---- */

static void add_target(cr_buf *text, const char *target)
{
    const char *at = target;

    if (cr_adapter_is_pattern(target) || strcmp(target, "all-linear") == 0) {
        cr_json_add_string(text, target, strlen(target));
        return;
    }
    cr_buf_addc(text, '[');
    for (bool is_first = true; at; is_first = false) {
        size_t num;
        at += strspn(at, " ");
        num = strcspn(at, ", ");
        if (!is_first) cr_buf_adds(text, ", ");
        cr_json_add_string(text, at, num);
        at = strchr(at, ',');
        if (at) at++;
    }
    cr_buf_addc(text, ']');
}

static void add_name(cr_buf *text, const char *name)
{
    if (name)
        cr_json_add_string(text, name, strlen(name));
    else
        cr_buf_adds(text, "null");
}

cr_status cr_peft_config_write(const char *folder, const cr_adapter_options *o,
                               const char *base_model, cr_err *err)
{
    char *path = cr_path_join(folder, CR_PEFT_CONFIG);
    cr_buf text = {0};

    cr_buf_adds(&text, "{\n  \"alpha_pattern\": {},\n  \"base_model_name_or_path\": ");
    add_name(&text, base_model);
    cr_buf_adds(&text, ",\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": false,\n"
                       "  \"inference_mode\": true,\n  \"init_lora_weights\": true,\n"
                       "  \"lora_alpha\": ");
    cr_note(cr_json_add_double(&text, o->alpha, err));
    cr_buf_adds(&text, ",\n  \"lora_dropout\": ");
    cr_note(cr_json_add_double(&text, o->dropout, err));
    cr_buf_addf(&text,
                ",\n  \"modules_to_save\": null,\n"
                "  \"peft_type\": \"LORA\",\n  \"r\": %lld,\n  \"rank_pattern\": {},\n"
                "  \"target_modules\": ",
                (long long)o->rank);
    add_target(&text, o->target);
    cr_buf_addf(&text,
                ",\n  \"target_parameters\": null,\n  \"task_type\": \"CAUSAL_LM\",\n"
                "  \"use_dora\": false,\n  \"use_rslora\": %s\n}\n",
                o->use_rslora ? "true" : "false");
    if (err->status == CR_OK) cr_note(cr_file_write_atomic(path, text.data, text.num_bytes, err));
    cr_buf_free(&text);
    cr_free(path);
    return err->status;
}
