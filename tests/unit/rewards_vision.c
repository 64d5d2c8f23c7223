/* rewards_vision.c -- rules of vision-language rows: detection and video_r1, rows with reward_model, word error rates, and ROUGE and
 * stems against rouge_score and NLTK (tests/parity/rouge.py makes rouge.json).
 *
 * Not covered: the formula of detection on many cases (e2e/score_detection), lines of any bytes (fuzz_score).
 */
#include "configs/configs.h"
#include "rewards/rules.h"
#include "rewards/vision/boxes.h"
#include "rewards/vision/likeness.h"
#include "tests/ok.h"

#include <string.h>

static json_t *read_row(const char *text)
{
    json_t *row = NULL;

    OK(cr_json_parse(text, strlen(text), "row", &row, &err));
    return row;
}

/* A row in JSON as the rule takes it, with a response. */
static cr_rule_result ask(const char *rule, const char *row_text, const char *response)
{
    json_t *row = read_row(row_text);
    cr_rule_args a = {.row = row,
                      .response = response,
                      .response_bytes = strlen(response),
                      .deadline_s = cr_now_s() + 60};
    cr_rule_result r;

    OK(cr_rule_take_ground_truth(row, &err));
    cr_rule_find(rule)(&a, &r);
    json_decref(row);
    return r;
}

/* ---- rows ---- */

static void rows(void **state)
{
#define MODEL(members)                                                                             \
    "{\"reward_model\":{\"ground_truth\":\"<answer>[{'bbox_2d':[0,0,2,2],'label':'a'}]</answer>\"" \
    "," members "}}"
    static const struct {
        const char *rule, *row, *says; /* NULL: it is fine */
    } cases[] = {
        {"detection", MODEL("\"verifier_parm\":{\"det_reward_ratio\":{\"map\":1}}"), NULL},
        {"detection",
         MODEL("\"format_ratio\":null,\"verifier_parm\":{\"det_reward_ratio\":{\"map\":1,"
               "\"map50\":null}}"),
         NULL},
        {"detection", MODEL("\"verifier_parm\":{}"), "no verifier_parm.det_reward_ratio"},
        {"detection", "{\"ground_truth\":\"x\"}", "no verifier_parm.det_reward_ratio"},
        {"detection", MODEL("\"verifier_parm\":{\"det_reward_ratio\":{\"map\":0}}"), "are 0"},
        {"detection", MODEL("\"verifier_parm\":{\"det_reward_ratio\":{\"map\":1.5}}"),
         "map is not a number from 0 to 1"},
        {"detection", MODEL("\"verifier_parm\":{\"det_reward_ratio\":{\"map\":\"1\"}}"),
         "map is not a number"},
        {"detection",
         MODEL("\"accuracy_ratio\":-1,\"verifier_parm\":{\"det_reward_ratio\":{\"map\":1}}"),
         "accuracy_ratio is not a number"},
        {"detection",
         MODEL("\"accuracy_ratio\":0,\"format_ratio\":0,\"verifier_parm\":{\"det_reward_ratio\":{"
               "\"map\":1}}"),
         "are 0"},
        {"detection", "{\"reward_model\":{\"ground_truth\":null}}", "ground_truth is null"},
        {"math_rule", "{\"reward_model\":{\"ground_truth\":\"7\",\"style\":\"rule\"}}", NULL},
        {"math_rule", "{\"ground_truth\":null,\"reward_model\":\"{\\\"ground_truth\\\":7}\"}",
         NULL},
        {"math_rule", "{\"reward_model\":\"{ no JSON\"}", "ground_truth is missing"},
        {"video_r1",
         "{\"ground_truth\":\"<answer>B. x</answer>\",\"problem_type\":\"multiple choice\"}", NULL},
        {"video_r1", "{\"ground_truth\":\"1,000\",\"reward_model\":\"regression\"}", NULL},
        {"video_r1", "{\"ground_truth\":\"x\",\"problem_type\":\"OCR\"}", NULL},
        {"video_r1", "{\"ground_truth\":\"x\"}", "problem_type is missing"},
        {"video_r1", "{\"ground_truth\":\"x\",\"problem_type\":\"essay\"}", "is essay"},
        {"video_r1", "{\"ground_truth\":\"Blue\",\"problem_type\":\"multiple choice\"}",
         "no letter of a choice"},
        {"video_r1", "{\"ground_truth\":\"many\",\"problem_type\":\"numerical\"}",
         "is not a number"},
    };

    (void)state;
    for (size_t k = 0; k < CR_COUNT(cases); k++) {
        json_t *row = read_row(cases[k].row);
        cr_err why = {0};
        if (cr_rule_check_row(cases[k].rule, row, &why) != (cases[k].says ? CR_EFORMAT : CR_OK) ||
            (cases[k].says && !strstr(why.msg, cases[k].says)))
            fail_msg("%s: %s", cases[k].row, why.msg);
        json_decref(row);
    }
}

