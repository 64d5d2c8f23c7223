/* commands_mutants.c -- 1000 broken copies each of a YAML, a safetensors header, a tokenizer.json, a
 * data row and a formula's request, through the commands that read them: exit code 0 or 2 with a
 * sentence, whole lines of JSON out, no crash, no hang, no sanitizer report, no leak.
 *
 * The commands are called in a child process of this one, so that 1000 of them cost no 1000 starts; a
 * child that dies leaves its last input. tests/e2e/mutants.sh runs whole processes. More than
 * 1000: CROLL_MUTANTS=20000.
 * Not covered: commands that open a model (logprobs: there); Redis's bytes (fuzz_record).
 */
#include "commands/commands.h"
#include "formula/formula.h"
#include "models/files/safetensors.h"
#include "tests/check_near.h"
#include "tests/mutate.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_S = 60 }; /* for one call: a busy machine may stand still for ten seconds */

static size_t num_mutants = 1000;
static char folder[64];
static cr_buf said; /* by a child that failed; global, because fail_msg does not return */
static volatile size_t *current; /* mutant, shared with the child */

static const char *in_folder(const char *name)
{
    static char path[4][128];
    static size_t next;

    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[0], "%s/%s", folder, name);
    return path[next];
}

static void write_file(const char *path, const cr_buf *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    CR_CHECK(fd >= 0 && write(fd, text->data, text->num_bytes) == (ssize_t)text->num_bytes, "%s",
             path);
    close(fd);
}

static void read_file(const char *path, cr_buf *out)
{
    cr_err err = {0};

    if (cr_file_read(path, out, &err) != CR_OK) fail_msg("%s", err.msg);
}

/* ---- one command ---- */

static void send_to(int fd, const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    CR_CHECK(file >= 0 && dup2(file, fd) == fd, "%s", path);
    close(file);
}

/* Its exit code; stdin is the file `input`, stdout and stderr go to the files `out` and `err`. */
static int call(const cr_command *command, const char *const *words, const char *input)
{
    char *argv[8] = {(char *)(uintptr_t)command->name};
    int argc = 1, code;

    for (; words[argc - 1]; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc - 1];
    CR_CHECK(freopen(input ? input : "/dev/null", "r", stdin), "stdin");
    send_to(STDOUT_FILENO, in_folder("out"));
    send_to(STDERR_FILENO, in_folder("err"));
    alarm(LIMIT_S);
    code = command->run(argc, argv);
    alarm(0);
    fflush(stdout);
    return code;
}

/* Exit codes, and what was written. */
static void check_answer(int code, bool is_json)
{
    cr_buf text = {0};
    cr_err err = {0};

    CR_CHECK(code == 0 || code == 2, "exit code %d", code);
    CR_CHECK(cr_file_read(in_folder("err"), &text, &err) == CR_OK, "%s", err.msg);
    CR_CHECK(code == 0 || text.num_bytes > 20, "exit code 2 without a sentence");
    CR_CHECK(cr_file_read(in_folder("out"), &text, &err) == CR_OK, "%s", err.msg);
    for (size_t i = 0, end; is_json && i < text.num_bytes; i = end + 1) {
        json_t *json;
        for (end = i; text.data[end] && text.data[end] != '\n';)
            end++;
        CR_CHECK(end < text.num_bytes, "stdout does not end with a whole line");
        CR_CHECK(cr_json_parse(text.data + i, end - i, "stdout", &json, &err) == CR_OK, "%s",
                 err.msg);
        json_decref(json);
    }
    cr_buf_free(&text);
}

/* ---- children ---- */

/* Run try(0 .. num - 1) in a child; if that dies, say on which mutant, and show what it wrote. */
static void in_child(void (*try)(size_t number), size_t num)
{
    static const int deadly[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS};
    int status = 0;
    pid_t child;

    fflush(NULL);
    *current = 0;
    child = fork();
    if (child == 0) {
        for (size_t i = 0; i < CR_COUNT(deadly); i++)
            signal(deadly[i], SIG_DFL); /* cmocka's handler would go on with the next test here */
        for (size_t i = 0; i < num; i++) {
            *current = i;
            try(i);
        }
        exit(0); /* here a leak is reported */
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    if (status != 0) {
        read_file(in_folder("err"), &said);
        fail_msg("mutant %zu: %s %d; its files stay in %s; it wrote:\n%.3000s", *current,
                 WIFSIGNALED(status) ? "signal" : "exit code",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), folder,
                 said.data ? said.data : "");
    }
}

