/* cmd_image.c -- croll image: what a file's pixels are, and what a model's processor makes of them. */
#include "base/json.h"
#include "commands/commands.h"
#include "images/pool.h"
#include "images/processor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { MAX_AT_ONCE = 8 }; /* images that are in memory */

typedef struct ask {
    const char *model, *form, *alpha, *values;
    int64_t limit, min_pixels, max_pixels;
    cr_image_processor processor;
    cr_image_pool *pool;
    FILE *to; /* of values; NULL: none */
    bool has_failed;
} ask;

static const char *const forms[] = {CR_RESIZE_FORMS};

static cr_status write_values(ask *a, const void *data, size_t num_bytes, cr_err *err)
{
    if (a->to && fwrite(data, 1, num_bytes, a->to) != num_bytes)
        return cr_fail(err, CR_EIO, "%s: %s", a->values, strerror(errno));
    return CR_OK;
}

static cr_status add_patches(ask *a, cr_image *image, cr_buf *line, cr_err *err)
{
    cr_image_patches patches;
    cr_status status;

    CR_TRY(cr_image_cut(&a->processor, image, &patches, err));
    cr_buf_addf(line,
                ",\"resize\":\"%s\",\"to_width\":%d,\"to_height\":%d,\"grid\":[%d,%d,%d],"
                "\"patch_dim\":%lld,\"tokens\":%lld",
                forms[a->processor.form], image->width, image->height, patches.grid[0],
                patches.grid[1], patches.grid[2], (long long)patches.patch_dim,
                (long long)patches.num_tokens);
    status = write_values(a, patches.values,
                          (size_t)(patches.num_patches * patches.patch_dim) * sizeof(float), err);
    cr_image_patches_free(&patches);
    return status;
}

/* A file, and where it is decoded. */
typedef struct entry {
    const char *path;
    cr_buf file;
    cr_image_job *job; /* NULL: the file cannot be read */
    cr_err why;
} entry;

static cr_status describe(ask *a, const entry *e, cr_buf *line, cr_err *err)
{
    cr_image *image = e->job ? &e->job->image : NULL;

    if (!image) return cr_fail(err, e->why.status, "%s", e->why.msg);
    if (e->job->err.status)
        return cr_fail(err, e->job->err.status, "%s: %s", e->path, e->job->err.msg);
    cr_buf_addf(line, ",\"type\":\"%s\",\"width\":%d,\"height\":%d,\"orientation\":%d",
                cr_image_type_name(image->type), image->width, image->height, image->orientation);
    if (a->model) return add_patches(a, image, line, err);
    return write_values(a, image->pixels, (size_t)image->width * (size_t)image->height * 3, err);
}

/* A file that cannot be read has a line, too. */
static cr_status print_line(ask *a, const entry *e, cr_err *err)
{
    cr_buf line = {0};
    cr_err why = {0};

    cr_buf_adds(&line, "{\"file\":");
    cr_json_add_string(&line, e->path, strlen(e->path));
    if (describe(a, e, &line, &why) != CR_OK) {
        cr_buf_adds(&line, ",\"error\":");
        cr_json_add_string(&line, why.msg, strlen(why.msg));
        a->has_failed = true;
    }
    cr_buf_adds(&line, "}\n");
    if (fwrite(line.data, 1, line.num_bytes, stdout) != line.num_bytes)
        cr_fail(err, CR_EIO, "stdout: %s", strerror(errno));
    cr_buf_free(&line);
    return err->status;
}

/* Files that are decoded at the same time. */
static cr_status describe_some(ask *a, const char *const *paths, size_t num, cr_err *err)
{
    entry entries[MAX_AT_ONCE] = {0};
    cr_image_job jobs[MAX_AT_ONCE] = {0};
    size_t num_jobs = 0;

    for (size_t i = 0; i < num; i++) {
        entry *e = &entries[i];
        e->path = paths[i];
        if (cr_file_read(e->path, &e->file, &e->why) != CR_OK) continue;
        e->job = &jobs[num_jobs++];
        *e->job = (cr_image_job){.data = e->file.data, .num_bytes = e->file.num_bytes};
    }
    cr_note(cr_image_pool_decode(a->pool, jobs, num_jobs, err));
    for (size_t i = 0; i < num; i++) {
        if (!err->status) cr_note(print_line(a, &entries[i], err));
        cr_buf_free(&entries[i].file);
    }
    for (size_t i = 0; i < num_jobs; i++)
        cr_image_free(&jobs[i].image);
    return err->status;
}