/* ROLL's rows: the object of reward_model, also as text; a ground truth of the row's own comes first. */
static void ground_truths(void **state)
{
    static const struct {
        const char *row, *gold;
    } cases[] = {{"{\"reward_model\":{\"ground_truth\":\"7\"}}", "7"},
                 {"{\"reward_model\":{\"ground_truth\":7.5}}", "7.5"},
                 {"{\"reward_model\":\" {\\\"ground_truth\\\":12345678901234567890123}\"}",
                  "12345678901234567890123"},
                 {"{\"reward_model\":{\"ground_truth\":\"7\"},\"ground_truth\":\"8\"}", "8"}};

    (void)state;
    for (size_t k = 0; k < CR_COUNT(cases); k++) {
        json_t *row = read_row(cases[k].row);
        OK(cr_rule_take_ground_truth(row, &err));
        assert_string_equal(cr_rule_text(row, "ground_truth"), cases[k].gold);
        json_decref(row);
    }
}

/* ---- detection ---- */

#define GOLD                                                                                 \
    "<answer>[{'bbox_2d':[0,0,10,10],'label':'Cat'},{'bbox_2d':[20,0,30,10],'label':'dog'}]" \
    "</answer>"
#define ROW(ratio, more)                                                        \
    "{\"reward_model\":{\"ground_truth\":\"" GOLD "\",\"verifier_parm\":{" more \
    "\"det_reward_ratio\":{" ratio "}}}}"

static void detections(void **state)
{
    static const struct {
        const char *ratio_row, *response;
        double score, reward;
    } cases[] = {
        {ROW("\"map\":1", ""), "\n<answer>\n" GOLD "\n</answer>", 0, 0}, /* a list inside a list */
        {ROW("\"map\":1", ""), GOLD, 1, 1 / 1.1},
        {ROW("\"iou_max_label_first\":1", ""),
         "\n<answer>\n[{'bbox_2d':[0,0,10,10],'label':'cat'},{'bbox_2d':[20,0,30,10],'label':'DOG'}"
         "]\n</answer>",
         1, 1},
        /* the best pair is recorded, not the last one that was looked at: labels agree for it alone */
        {ROW("\"iou_max_iou_first\":1", ""),
         "<answer>[{'bbox_2d':[0,0,10,10],'label':'cat'},{'bbox_2d':[20,0,30,11],'label':'cat'}]"
         "</answer>",
         0.5, 0.5 / 1.1},
        {ROW("\"iou_max_iou_first\":1", ""),
         "<answer>[{'bbox_2d':[0,0,10,10],'label':'cat'}]</answer>", 0.5 * 0.6, 0.3 / 1.1},
        {ROW("\"map50\":1", ""), "no list", 0, 0},
    };

    (void)state;
    for (size_t k = 0; k < CR_COUNT(cases); k++) {
        cr_rule_result r = ask("detection", cases[k].ratio_row, cases[k].response);
        assert_int_equal(r.outcome, CR_OUTCOME_OK);
        check_near(r.score, cases[k].score, 1e-12);
        check_near(r.reward, cases[k].reward, 1e-12);
    }
    assert_non_null(strstr(ask("detection", ROW("\"map\":1", ""), "no list").detail, CR_NO_ANSWER));
}