/* ---- what is broken ---- */

static cr_buf bases[12], mutant;
static size_t num_bases;

static void add_base(const char *path)
{
    read_file(path, &bases[num_bases++]);
}

static void add_text(const char *text)
{
    cr_buf_adds(&bases[num_bases++], text);
}

static void mutate_base(size_t number)
{
    const cr_buf *base = &bases[number % num_bases];

    mutate(base->data, base->num_bytes, number, &mutant);
}

static void forget_bases(void)
{
    for (size_t i = 0; i < num_bases; i++)
        cr_buf_free(&bases[i]);
    num_bases = 0;
}

/* fail_msg does not return, and the next test must not find this one's. */
static int no_bases(void **state)
{
    (void)state;
    forget_bases();
    return 0;
}

static void try_yaml(size_t number)
{
    const char *path = in_folder("mutant.yaml");

    mutate_base(number);
    write_file(path, &mutant);
    check_answer(call(&cr_command_config,
                      (const char *[]){path, number & 1 ? "--json" : "--raw", NULL}, NULL),
                 number & 1);
}

static void yaml(void **state)
{
    (void)state;
    add_base("configs/quickstart/rlvr.yaml");
    add_base("configs/quickstart/rlvr.yaml");
    add_base("configs/quickstart/sft.yaml");
    add_text("defaults:\n  - base\n  - _self_\na: &x {b: 1, c: [1, 2.5, ~]}\nd: {<<: *x, e: "
             "${a.b}}\nf: |\n  text\n  ${d.e}\ng: \"\\x41\"\nactor_train:\n  device_mapping: "
             "list(range(0,8))\n");
    add_text("1e999: a\n-9223372036854775808: [1.5, 2e-9]\n"); /* crashed once */
    in_child(try_yaml, num_mutants);
}

static void try_tensors(size_t number)
{
    const char *path = in_folder("mutant.safetensors");
    const cr_buf *base = &bases[0];
    uint64_t length;

    memcpy(&length, base->data, 8);
    if (number % 2) { /* the whole file */
        mutate_base(number);
    } else { /* the text of the header only, its length right */
        mutate(base->data + 8, length, number, &mutant);
        length = mutant.num_bytes;
        mutate_replace(&mutant, 0, 0, (const char *)&length, 8);
        memcpy(&length, base->data, 8);
        cr_buf_add(&mutant, base->data + 8 + length, base->num_bytes - 8 - length);
    }
    write_file(path, &mutant);
    check_answer(call(&cr_command_inspect,
                      (const char *[]){path, number % 4 < 2 ? "--json" : NULL, NULL}, NULL),
                 number % 4 < 2);
}

static void safetensors(void **state)
{
    static const cr_tensor_spec specs[] = {
        {"model.embed_tokens.weight", CR_F32, 2, {3, 5}},
        {"model.layers.0.mlp.down_proj.weight", CR_BF16, 3, {2, 0, 7}},
        {"model.norm.weight", CR_F16, 1, {9}},
        {"scalar", CR_F64, 0, {0}},
    };
    const char *path = in_folder("base.safetensors");
    float zeros[32] = {0};
    cr_tensor_writer *writer;
    cr_err err = {0};

    (void)state;
    if (cr_tensor_writer_open(path, specs, CR_COUNT(specs), &writer, &err) == CR_OK) {
        static const int64_t num[] = {15, 0, 9, 1};
        for (size_t i = 0; i < CR_COUNT(specs); i++)
            cr_note(cr_tensor_writer_put(writer, i, 0, num[i], zeros, &err));
        cr_note(cr_tensor_writer_close(writer, &err));
    }
    if (err.status != CR_OK) fail_msg("%s", err.msg);
    add_base(path);
    in_child(try_tensors, num_mutants);
}

static const char tokenizer_lines[] =
    "{\"id\":1,\"text\":\"Once upon a time, 12 \\u00fc\\ud83d\\ude00 don't\\n\\n  x\"}\n"
    "{\"id\":2,\"text\":\"<s>\\u0000</s><|im_end|> \"}\n{\"id\":3,\"text\":\"\"}\n";

static void try_tokenizer(size_t number)
{
    mutate_base(number);
    write_file(in_folder("tokenizer.json"), &mutant);
    check_answer(
        call(&cr_command_tokenize, (const char *[]){folder, "--text", NULL}, in_folder("lines")),
        true);
}