static cr_status prepare(ask *a, cr_err *err)
{
    if (a->limit < 1 || a->limit > CR_IMAGE_MAX_PIXELS)
        return cr_fail(err, CR_EUSAGE, "--limit: from 1 to %d", CR_IMAGE_MAX_PIXELS);
    if (!a->model && (a->form || a->min_pixels || a->max_pixels))
        return cr_fail(err, CR_EUSAGE, "without --model nothing is resized");
    if (!a->model) return CR_OK;
    CR_TRY(cr_image_processor_read(a->model, &a->processor, err));
    if (a->min_pixels < 0 || a->max_pixels < 0 || a->min_pixels > CR_IMAGE_MAX_PIXELS ||
        a->max_pixels > CR_IMAGE_MAX_PIXELS)
        return cr_fail(err, CR_EUSAGE, "--min-pixels, --max-pixels: from 1 to %d",
                       CR_IMAGE_MAX_PIXELS);
    CR_TRY(cr_image_processor_limit(&a->processor, a->min_pixels, a->max_pixels, err));
    for (size_t i = 0; i < CR_COUNT(forms) && a->form; i++) {
        if (strcmp(a->form, forms[i]) != 0) continue;
        a->processor.form = (cr_resize_form)i;
        return CR_OK;
    }
    return a->form ? cr_fail(err, CR_EUSAGE, "--resize %.40s: pil or torchvision", a->form) : CR_OK;
}

static cr_status describe_all(ask *a, const cr_words *words, cr_err *err)
{
    size_t at_once = (size_t)cr_num_cores();
    cr_image_alpha alpha;

    if (words->num == 0) return cr_fail(err, CR_EUSAGE, "give a FILE");
    CR_TRY(prepare(a, err));
    if (a->values && !(a->to = fopen(a->values, "wb")))
        return cr_fail(err, CR_EIO, "%s: %s", a->values, strerror(errno));
    if (at_once > MAX_AT_ONCE) at_once = MAX_AT_ONCE;
    a->pool = cr_image_pool_create(at_once, a->limit, CR_IMAGE_SECONDS);
    if (a->alpha && cr_image_alpha_find(a->alpha, &alpha, err) == CR_OK)
        cr_image_pool_set_alpha(a->pool, alpha);
    for (size_t i = 0; i < words->num && err->status == CR_OK; i += at_once)
        cr_note(describe_some(a, words->word + i,
                              words->num - i < at_once ? words->num - i : at_once, err));
    cr_image_pool_destroy(a->pool);
    if (a->to && fclose(a->to) != 0) cr_fail(err, CR_EIO, "%s: %s", a->values, strerror(errno));
    if (a->has_failed) cr_fail(err, CR_EFORMAT, "some files were bad; their lines say why");
    return err->status;
}

static int run(int argc, char **argv)
{
    ask a = {.limit = CR_IMAGE_MAX_PIXELS};
    const cr_option options[] = {
        {"model", CR_OPT_STRING, &a.model, "MODEL",
         "also resize and cut into patches, as the processor of this folder does"},
        {"resize", CR_OPT_STRING, &a.form, "FORM",
         "pil or torchvision (default: the one of the processor's class)"},
        {"min-pixels", CR_OPT_INT, &a.min_pixels, "N", "instead of the processor's"},
        {"max-pixels", CR_OPT_INT, &a.max_pixels, "N", "instead of the processor's"},
        {"alpha", CR_OPT_STRING, &a.alpha, "drop|white",
         "drop alpha, or blend images with white (default drop)"},
        {"limit", CR_OPT_INT, &a.limit, "N", "refuse files with more pixels (default 89478485)"},
        {"values", CR_OPT_STRING, &a.values, "FILE",
         "write the values there, files one after another: float32 patches, or without --model "
         "RGB bytes"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;

    if (cr_args_parse(&cr_command_image, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help)
        cr_note(describe_all(&a, &words, &err));
    cr_words_free(&words);
    return err.status ? cr_command_fail(&cr_command_image, &err) : 0;
}

const cr_command cr_command_image = {
    "image",
    "image FILE .. [--model MODEL] [--resize FORM] [--alpha white] [--values FILE]",
    "Size and orientation of JPEG, PNG and WebP files, and with --model the grid of patches and "
    "the "
    "number of tokens that a vision-language model gets: one line of JSON a file.",
    "croll image photo.jpg --model /models/Qwen2.5-VL-3B-Instruct",
    run,
};
