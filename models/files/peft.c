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
        "rank_pattern",
        "alpha_pattern",
        "target_parameters",
        "modules_to_save",
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

/* What PEFT makes of gate_proj and up_proj of experts. */
static const char gate_up[] = ".*\\.gate_up_proj";

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
    return !v || json_is_null(v) || json_is_false(v) || is_text(v, "") ||
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

static cr_status bad_target(const char *key, cr_err *err)
{
    return cr_fail(err, CR_EFORMAT, "%s must be a list of names of modules or ends of them%s", key,
                   strcmp(key, "target_modules") == 0 ? ", or a regular expression" : "");
}

static cr_status read_list(const char *key, const json_t *v, char **out, cr_err *err)
{
    cr_buf list = {0};
    size_t i;
    json_t *entry;

    if (v && !json_is_null(v) && !json_is_array(v)) return bad_target(key, err);
    json_array_foreach(v, i, entry)
    {
        const char *text = json_string_value(entry);
        if (!text || !text[0] || json_string_length(entry) != strlen(text) || strpbrk(text, ", ") ||
            cr_adapter_is_pattern(text)) {
            cr_buf_free(&list);
            return bad_target(key, err);
        }
        cr_buf_addf(&list, "%s%s", i ? "," : "", text);
    }
    if (list.num_bytes) *out = cr_strdup(list.data);
    cr_buf_free(&list);
    return CR_OK;
}

/* To a list with commas, an expression with one of * $ | ( in it, or all-linear (cr_adapter_options). NULL: parameters alone. */
static cr_status read_target(const json_t *v, const char *parameters, char **out, cr_err *err)
{
    static const char key[] = "target_modules";

    if (json_is_string(v)) {
        const char *text = json_string_value(v);
        if (json_string_length(v) == 0 || json_string_length(v) != strlen(text))
            return bad_target(key, err);
        if (strcasecmp(text, "all-linear") == 0)
            *out = cr_strdup("all-linear");
        else
            *out = cr_adapter_is_pattern(text) ? cr_strdup(text) : cr_asprintf("(?:%s)", text);
        return CR_OK;
    }
    CR_TRY(read_list(key, v, out, err));
    return *out || parameters ? CR_OK : bad_target(key, err);
}

static bool is_number(const json_t *v, double x)
{
    return json_is_number(v) && !(json_number_value(v) < x) && !(json_number_value(v) > x);
}

/* Other ranks for some modules: only twice the rank and alpha for gate_up_proj of experts. */
static cr_status read_patterns(const json_t *config, int64_t rank, double alpha, bool *is_twice,
                               cr_err *err)
{
    static const char *const keys[] = {"rank_pattern", "alpha_pattern"};
    const double want[] = {2 * (double)rank, 2 * alpha};
    bool is_there[2];

    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(config, keys[i]);
        is_there[i] = !is_unset(keys[i], v);
        if (is_there[i] &&
            !(json_object_size(v) == 1 && is_number(json_object_get(v, gate_up), want[i])))
            return cr_fail(err, CR_EABSENT, "%s is not available: " MERGE_IT, keys[i]);
    }
    if (is_there[0] != is_there[1])
        return cr_fail(err, CR_EABSENT, "%s without %s is not available: " MERGE_IT,
                       keys[is_there[1]], keys[is_there[0]]);
    *is_twice = is_there[0];
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
    char *target = NULL, *parameters = NULL, *saved = NULL;
    bool is_twice = false;

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
    CR_TRY(
        read_patterns(config, json_integer_value(rank), json_number_value(alpha), &is_twice, err));
    if (read_list("target_parameters", json_object_get(config, "target_parameters"), &parameters,
                  err) != CR_OK ||
        read_list("modules_to_save", json_object_get(config, "modules_to_save"), &saved, err) !=
            CR_OK ||
        read_target(json_object_get(config, "target_modules"), parameters, &target, err) != CR_OK) {
        cr_free(parameters);
        cr_free(saved);
        return err->status;
    }
    *o = (cr_adapter_options){.target = target,
                              .parameters = parameters,
                              .saved = saved,
                              .is_gate_up_twice = is_twice,
                              .rank = json_integer_value(rank),
                              .alpha = json_number_value(alpha),
                              .use_rslora = json_is_true(rslora),
                              .folder = cr_strdup(folder),
                              .dropout = json_number_value(dropout)};
    if (json_is_string(base)) *base_model = cr_strdup(json_string_value(base));
    return CR_OK;
}

