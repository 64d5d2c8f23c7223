/* tokenizer_read.c -- normaliser, pre-tokenizer, post-processor and decoder of a tokenizer.json.
 *
 * What is not listed here is refused by its name.
 */
#include "text/tokenizer_impl.h"

#include <string.h>
#include <utf8proc.h>

/* ---- fields ---- */

static const char *type_of(const json_t *json)
{
    const char *type = json_string_value(json_object_get(json, "type"));

    return type ? type : "";
}

static bool is_type(const json_t *json, const char *type)
{
    return strcmp(type_of(json), type) == 0;
}

static cr_status get_flag(const json_t *json, const char *key, bool fallback, bool *out,
                          cr_err *err)
{
    const json_t *value = json_object_get(json, key);

    *out = value ? json_is_true(value) : fallback;
    if (value && !json_is_boolean(value))
        return cr_fail(err, CR_EFORMAT, "%s.%s must be true or false", type_of(json), key);
    return CR_OK;
}

static cr_status get_text(const json_t *json, const char *key, char **out, size_t *num_bytes,
                          cr_err *err)
{
    const json_t *value = json_object_get(json, key);

    if (!json_is_string(value))
        return cr_fail(err, CR_EFORMAT, "%s.%s must be text", type_of(json), key);
    cr_free(*out);
    *out = cr_strndup(json_string_value(value), json_string_length(value));
    *num_bytes = json_string_length(value);
    return CR_OK;
}

/* {"String": ".."}, as Replace needs it. */
static cr_status get_string_pattern(const json_t *json, char **out, size_t *num_bytes, cr_err *err)
{
    const json_t *value = json_object_get(json_object_get(json, "pattern"), "String");

    if (!json_is_string(value) || json_string_length(value) == 0)
        return cr_fail(err, CR_EFORMAT, "%s.pattern is not supported (only {\"String\": TEXT})",
                       type_of(json));
    cr_free(*out);
    *out = cr_strndup(json_string_value(value), json_string_length(value));
    *num_bytes = json_string_length(value);
    return CR_OK;
}

/* ---- normaliser ---- */

typedef cr_status (*read_one)(cri_steps *steps, const json_t *json, cr_err *err);

static cr_status read_list(cri_steps *steps, const json_t *json, const char *key, read_one one,
                           cr_err *err)
{
    const json_t *list = json_object_get(json, key), *entry;
    size_t at;

    if (!json_is_array(list)) return cr_fail(err, CR_EFORMAT, "Sequence.%s must be a list", key);
    json_array_foreach(list, at, entry) CR_TRY(one(steps, entry, err));
    return CR_OK;
}

