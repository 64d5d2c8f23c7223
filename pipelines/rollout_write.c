/* rollout_write.c -- the files rollouts/: what was sampled, what was said of it, what it taught. */
#include "pipelines/rollout.h"
#include "samples/messages.h"

/* Ids that filters kept are written only where a step has few. */
static bool has_few_kept(const cr_rollout *rollout)
{
    const size_t max = 4 << 20; /* about 25 MB */
    size_t num = 0;

    for (size_t i = 0; i < rollout->num_samples; i++)
        num += rollout->samples[i].kept.num_ids;
    return num <= max;
}

/* is_first: of its group, whose row it has, so that the samples can be scored again. */
static cr_status add_sample(cr_buf *out, const cr_run *run, const cr_sample *s, const cr_row *row,
                            bool has_ids, bool is_first, cr_err *err)
{
    cr_sample_line line = {.tag.value = json_object_get(row->json, "tag"),
                           .prompt.value = row->asked,
                           .ground_truth.value = json_object_get(row->json, "ground_truth"),
                           .row.value = is_first ? row->json : NULL,
                           .prompt_ids = {row->ids, row->num_ids}};

    return cr_sample_line_write(s, run->config, has_ids, &line, out, err);
}

cr_status cr_rollout_write(const cr_run *run, const cr_rollout *rollout, const cr_dataset *data,
                           int64_t step, bool is_validation, cr_err *err)
{
    char *folder = cr_path_join(run->output_dir, "rollouts"),
         *path = cr_asprintf("%s/%s-%06lld.jsonl", folder, is_validation ? "val" : "step",
                             (long long)step);
    cr_buf out = {0};
    bool has_ids = has_few_kept(rollout);

    cr_note(cr_mkdirs(folder, err));
    for (size_t i = 0; i < rollout->num_samples && err->status == CR_OK; i++)
        cr_note(add_sample(&out, run, &rollout->samples[i], &data->rows[rollout->samples[i].row],
                           has_ids, i % rollout->group_size == 0, err));
    if (err->status == CR_OK)
        cr_note(cr_file_write_atomic(path, out.data ? out.data : "", out.num_bytes, err));
    cr_buf_free(&out);
    cr_free(path);
    cr_free(folder);
    return err->status;
}
