/* cmd_inspect.c -- croll inspect: what is in a safetensors file, an index, a MODEL or a checkpoint.
 *
 * Headers are checked in full before the first line is printed; data is not read.
 */
#include "base/hub.h"
#include "base/json.h"
#include "commands/commands.h"
#include "models/files/peft.h"
#include "models/files/safetensors.h"
#include "pipelines/checkpoint.h"

#include <stdio.h>
#include <string.h>

typedef struct listing {
    bool has_json;
    cr_buf text;
    size_t num_tensors;
    unsigned long long num_bytes, num_elems;
} listing;

static void add_shape(cr_buf *text, const cr_tensor *t)
{
    cr_buf_addc(text, '[');
    for (int i = 0; i < t->num_dims; i++)
        cr_buf_addf(text, "%s%lld", i ? "," : "", (long long)t->shape[i]);
    cr_buf_addc(text, ']');
}

static void add_tensor(listing *l, const cr_tensor *t)
{
    cr_buf *text = &l->text;

    if (l->has_json) {
        cr_buf_adds(text, "{\"name\":");
        cr_json_add_string(text, t->name, strlen(t->name));
        cr_buf_addf(text, ",\"dtype\":\"%s\",\"shape\":", t->dtype);
        add_shape(text, t);
        cr_buf_addf(text, ",\"bytes\":%zu,\"file\":", t->num_bytes);
        cr_json_add_string(text, t->file, strlen(t->file));
        cr_buf_adds(text, "}\n");
    } else { /* names may hold anything: as JSON text, without the quotes */
        cr_buf name = {0}, shape = {0};
        cr_json_add_string(&name, t->name, strlen(t->name));
        add_shape(&shape, t);
        cr_buf_addf(text, "%-56.*s %-5s %-20s %14zu  %s\n", (int)(name.num_bytes - 2),
                    name.data + 1, t->dtype, shape.data, t->num_bytes, t->file);
        cr_buf_free(&name);
        cr_buf_free(&shape);
    }
    l->num_tensors++;
    l->num_bytes += t->num_bytes;
    l->num_elems += (unsigned long long)t->num_elems;
}

static cr_status add_path(listing *l, const char *path, cr_err *err)
{
    char *adapter = cr_path_join(path, CR_PEFT_TENSORS);
    cr_tensors *tensors;

    cr_note(cr_tensors_open(cr_file_exists(adapter) ? adapter : path, &tensors, err));
    cr_free(adapter);
    CR_TRY(err->status);
    for (size_t i = 0; i < tensors->num_tensors; i++)
        add_tensor(l, &tensors->tensor[i]);
    cr_tensors_close(tensors);
    return CR_OK;
}

static cr_status list(listing *l, const char *path, cr_err *err)
{
    char *roles[CR_CHECKPOINT_MAX_ROLES];
    size_t num;

    num = cr_checkpoint_roles(path, roles); /* none: it is not a checkpoint */
    if (num == 0) return add_path(l, path, err);
    for (size_t i = 0; i < num; i++) {
        char *inner = cr_path_join(path, roles[i]);
        if (err->status == CR_OK) cr_note(add_path(l, inner, err));
        cr_free(inner);
        cr_free(roles[i]);
    }
    return err->status;
}

static cr_status find(listing *l, const cr_words *words, cr_err *err)
{
    const char *path = words->num == 1 ? words->word[0] : "";
    char *found = cr_hub_find(path);

    if (words->num != 1)
        cr_fail(err, CR_EUSAGE, "give one PATH (a file, an index, a MODEL or a checkpoint)");
    else if (found || cr_file_exists(path))
        cr_note(list(l, found ? found : path, err));
    else if (cr_hub_is_name(path))
        cr_note(cr_hub_absent(path, err));
    else
        cr_fail(err, CR_EFORMAT, "%s does not exist", path);
    cr_free(found);
    return err->status;
}

static int run(int argc, char **argv)
{
    listing l = {0};
    const cr_option options[] = {
        {"json", CR_OPT_FLAG, &l.has_json, NULL, "one JSON object a tensor, no total"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;

    if (cr_args_parse(&cr_command_inspect, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help && find(&l, &words, &err) == CR_OK) {
        if (!l.has_json)
            cr_buf_addf(&l.text, "%zu tensors, %llu elements, %llu bytes\n", l.num_tensors,
                        l.num_elems, l.num_bytes);
        if (l.text.num_bytes) fwrite(l.text.data, 1, l.text.num_bytes, stdout);
    }
    cr_buf_free(&l.text);
    cr_words_free(&words);
    return err.status ? cr_command_fail(&cr_command_inspect, &err) : 0;
}

const cr_command cr_command_inspect = {
    "inspect",
    "inspect PATH [--json]",
    "Every tensor of a safetensors file, an index with its shards, a MODEL folder or a checkpoint: "
    "name, dtype, shape, bytes, file. Headers are checked in full.",
    "croll inspect output/quickstart/sft_model",
    run,
};