static cr_status read_normalizer(cri_steps *steps, const json_t *json, cr_err *err)
{
    static const struct {
        const char *type;
        int form;
    } forms[] = {
        {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
        {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
        {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    };
    cri_step *s;

    for (size_t i = 0; i < CR_COUNT(forms); i++)
        if (is_type(json, forms[i].type)) {
            cri_steps_add(steps, CRI_STEP_FORM)->form = forms[i].form;
            return CR_OK;
        }
    if (is_type(json, "Sequence"))
        return read_list(steps, json, "normalizers", read_normalizer, err);
    if (is_type(json, "Prepend")) {
        s = cri_steps_add(steps, CRI_STEP_PREPEND);
        return get_text(json, "prepend", &s->to, &s->num_to, err);
    }
    if (is_type(json, "Replace")) {
        s = cri_steps_add(steps, CRI_STEP_REPLACE);
        CR_TRY(get_string_pattern(json, &s->from, &s->num_from, err));
        return get_text(json, "content", &s->to, &s->num_to, err);
    }
    if (is_type(json, "Strip")) {
        s = cri_steps_add(steps, CRI_STEP_STRIP);
        CR_TRY(get_flag(json, "strip_left", true, &s->strips_left, err));
        return get_flag(json, "strip_right", true, &s->strips_right, err);
    }
    return cr_fail(err, CR_EFORMAT, "normalizer \"%.40s\" is not supported", type_of(json));
}

/* ---- pre-tokenizer ---- */

#define GPT2_PATTERN \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static cr_status read_split(cri_steps *steps, const json_t *json, cr_err *err)
{
    static const char *const names[] = {[CRI_SPLIT_ISOLATED] = "Isolated",
                                        [CRI_SPLIT_REMOVED] = "Removed",
                                        [CRI_SPLIT_PREVIOUS] = "MergedWithPrevious",
                                        [CRI_SPLIT_NEXT] = "MergedWithNext",
                                        [CRI_SPLIT_CONTIGUOUS] = "Contiguous"};
    const char *behavior = json_string_value(json_object_get(json, "behavior"));
    const json_t *pattern = json_object_get(json, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *plain = json_object_get(pattern, "String"), *text = regex ? regex : plain;
    cri_step *s = cri_steps_add(steps, CRI_STEP_SPLIT);
    size_t i = 0;

    CR_TRY(get_flag(json, "invert", false, &s->is_inverted, err));
    while (i < CR_COUNT(names) && strcmp(names[i], behavior ? behavior : ""))
        i++;
    if (i == CR_COUNT(names))
        return cr_fail(err, CR_EFORMAT, "Split.behavior \"%.40s\" is not known",
                       behavior ? behavior : "");
    s->split = (cri_split)i;
    if (!json_is_string(text))
        return cr_fail(err, CR_EFORMAT,
                       "Split.pattern must be {\"Regex\": TEXT} or {\"String\": TEXT}");
    return cri_step_set_pattern(s, json_string_value(text), json_string_length(text), text == plain,
                                err);
}

static cr_status add_pattern(cri_steps *steps, const char *pattern, cri_split split, bool is_plain,
                             cr_err *err)
{
    cri_step *s = cri_steps_add(steps, CRI_STEP_SPLIT);

    s->split = split;
    return cri_step_set_pattern(s, pattern, strlen(pattern), is_plain, err);
}

static cr_status read_byte_level(cri_steps *steps, const json_t *json, cr_err *err)
{
    bool has_prefix, has_pattern;

    CR_TRY(get_flag(json, "add_prefix_space", true, &has_prefix, err));
    CR_TRY(get_flag(json, "use_regex", true, &has_pattern, err));
    if (has_prefix) {
        cri_step *s = cri_steps_add(steps, CRI_STEP_PREFIX);
        s->to = cr_strdup(" ");
        s->num_to = 1;
    }
    if (has_pattern) CR_TRY(add_pattern(steps, GPT2_PATTERN, CRI_SPLIT_ISOLATED, false, err));
    cri_steps_add(steps, CRI_STEP_BYTES);
    return CR_OK;
}

/* "always", "first" or "never"; older files have add_prefix_space instead. */
static cr_status get_scheme(const json_t *json, const char **out, cr_err *err)
{
    const json_t *scheme = json_object_get(json, "prepend_scheme");
    bool has_prefix;

    CR_TRY(get_flag(json, "add_prefix_space", true, &has_prefix, err));
    *out = scheme ? json_string_value(scheme) : has_prefix ? "always" : "never";
    if (!*out || (strcmp(*out, "always") && strcmp(*out, "first") && strcmp(*out, "never")))
        return cr_fail(err, CR_EFORMAT, "Metaspace.prepend_scheme must be always, first or never");
    return CR_OK;
}

static cr_status read_metaspace(cri_steps *steps, const json_t *json, cr_err *err)
{
    const char *scheme;
    bool should_split;
    cri_step *s = cri_steps_add(steps, CRI_STEP_REPLACE);

    s->from = cr_strdup(" ");
    s->num_from = 1;
    CR_TRY(get_text(json, "replacement", &s->to, &s->num_to, err));
    CR_TRY(get_scheme(json, &scheme, err));
    CR_TRY(get_flag(json, "split", true, &should_split, err));
    if (strcmp(scheme, "never")) {
        s = cri_steps_add(steps, CRI_STEP_PREFIX);
        CR_TRY(get_text(json, "replacement", &s->to, &s->num_to, err));
        s->only_first = strcmp(scheme, "first") == 0;
    }
    if (!should_split) return CR_OK;
    return add_pattern(steps, json_string_value(json_object_get(json, "replacement")),
                       CRI_SPLIT_NEXT, true, err);
}

static cr_status read_pre_tokenizer(cri_steps *steps, const json_t *json, cr_err *err)
{
    bool is_single;

    if (is_type(json, "Sequence"))
        return read_list(steps, json, "pretokenizers", read_pre_tokenizer, err);
    if (is_type(json, "Split")) return read_split(steps, json, err);
    if (is_type(json, "ByteLevel")) return read_byte_level(steps, json, err);
    if (is_type(json, "Metaspace")) return read_metaspace(steps, json, err);
    if (is_type(json, "Digits")) {
        CR_TRY(get_flag(json, "individual_digits", false, &is_single, err));
        return add_pattern(steps, "\\p{N}", is_single ? CRI_SPLIT_ISOLATED : CRI_SPLIT_CONTIGUOUS,
                           false, err);
    }
    return cr_fail(err, CR_EFORMAT, "pre_tokenizer \"%.40s\" is not supported", type_of(json));
}

static bool is_given(const json_t *json)
{
    return json && !json_is_null(json);
}

cr_status cri_read_steps(cr_tokenizer *t, const json_t *root, cr_err *err)
{
    const json_t *normalizer = json_object_get(root, "normalizer");
    const json_t *pre = json_object_get(root, "pre_tokenizer");

    if (is_given(normalizer)) CR_TRY(read_normalizer(&t->steps, normalizer, err));
    t->num_normalizer_steps = t->steps.num;
    cri_steps_add(&t->steps, CRI_STEP_ADDED);
    return is_given(pre) ? read_pre_tokenizer(&t->steps, pre, err) : CR_OK;
}

/* ---- post-processor ---- */

/* The ids of one {"SpecialToken": {"id": NAME}} of a template. */
static cr_status add_template_token(cr_tokenizer *t, const json_t *post, const json_t *token,
                                    cr_ids *out, cr_err *err)
{
    const char *name = json_string_value(json_object_get(token, "id"));
    const json_t *known = json_object_get(post, "special_tokens"), *entry;
    const json_t *ids = json_object_get(name ? json_object_get(known, name) : NULL, "ids");
    size_t at;

    if (!json_is_array(ids))
        return cr_fail(err, CR_EFORMAT,
                       "TemplateProcessing: special token \"%.40s\" is not defined",
                       name ? name : "");
    json_array_foreach(ids, at, entry)
    {
        json_int_t id = json_integer_value(entry);
        if (!json_is_integer(entry) || id < 0 || id >= t->bpe.vocab.num_ids)
            return cr_fail(err, CR_EFORMAT,
                           "TemplateProcessing: an id of \"%.40s\" is not a token's", name);
        cr_ids_add(out, (int32_t)id);
    }
    return CR_OK;
}

static cr_status read_template(cr_tokenizer *t, const json_t *post, cr_err *err)
{
    const json_t *single = json_object_get(post, "single"), *entry;
    bool has_text = false;
    size_t at;

    if (!json_is_array(single))
        return cr_fail(err, CR_EFORMAT, "TemplateProcessing.single must be a list");
    json_array_foreach(single, at, entry)
    {
        const json_t *token = json_object_get(entry, "SpecialToken");
        if (token) {
            CR_TRY(add_template_token(t, post, token, has_text ? &t->after : &t->before, err));
        } else if (json_object_get(entry, "Sequence") && !has_text) {
            has_text = true;
        } else {
            return cr_fail(err, CR_EFORMAT, "TemplateProcessing.single[%zu] is not understood", at);
        }
    }
    if (!has_text) return cr_fail(err, CR_EFORMAT, "TemplateProcessing.single has no sequence");
    return CR_OK;
}

cr_status cri_read_post(cr_tokenizer *t, const json_t *post, cr_err *err)
{
    const json_t *list = json_object_get(post, "processors"), *entry;
    size_t at;

    if (!is_given(post) || is_type(post, "ByteLevel")) return CR_OK; /* it moves offsets only */
    if (is_type(post, "TemplateProcessing")) {
        if (t->before.num + t->after.num)
            return cr_fail(err, CR_EFORMAT, "two templates of special tokens");
        return read_template(t, post, err);
    }
    if (!is_type(post, "Sequence"))
        return cr_fail(err, CR_EFORMAT, "post_processor \"%.40s\" is not supported", type_of(post));
    if (!json_is_array(list)) return cr_fail(err, CR_EFORMAT, "Sequence.processors must be a list");
    json_array_foreach(list, at, entry) CR_TRY(cri_read_post(t, entry, err));
    return CR_OK;
}

/* ---- decoder ---- */

static cr_status read_strip(cri_decoder *d, const json_t *json, bool is_fused, cr_err *err)
{
    json_int_t start = json_integer_value(json_object_get(json, "start"));
    json_int_t stop = json_integer_value(json_object_get(json, "stop"));
    size_t num = 0;

    CR_TRY(get_text(json, "content", &d->strip, &num, err));
    if (!is_fused || stop != 0 || start < 0 || start > 1000 || num == 0)
        return cr_fail(err, CR_EFORMAT,
                       "decoder Strip is supported at the start of fused text only");
    d->num_strip = (int)start;
    return CR_OK;
}

static cr_status read_metaspace_decoder(cri_decoder *d, const json_t *json, cr_err *err)
{
    const char *scheme;
    size_t num = 0;

    CR_TRY(get_text(json, "replacement", &d->from, &num, err));
    CR_TRY(get_scheme(json, &scheme, err));
    if (num == 0) return cr_fail(err, CR_EFORMAT, "Metaspace.replacement is empty");
    d->to = cr_strdup(" ");
    d->is_metaspace = true;
    d->metaspace_drops_first = strcmp(scheme, "never") != 0;
    return CR_OK;
}

/* The order in which the parts of a decoder are run here: replace, bytes, fuse, strip. */
static cr_status read_decoder_part(cri_decoder *d, const json_t *json, int *stage, cr_err *err)
{
    int part = is_type(json, "Replace")        ? 0
               : is_type(json, "Metaspace")    ? 0
               : is_type(json, "ByteFallback") ? 1
               : is_type(json, "Fuse")         ? 2
               : is_type(json, "Strip")        ? 3
               : is_type(json, "ByteLevel")    ? 4
                                               : -1;
    size_t num = 0;

    if (part < 0)
        return cr_fail(err, CR_EFORMAT, "decoder \"%.40s\" is not supported", type_of(json));
    if (part < *stage || (part == 4 && *stage > 0))
        return cr_fail(err, CR_EFORMAT, "decoder %s at this place is not supported", type_of(json));
    if (part == 4) d->is_byte_level = true;
    if (part == 1) d->has_byte_fallback = true;
    if (part == 3) CR_TRY(read_strip(d, json, *stage == 3, err));
    if (part == 0 && is_type(json, "Metaspace")) CR_TRY(read_metaspace_decoder(d, json, err));
    if (part == 0 && is_type(json, "Replace")) {
        CR_TRY(get_string_pattern(json, &d->from, &num, err));
        CR_TRY(get_text(json, "content", &d->to, &num, err));
    }
    *stage = part + 1;
    return CR_OK;
}

cr_status cri_read_decoder(cri_decoder *d, const json_t *json, cr_err *err)
{
    const json_t *list = json_object_get(json, "decoders"), *entry;
    int stage = 0;
    size_t at;

    if (!is_given(json)) {
        d->joins_by_space = true;
        return CR_OK;
    }
    if (!is_type(json, "Sequence")) return read_decoder_part(d, json, &stage, err);
    if (!json_is_array(list)) return cr_fail(err, CR_EFORMAT, "Sequence.decoders must be a list");
    json_array_foreach(list, at, entry) CR_TRY(read_decoder_part(d, entry, &stage, err));
    return CR_OK;
}