static void tokenizer(void **state)
{
    static const char *const files[] = {"tests/parity/tokenizers/pieces/tokenizer.json",
                                        "tests/parity/tokenizers/bytes/tokenizer.json"};
    cr_buf lines = {0};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(files); i++)
        add_base(files[i]);
    add_text(
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":9,\"content\":\"<s>\",\"special\":true,"
        "\"normalized\":false}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":false,\"use_regex\":true},\"post_processor\":null,\"decoder\":"
        "{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"n\":1,"
        "\"t\":2,\"i\":3,\"m\":4,\"e\":5,\"ti\":6,\"me\":7,\"time\":8},\"merges\":[\"t i\","
        "\"m e\",\"ti me\"]}}");
    cr_buf_adds(&lines, tokenizer_lines);
    write_file(in_folder("lines"), &lines);
    cr_buf_free(&lines);
    in_child(try_tokenizer, num_mutants);
}

/* ---- rows: all mutants of a base in one call, as in a pipe; and some calls of their own ---- */

static const cr_command *row_command;
static const char *row_argument;

static void try_rows(size_t number)
{
    cr_buf all = {0};

    for (size_t i = 0; i < num_mutants; i++) {
        mutate_base(number * num_mutants + i);
        cr_buf_add(&all, mutant.data, mutant.num_bytes);
        cr_buf_addc(&all, '\n');
    }
    write_file(in_folder("rows"), &all);
    cr_buf_free(&all);
    check_answer(call(row_command, (const char *[]){row_argument, NULL}, in_folder("rows")), true);
}

static void score_rows(void **state)
{
    (void)state;
    row_command = &cr_command_score;
    row_argument = "math_rule";
    add_text("{\"id\":1,\"prompt\":\"3+4=\",\"ground_truth\":\"7\",\"response\":\"so "
             "\\\\boxed{7}\"}");
    add_text("{\"id\":\"a\",\"prompt\":\"?\",\"ground_truth\":\"\\\\frac{1}{2}\",\"response\":"
             "\"<think>x</think>\\n\\n$\\\\boxed{0.5}$\",\"difficulty\":0.5}");
    add_text(
        "{\"id\":2,\"prompt\":\"?\",\"ground_truth\":\"(1, \\\\sqrt{2}) \\\\cup [3,\\\\infty)\","
        "\"response\":\"\\\\boxed{x^2+3x-1=0, \\\\text{or } {1,2^{10},\\\\pi/3}}\"}");
    in_child(try_rows, 1);
    row_argument = "ifeval";
    forget_bases();
    add_text("{\"id\":1,\"prompt\":\"p\",\"ground_truth\":\"{\\\"func_name\\\": "
             "\\\"validate_word_constraint\\\", \\\"N\\\": 5, \\\"quantifier\\\": \\\"at "
             "least\\\"}\",\"response\":\"one two. three? four\\n\\nfive * * * six\"}");
    add_text(
        "{\"id\":1,\"prompt\":\"p\",\"ground_truth\":\"{\\\"func_name\\\": "
        "\\\"verify_keywords\\\", \\\"keyword_list\\\": [\\\"a\\\", \\\"b\\\"]}\",\"response\":"
        "\"<<a>> [b] *c* P.S. d\"}");
    in_child(try_rows, 1);
}

static void tokenizer_rows(void **state)
{
    (void)state;
    row_command = &cr_command_tokenize;
    row_argument = "tests/parity/tokenizers/pieces";
    add_text("{\"id\":1,\"text\":\"Once upon a time, \\u00fc\\ud83d\\ude00 12\"}");
    add_text("{\"id\":\"b\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":"
             "\"assistant\",\"content\":\"there\"}]}");
    in_child(try_rows, 1);
    row_command = &cr_command_detokenize;
    forget_bases();
    add_text("{\"id\":1,\"input_ids\":[1,270,417,3,419]}");
    in_child(try_rows, 1);
}

static void try_formula(size_t number)
{
    mutate_base(number);
    write_file(in_folder("request"), &mutant);
    check_answer(call(&cr_command_formula,
                      (const char *[]){cr_formula_names[number % num_bases], NULL},
                      in_folder("request")),
                 true);
}