/* Boxes in pixels need what they are pixels of, and are never taken for thousandths without a word. */
static void pixels(void **state)
{
#define SCALED ROW("\"map\":1", "\"det_verifier_normalized\":true,")
    static const char image[] = ",\"model_type\":\"qwen2_5_vl\",\"image_sizes\":[[1000,500]]}",
                      other[] = ",\"model_type\":\"qwen3_vl\"}", none[] = "}",
                      no_size[] = ",\"model_type\":\"qwen2_5_vl\"}",
                      half[] = "<answer>[{'bbox_2d':[0,0,5,10],'label':'cat'},"
                               "{'bbox_2d':[10,0,15,10],'label':'dog'}]</answer>";
    static const struct {
        const char *more;
        double score; /* below 0: an error */
    } cases[] = {{image, 1}, {other, 0.05}, {none, -1}, {no_size, -1}};

    (void)state;
    for (size_t k = 0; k < CR_COUNT(cases); k++) {
        char row[2000];
        cr_rule_result r;
        snprintf(row, sizeof row, "%.*s%s", (int)strlen(SCALED) - 1, SCALED, cases[k].more);
        r = ask("detection", row, half);
        assert_int_equal(r.outcome, cases[k].score < 0 ? CR_OUTCOME_ERROR : CR_OUTCOME_OK);
        if (cases[k].score >= 0) check_near(r.score, cases[k].score, 1e-12);
    }
}

/* More boxes than anyone looks at: no time, no memory. */
static void many_boxes(void **state)
{
    cr_buf text = {0};
    double start = cr_now_s();
    cr_rule_result r;

    (void)state;
    cr_buf_adds(&text, "<answer>[");
    for (int i = 0; i < 50000; i++)
        cr_buf_addf(&text, "%s{\"bbox_2d\":[%d,0,%d.5,9],\"label\":\"cat\"}", i ? "," : "", i, i);
    cr_buf_adds(&text, "]</answer>");
    r = ask("detection", ROW("\"map\":1,\"iou_max_iou_first\":1", ""), text.data);
    assert_int_equal(r.outcome, CR_OUTCOME_OK);
    check_near(r.score, 0, 1e-100);
    assert_true(cr_now_s() - start < 30);
    cr_buf_free(&text);
}

/* ---- video_r1 ---- */

static void kinds(void **state)
{
    static const struct {
        const char *kind, *gold, *response;
        double score;
    } cases[] = {
        {"multiple choice", "<answer>B</answer>", "x <answer> B </answer>", 1},
        {"multiple choice", "<answer>B</answer>", "<answer>B. the dog</answer>", 1},
        {"multiple choice", "<answer>B</answer>", "<answer>Beautiful</answer>", 0},
        {"multiple choice", "<answer>B</answer>", "<answer>\\boxed{A} \\boxed{B}</answer>", 1},
        {"multiple choice", "<answer>B</answer>", "<answer>A</answer>", 0},
        {"multiple choice", "B", "", 0},
        {"numerical", "3.14", "<answer>3.1449</answer>", 1},
        {"numerical", "3.14", "<answer>3.15</answer>", 0},
        {"numerical", "42", "<answer>42.0</answer>", 0},
        {"numerical", "1,000", "<answer>1000.0</answer>", 1},
        {"numerical", "0.0", "<answer>-0.001</answer>", 1},
        {"numerical", "1", "<answer>nan</answer>", 0},
        {"numerical", "1", "<answer>0x1</answer>", 0},
        {"regression", "10", "<answer>9</answer>", 0.9},
        {"regression", "10", "<answer>about 9</answer>", 0},
        {"regression", "10", "<answer>30</answer>", 0},
        {"OCR", "the red cat sat", "<answer>the cat sat down</answer>", 0.5},
        {"OCR", "the red cat sat", "<answer>a b c d e f g h i</answer>", 0},
        {"OCR", "the red cat sat", "the red  cat\nsat", 1},
        {"free-form", "the cat runs home", "<answer>The cat is running home.</answer>",
         (8.0 / 9 + 4.0 / 7 + 8.0 / 9) / 3},
    };

    (void)state;
    for (size_t k = 0; k < CR_COUNT(cases); k++) {
        json_t *row =
            json_pack("{s:s, s:s}", "problem_type", cases[k].kind, "ground_truth", cases[k].gold);
        cr_buf text = {0};
        cr_rule_result r;
        OK(cr_json_add_value(&text, row, &err));
        r = ask("video_r1", text.data, cases[k].response);
        if (!(fabs(r.score - cases[k].score) < 1e-9) || r.reward != r.score)
            fail_msg("%s: %s: score %.17g", cases[k].kind, cases[k].response, r.score);
        cr_buf_free(&text);
        json_decref(row);
    }
}