static size_t last_name(const char *path, const char **name)
{
    size_t num = strlen(path);

    while (num > 1 && path[num - 1] == '/')
        num--;
    *name = path + num;
    while (*name > path && (*name)[-1] != '/')
        --*name;
    return num - (size_t)(*name - path);
}

void cr_peft_compare_base(const char *folder, const char *model)
{
    cr_adapter_options options;
    const char *here, *there;
    char *base = NULL;
    cr_err unread = {0};

    if (cr_peft_config_read(folder, &options, &base, &unread) == CR_OK && base) {
        const size_t num = last_name(model, &here);
        if (last_name(base, &there) != num || memcmp(here, there, num) != 0)
            cr_log(CR_LOG_WARN, "models",
                   "%s is an adapter of %s (" CR_PEFT_CONFIG
                   "), and the model is %s: with another base its answers mean nothing",
                   folder, base, model);
    }
    cr_peft_options_fini(&options);
    cr_free(base);
}

cr_status cr_peft_config_read(const char *name, cr_adapter_options *o, char **base_model,
                              cr_err *err)
{
    char *folder = cr_hub_find(name), *path;
    json_t *config = NULL;

    *o = (cr_adapter_options){0};
    *base_model = NULL;
    if (!folder) {
        cr_note(cr_hub_absent(name, err));
        return cr_fail_add(err, "adapter");
    }
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
    cr_free((void *)(uintptr_t)o->parameters);
    cr_free((void *)(uintptr_t)o->saved);
    *o = (cr_adapter_options){0};
}

/* ---- writing ---- */

static void add_list(cr_buf *text, const char *list)
{
    const char *at = *list ? list : NULL;

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

static void add_list_or_null(cr_buf *text, const char *list)
{
    if (list)
        add_list(text, list);
    else
        cr_buf_adds(text, "null");
}

static void add_target(cr_buf *text, const char *target)
{
    if (cr_adapter_is_pattern(target) || strcmp(target, "all-linear") == 0)
        cr_json_add_string(text, target, strlen(target));
    else
        add_list(text, target);
}

/* Twice r, or alpha, for gate_up_proj. */
static void add_pattern(cr_buf *text, const char *key, double value, const cr_adapter_options *o)
{
    cr_buf_addf(text, "  \"%s\": {", key);
    if (o->is_gate_up_twice) {
        cr_json_add_string(text, gate_up, strlen(gate_up));
        cr_buf_addf(text, ": %.17g", 2 * value);
    }
    cr_buf_adds(text, "},\n");
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

    cr_buf_adds(&text, "{\n");
    add_pattern(&text, "alpha_pattern", o->alpha, o);
    cr_buf_adds(&text, "  \"base_model_name_or_path\": ");
    add_name(&text, base_model);
    cr_buf_adds(&text, ",\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": false,\n"
                       "  \"inference_mode\": true,\n  \"init_lora_weights\": true,\n"
                       "  \"lora_alpha\": ");
    cr_note(cr_json_add_double(&text, o->alpha, err));
    cr_buf_adds(&text, ",\n  \"lora_dropout\": ");
    cr_note(cr_json_add_double(&text, o->dropout, err));
    cr_buf_adds(&text, ",\n  \"modules_to_save\": ");
    add_list_or_null(&text, o->saved);
    cr_buf_addf(&text, ",\n  \"peft_type\": \"LORA\",\n  \"r\": %lld,\n", (long long)o->rank);
    add_pattern(&text, "rank_pattern", (double)o->rank, o);
    cr_buf_adds(&text, "  \"target_modules\": ");
    if (o->modules)
        add_list(&text, o->modules);
    else
        add_target(&text, o->target);
    cr_buf_adds(&text, ",\n  \"target_parameters\": ");
    add_list_or_null(&text, o->parameters);
    cr_buf_addf(&text,
                ",\n  \"task_type\": \"CAUSAL_LM\",\n"
                "  \"use_dora\": false,\n  \"use_rslora\": %s\n}\n",
                o->use_rslora ? "true" : "false");
    if (err->status == CR_OK) cr_note(cr_file_write_atomic(path, text.data, text.num_bytes, err));
    cr_buf_free(&text);
    cr_free(path);
    return err->status;
}
