/* base_hub.c -- models by name in a cache as the tools of Hugging Face lay it out. Not covered: those tools. */
#include "base/hub.h"
#include "tests/check_near.h"
#include "tests/temp_folder.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void put(const char *name, const char *text)
{
    char *path = cr_path_join(temp_folder, name), *folder = cr_strdup(path);
    cr_err err = {0};

    *strrchr(folder, '/') = 0;
    if (cr_mkdirs(folder, &err) != CR_OK ||
        cr_file_write_atomic(path, text, strlen(text), &err) != CR_OK)
        fail_msg("%s", err.msg);
    cr_free(folder);
    cr_free(path);
}

static void check_found(const char *model, const char *end)
{
    char *found = cr_hub_find(model);

    if (end ? !found || !strstr(found, end) || strcmp(strstr(found, end), end) != 0 : found != NULL)
        fail_msg("%s is %s", model, found ? found : "not there");
    cr_free(found);
}

static void names(void **state)
{
    static const char *const good[] = {"Qwen/Qwen2.5-0.5B", "a/b@main", "a/b@0f"},
                             *const bad[] = {"/models/a", "./a/b",    "../b",  "a",
                                             "a/b/c",     "a/",       "/b",    "a/.b",
                                             "a/b@",      "a/b@../c", "a b/c", "output/x/"};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(good); i++)
        assert_true(cr_hub_is_name(good[i]));
    for (size_t i = 0; i < CR_COUNT(bad); i++)
        assert_false(cr_hub_is_name(bad[i]));
}

static void snapshots(void **state)
{
    cr_err err = {0};

    (void)state;
    put("hub/models--org--name/refs/main", "0abc");
    put("hub/models--org--name/refs/v2", "0def\n");
    put("hub/models--org--name/refs/bad", "../../x");
    put("hub/models--org--name/snapshots/0abc/config.json", "{}");
    put("hub/models--org--name/snapshots/0def/config.json", "{}");
    setenv("HF_HOME", temp_folder, 1);
    unsetenv("HF_HUB_CACHE");
    check_found("org/name", "snapshots/0abc");
    check_found("org/name@v2", "snapshots/0def");
    check_found("org/name@0def", "snapshots/0def");
    check_found("org/name@v3", NULL);
    check_found("org/name@bad", NULL);
    check_found("org/other", NULL);
    check_found(temp_folder, temp_folder);
    setenv("HF_HUB_CACHE", "/nowhere", 1); /* it comes first */
    check_found("org/name", NULL);
    assert_int_equal(cr_hub_absent("org/name@v2", &err), CR_EFORMAT);
    assert_non_null(strstr(err.msg, "there is no folder org/name@v2, and as a name"));
    assert_non_null(strstr(err.msg, "hf download org/name --revision v2 fills the cache"));
}

/* A path that was not downloaded yet is no name at Hugging Face: only the command that makes it is offered. */
static void paths(void **state)
{
    static const char *const local[] = {"models/Qwen2.5-0.5B", "my_runs/model"};

    (void)state;
    put("my_runs/other/x", "");
    assert_int_equal(chdir(temp_folder), 0);
    for (size_t i = 0; i < CR_COUNT(local); i++) {
        cr_err err = {0};
        char *says = cr_asprintf("there is no folder %s (croll downloads nothing: hf download "
                                 "ORG/NAME --local-dir %s makes it)",
                                 local[i], local[i]);
        assert_int_equal(cr_hub_absent(local[i], &err), CR_EFORMAT);
        assert_string_equal(err.msg, says);
        cr_free(says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(snapshots),
                                       cmocka_unit_test(paths)};

    return cmocka_run_group_tests(tests, make_temp_folder, remove_temp_folder);
}