static void formats(void **state)
{
    static const struct {
        const char *response;
        double format;
    } cases[] = {{"<think>a\nb</think>\n <answer>B</answer>", 1},
                 {"<think></think><answer>B</answer>", 1},
                 {"<think>a</think> b </think><answer>B</answer>", 1},
                 {" <think>a</think><answer>B</answer>", 0},
                 {"<think>a</think><answer>B</answer>.", 0},
                 {"<think>a</think>so <answer>B</answer>", 0},
                 {"<think>a<answer>B</answer>", 0},
                 {"<think></think><answer>", 0}};

    (void)state;
    for (size_t k = 0; k < CR_COUNT(cases); k++) {
        cr_rule_result r =
            ask("video_r1", "{\"ground_truth\":\"B\",\"problem_type\":\"multiple choice\"}",
                cases[k].response);
        if (r.reward - r.score != cases[k].format) fail_msg("%s: %g", cases[k].response, r.reward);
    }
}

/* ---- texts that are alike ---- */

static void rouge(void **state)
{
    json_t *all, *value;
    const char *word;
    size_t i;

    (void)state;
    OK(cr_json_read_file("tests/parity/rouge.json", &all, &err));
    assert_true(json_object_size(json_object_get(all, "stems")) > 700);
    json_object_foreach(json_object_get(all, "stems"), word, value)
    {
        char *stem = cr_strdup(word);
        cri_stem(stem);
        if (strcmp(stem, json_string_value(value)) != 0)
            fail_msg("%s: %s, not %s", word, stem, json_string_value(value));
        cr_free(stem);
    }
    json_array_foreach(json_object_get(all, "pairs"), i, value)
    {
        double got;
        assert_true(cri_rouge(json_string_value(json_array_get(value, 0)),
                              json_string_value(json_array_get(value, 1)), cr_now_s() + 60, &got));
        check_near(got, json_number_value(json_array_get(value, 2)), 1e-12);
    }
    json_decref(all);
}

/* Long texts are compared until the deadline, then there is no verdict. */
static void deadlines(void **state)
{
    cr_buf text = {0};
    double out;

    (void)state;
    for (int i = 0; i < 100000; i++)
        cr_buf_addf(&text, "w%d ", i % 1000);
    assert_false(cri_rouge(text.data, text.data, cr_now_s() - 1, &out));
    assert_false(cri_word_errors(text.data, text.data, cr_now_s() - 1, &out));
    assert_true(cri_word_errors("a", text.data, cr_now_s() - 1, &out)); /* no need to compare */
    check_near(out, 1, 0);
    cr_buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows),    cmocka_unit_test(ground_truths), cmocka_unit_test(detections),
        cmocka_unit_test(pixels),  cmocka_unit_test(many_boxes),    cmocka_unit_test(kinds),
        cmocka_unit_test(formats), cmocka_unit_test(rouge),         cmocka_unit_test(deadlines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