/* One request of each formula, in the order of cr_formula_names. */
static void formula(void **state)
{
    (void)state;
    add_text(
        "{\"scores\":[1,0,0.5,-1],\"group\":2,\"old_log_probs\":[[-1.5],[-0.5,-2],[],[-1]],"
        "\"ref_log_probs\":[[-1.25],[-0.5,-3],[],[-1]],\"values\":[[0],[0.5,1],[],[2]],"
        "\"final_mask\":[[1],[0,1],[],[1]],\"config\":{\"adv_estimator\":\"gae\",\"gamma\":0.9,"
        "\"whiten_rewards\":true,\"reward_clip\":2,\"add_token_level_kl\":true}}");
    add_text(
        "{\"log_probs\":[[-1,-2],[-3]],\"old_log_probs\":[[-1.1,-2],[-2]],\"ref_log_probs\":"
        "[[-1,-2.5],[-3]],\"infer_log_probs\":[[-1,-2],[-3]],\"entropy\":[[1,2],[0]],"
        "\"advantages\":[[1,-1],[0.5]],\"mask\":[[1,1],[1]],\"final_mask\":[[1,0],[1]],"
        "\"scores\":[1,0],\"weights\":[0.5,1.5],\"batch_num_tokens\":3,\"config\":{"
        "\"pg_variant\":\"ppo\",\"loss_agg_mode\":\"token-mean\",\"use_kl_loss\":true,"
        "\"entropy_loss_coef\":0.1,\"train_infer_correction\":{\"is_weight\":{\"enabled\":true,"
        "\"weight_type\":\"segment\"},\"filters\":[{\"enabled\":true}]}}}");
    add_text(
        "{\"values\":[[1,2],[3]],\"old_values\":[[1,2.5],[2]],\"returns\":[[0,1],[2]],\"mask\":"
        "[[1,0],[1]],\"config\":{\"value_clip\":0.2}}");
    add_text(
        "{\"old_log_probs\":[[-1,-2],[-3]],\"infer_log_probs\":[[-1.5,-2],[-3]],\"mask\":[[1,0],"
        "[1]],\"config\":{\"is_weight\":{\"enabled\":true,\"upper_bound\":null},\"filters\":"
        "[{\"enabled\":true,\"agg_type\":\"sequence\",\"ratio_low\":0.5}]}}");
    add_text("{\"lengths\":[3,8],\"scores\":[0,1],\"group\":2,\"response_length\":8,\"config\":"
             "{\"max_len_mask\":true,\"difficulty_mask\":true,\"error_max_len_threshold\":5}}");
    add_text("{\"logits\":[[0.5,1,-2],[88,0,1e4]],\"labels\":[2,0],\"grad_log_probs\":[1,-1],"
             "\"grad_entropy\":[0,0.5]}");
    add_text(
        "{\"init_kl_coef\":0.2,\"target_kl\":6,\"kl_horizon\":10000,\"steps\":[[3,64],[9,64]]}");
    add_text("{\"lr_scheduler_type\":\"polynomial\",\"learning_rate\":1e-5,\"warmup_steps\":2,"
             "\"max_steps\":10}");
    in_child(try_formula, num_mutants);
}

/* Found by fuzz_formula: the parser quotes the bytes it stopped at, line ends and all. */
static void a_sentence_is_one_line(void **state)
{
    static const char request[] = "{\n\"lr_\\w\r\x7fmup\n\": 1}";
    cr_err err = {0};
    cr_buf out = {0};

    (void)state;
    assert_int_equal(cr_formula("schedule", request, sizeof request - 1, &out, &err), CR_EFORMAT);
    assert_non_null(strstr(err.msg, "line 2"));
    for (const char *c = err.msg; *c; c++)
        assert_true((unsigned char)*c >= 0x20 && *c != 0x7f);
    cr_buf_free(&out);
}

/* ---- the program ---- */

static int open_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/croll_mutants_XXXXXX",
             cr_dir_exists("/dev/shm") ? "/dev/shm" : "/tmp"); /* thousands of small files */
    current =
        mmap(NULL, sizeof *current, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return current != MAP_FAILED && mkdtemp(folder) ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(yaml, no_bases),
        cmocka_unit_test_teardown(safetensors, no_bases),
        cmocka_unit_test_teardown(tokenizer, no_bases),
        cmocka_unit_test_teardown(score_rows, no_bases),
        cmocka_unit_test_teardown(tokenizer_rows, no_bases),
        cmocka_unit_test_teardown(formula, no_bases),
        cmocka_unit_test(a_sentence_is_one_line),
    };
    const char *more = getenv("CROLL_MUTANTS");
    int failed;
    cr_err err = {0};

    if (more) num_mutants = strtoul(more, NULL, 10);
    failed = cmocka_run_group_tests(tests, open_folder, NULL);
    cr_buf_free(&said);
    cr_buf_free(&mutant);
    if (!failed) cr_note(cr_remove_tree(folder, &err));
    return failed;
}
