/* data_images.c -- images of data rows: columns and parts of messages, placeholders in prompts and turns, what is left out, refused and
 * counted; references, and rows without bytes. Not covered: what a run makes of them (e2e/run_images.sh).
 */
#include "data/prompts.h"
#include "tests/byte_tokenizer.h"
#include "tests/prompt_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FILES "tests/parity/images"
#define PAD   257 /* <|image_pad|>, shown as '#' */
#define VIDEO 258 /* <|video_pad|>, shown as '%' */

static char *tags[] = {(char[]){"seen"}};
static cr_reward_config rewards[] = {
    {.domain = (char[]){"math_rule"}, .tags = tags, .num_tags = 1, .probability = 1}};
static cr_tokenizer *tokenizer;
static cr_config config;
static cr_worker_config from;
static cr_prompt_maker maker;

static int set_up(void **state)
{
    static const char processor[] =
        "{\"image_processor_type\":\"Qwen2VLImageProcessor\",\"patch_size\":4,\"merge_size\":2,"
        "\"temporal_patch_size\":2,\"min_pixels\":64,\"max_pixels\":256}";

    if (make_temp_folder(state) != 0) return -1;
    cr_free(put_file("preprocessor_config.json", processor, sizeof processor - 1));
    cr_free(put_file("config.json", "{\"model_type\":\"qwen2_5_vl\"}", 27));
    use_template(
        "{% for m in messages %}{{ m.role[0] }}:{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for p in m.content %}{% if p.type == 'image' %}(<|image_pad|>)"
        "{% elif p.type == 'video' %}[<|vision_start|><|video_pad|><|vision_end|>]"
        "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %};{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}");
    tokenizer = byte_tokenizer_of(",{\"id\":257,\"content\":\"<|image_pad|>\",\"special\":true},"
                                  "{\"id\":258,\"content\":\"<|video_pad|>\",\"special\":true}",
                                  NULL);
    return 0;
}

static int tear_down(void **state)
{
    cr_prompt_maker_close(&maker);
    cr_chat_close(chat);
    cr_tokenizer_close(tokenizer);
    return remove_temp_folder(state);
}

static void reset(void)
{
    static char messages[] = "messages", files[] = FILES;

    cr_prompt_maker_close(&maker);
    config = (cr_config){.rewards = rewards,
                         .num_rewards = 1,
                         .sequence_length = 200,
                         .train = {.model_path = temp_folder}};
    from = (cr_worker_config){.data = {.messages = messages, .image_folder = files}};
    maker = (cr_prompt_maker){.config = &config,
                              .from = &from,
                              .tokenizer = tokenizer,
                              .chat = chat,
                              .prompt_length = 100};
}

static cr_status load(const char *rows, cr_row_encode encode, cr_dataset *out, cr_err *err)
{
    char *path = put_file("rows.jsonl", rows, strlen(rows));

    *out = (cr_dataset){0};
    *err = (cr_err){0};
    cr_note(cr_prompt_load(&maker, encode, out, path, err));
    cr_free(path);
    return err->status;
}

/* One row, whose ids are `text`, where '#' is a placeholder. */
static void check(const char *row, cr_row_encode encode, const char *text, cr_dataset *data)
{
    cr_buf is = {0};
    cr_err err;

    if (load(row, encode, data, &err) != CR_OK) fail_msg("%s", err.msg);
    assert_int_equal(data->num_rows, 1);
    for (size_t i = 0; i < data->rows[0].num_ids; i++)
        cr_buf_addc(&is, data->rows[0].ids[i] == PAD     ? '#'
                         : data->rows[0].ids[i] == VIDEO ? '%'
                                                         : (char)data->rows[0].ids[i]);
    cr_buf_addc(&is, 0);
    assert_string_equal(is.data, text);
    cr_buf_free(&is);
}

/* 4 tokens each. */
static void check_item(const cr_row *row, size_t i, const char *name)
{
    const cr_item_refs refs = cr_row_items(row);
    char *path = cr_path_join(FILES, name), hex[CR_DIGEST_TEXT], is[CR_DIGEST_TEXT];
    cr_err err = {0};

    assert_true(i < refs.num);
    assert_int_equal(cr_digest_file(path, hex, NULL, &err), CR_OK);
    cr_item_digest_text(refs.digests + CR_ITEM_DIGEST * i, is);
    assert_string_equal(is, hex);
    assert_true(refs.grids[3 * i] == 1 && refs.grids[3 * i + 1] * refs.grids[3 * i + 2] == 16);
    cr_free(path);
}

#define USER(content) "{\"messages\":[{\"role\":\"user\",\"content\":" content "}],\"tag\":\"seen\""
#define PART(image)   "{\"type\":\"image\",\"image\":\"" image "\"}"

static void prompts(void **state)
{
    cr_dataset data;

    (void)state;
    reset();
    check(USER("\"a<image>b\"") ",\"images\":[\"png_rgb.png\"]}", cr_prompt_encode_rlvr,
          "u:a<|vision_start|>####<|vision_end|>b;a:", &data);
    assert_int_equal(data.rows[0].num_images, 1);
    check_item(&data.rows[0], 0, "png_rgb.png");
    assert_non_null(strstr(data.rows[0].text, "\"images\":[{\"sha256\":\""));
    assert_non_null(strstr(data.rows[0].text, "\"path\":\"png_rgb.png\"}]"));
    assert_non_null(strstr(data.rows[0].text, "a<image>b"));
    cr_dataset_free(&data);
    reset();
    check(USER("[" PART("png_rgb.png") ",{\"type\":\"text\",\"text\":\"?\"}," PART(
              "jpeg_420.jpeg") "]") "}",
          cr_prompt_encode_rlvr, "u:(####)?(####);a:", &data);
    check_item(&data.rows[0], 0, "png_rgb.png");
    check_item(&data.rows[0], 1, "jpeg_420.jpeg");
    cr_dataset_free(&data);
    reset();
    from.data.messages = NULL;
    from.data.prompt = (char[]){"q"};
    check("{\"q\":\"is <image> it?\",\"tag\":\"seen\",\"image\":\"png_rgb.png\"}",
          cr_prompt_encode_rlvr, "is <|vision_start|>####<|vision_end|> it?", &data);
    cr_dataset_free(&data);
    reset();
    check(USER("\"a <image> b\"") ",\"images\":[]}", cr_prompt_encode_rlvr,
          "u:a <image> b;a:", &data);
    assert_int_equal(data.rows[0].num_images, 0);
    cr_dataset_free(&data);
    reset(); /* the run's own limits */
    from.data.image_max_pixels = 64;
    check(USER("[" PART("png_rgb.png") ",{\"type\":\"text\",\"text\":\"?\"}]") "}",
          cr_prompt_encode_rlvr, "u:(#)?;a:", &data);
    cr_dataset_free(&data);
}

/* Bytes of a row do not stay in its JSON, wherever they were; the file they came from is what is put. */
static void bytes(void **state)
{
    cr_buf file = {0}, base64 = {0}, row = {0};
    cr_dataset data;
    cr_err err = {0};

    (void)state;
    assert_int_equal(cr_file_read(FILES "/png_rgb.png", &file, &err), CR_OK);
    cr_json_add_base64(&base64, file.data, file.num_bytes);
    for (int i = 0; i < 3; i++) {
        cr_buf_clear(&row);
        if (i == 0)
            cr_buf_addf(&row, USER("\"<image>\"") ",\"images\":[{\"bytes\":%s,\"path\":null}]}",
                        base64.data);
        else if (i == 1)
            cr_buf_addf(&row, USER("[{\"type\":\"image\",\"image\":%s}]") "}", base64.data);
        else /* messages as text */
            cr_buf_addf(
                &row,
                "{\"messages\":\"[{\\\"role\\\":\\\"user\\\",\\\"content\\\":[{\\\"type\\\":"
                "\\\"image\\\",\\\"image\\\":\\\"%.*s\\\"}]}]\",\"tag\":\"seen\"}",
                (int)base64.num_bytes - 2, base64.data + 1);
        reset();
        check(row.data, cr_prompt_encode_rlvr,
              i ? "u:(####);a:" : "u:<|vision_start|>####<|vision_end|>;a:", &data);
        check_item(&data.rows[0], 0, "png_rgb.png");
        assert_null(strstr(data.rows[0].text, "iVBOR"));
        assert_non_null(strstr(data.rows[0].text, "\"sha256\":"));
        assert_null(strstr(data.rows[0].text, "\"path\":"));
        assert_non_null(
            strstr(data.rows[0].text,
                   "\"image_sizes\":[[32,8]]")); /* height, width; the file has 30 x 9 */
        assert_non_null(strstr(data.rows[0].text, "\"model_type\":\"qwen2_5_vl\""));
        cr_dataset_free(&data);
    }
    cr_buf_free(&file);
    cr_buf_free(&base64);
    cr_buf_free(&row);
}

#define TURNS                                                                                     \
    "{\"messages\":[{\"role\":\"user\",\"content\":[" PART(                                       \
        "png_rgb.png") "]},{\"role\":"                                                            \
                       "\"assistant\",\"content\":\"bb\"},{\"role\":\"user\",\"content\":[" PART( \
                           "jpeg_420.jpeg") "]},{\"role\":\"assistant\",\"content\":\"cc\"},{"    \
                                            "\"role\":\"user\",\"content\":[" PART(               \
                                                "png_rgb.png") "]}]}"

static void answers(void **state)
{
    cr_dataset data;
    cr_err err;

    (void)state;
    reset();
    check(TURNS, cr_prompt_encode_sft, "u:(####);a:bb;u:(####);a:cc;", &data);
    assert_int_equal(data.rows[0].num_prompt, 11);
    assert_int_equal(data.rows[0].num_images, 2); /* the last stands after the last turn */
    cr_dataset_free(&data);
    for (int length = 11; length <= 28; length++) { /* the second image is at 17 .. 20 */
        reset();
        config.sequence_length = length;
        assert_int_equal(load(TURNS, cr_prompt_encode_sft, &data, &err), CR_OK);
        assert_int_equal(data.num_rows, length > 20);
        assert_int_equal(maker.num_cut_images, length <= 20);
        assert_int_equal(maker.num_cut, length > 20 && length < 28);
        cr_dataset_free(&data);
    }
    reset();
    config.rows.prompt_key = (char[]){"p"};
    config.rows.response_key = (char[]){"r"};
    from.data.messages = NULL;
    check("{\"p\":\"<image>?\",\"r\":\"ok\",\"images\":[\"png_rgb.png\"]}", cr_prompt_encode_sft,
          "u:<|vision_start|>####<|vision_end|>?;a:ok;", &data);
    assert_int_equal(data.rows[0].num_prompt, 40);
    check_item(&data.rows[0], 0, "png_rgb.png");
    cr_dataset_free(&data);
}

/* A question in its template, with images in front where it has no places; and of a row that is learnt whole all but its first id and
 * placeholders, whatever its turns are. */
static void questions(void **state)
{
#define QA ",\"r\":\"ok\"}"
    static const struct {
        const char *row, *text;
    } cases[] = {
        {"{\"p\":\"?\",\"image\":\"png_rgb.png\"" QA,
         "u:<|vision_start|>####<|vision_end|>Q: ?;a:ok;"},
        {"{\"p\":\"?\",\"image\":null" QA, "u:Q: ?;a:ok;"},
        {"{\"p\":\"a<image>?\",\"images\":[\"png_rgb.png\"]" QA,
         "u:Q: a<|vision_start|>####<|vision_end|>?;a:ok;"},
        {"{\"p\":\"?\",\"images\":[\"png_rgb.png\",\"jpeg_420.jpeg\"]" QA,
         "u:<|vision_start|>####<|vision_end|><|vision_start|>####<|vision_end|>Q: ?;a:ok;"},
        {TURNS, "u:(####);a:bb;u:(####);a:cc;"},
    };
    cr_dataset data;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        reset();
        config.distill.distill_on_prompt = true;
        config.rows = (cr_row_keys){.prompt_key = (char[]){"p"},
                                    .response_key = (char[]){"r"},
                                    .question_template = (char[]){"Q: " CR_QUESTION}};
        if (i + 1 < CR_COUNT(cases)) from.data.messages = NULL;
        check(cases[i].row, cr_prompt_encode_sft, cases[i].text, &data);
        assert_int_equal(data.rows[0].num_prompt, 1);
        assert_true((data.rows[0].learns != NULL) == (data.rows[0].num_images > 0));
        for (size_t t = 0; t < data.rows[0].num_ids && data.rows[0].learns; t++)
            assert_int_equal(data.rows[0].learns[t], t > 0 && data.rows[0].ids[t] != PAD);
        cr_dataset_free(&data);
    }
}

#define FRAMES "[\"png_gray.png\",\"jpeg_444.jpeg\",\"png_gray_1.png\"]"
#define CLIP   "{\"type\":\"video\",\"video\":" FRAMES ",\"fps\":4}"

/* Three frames of 40 x 24 pixels are two patches along t, each of 16 x 8: two tokens. */
static void check_video(const cr_dataset *data, const char *fps)
{
    const cr_item_refs refs = cr_row_items(&data->rows[0]);

    assert_int_equal(refs.num, 1);
    assert_true(refs.grids[0] == 2 && refs.grids[1] == 2 && refs.grids[2] == 4);
    assert_non_null(strstr(data->rows[0].text, "{\"sha256\":\""));
    assert_non_null(strstr(data->rows[0].text, "\"num_frames\":3,"));
    assert_non_null(strstr(data->rows[0].text, fps));
    assert_non_null(strstr(data->rows[0].text, "\"image_sizes\":[]"));
    assert_null(strstr(data->rows[0].text, "png_gray_1"));
}

static void videos(void **state)
{
    uint64_t digest[CR_ITEM_DIGEST];
    char hex[CR_DIGEST_TEXT];
    cr_buf first = {0};
    cr_dataset data;
    cr_err err = {0};

    (void)state;
    reset();
    check(USER("\"a<video>b\"") ",\"videos\":[" FRAMES "]}", cr_prompt_encode_rlvr,
          "u:a<|vision_start|>%%%%<|vision_end|>b;a:", &data);
    check_video(&data, "\"fps\":2");
    memcpy(digest, data.rows[0].image_digests, sizeof digest);
    data.image_folder = FILES; /* what is looked at: the first frame */
    cr_item_digest_text(digest, hex);
    assert_int_equal(cr_row_images_find(&data, hex, &first, &err), CR_OK);
    assert_true(first.num_bytes > 8 && memcmp(first.data, "\x89PNG", 4) == 0);
    cr_buf_free(&first);
    cr_dataset_free(&data);
    reset(); /* another rate is another video */
    check(USER("[" CLIP ",{\"type\":\"text\",\"text\":\"?\"}]") "}", cr_prompt_encode_rlvr,
          "u:[<|vision_start|>%%%%<|vision_end|>]?;a:", &data);
    check_video(&data, "\"fps\":4");
    assert_memory_not_equal(digest, data.rows[0].image_digests, sizeof digest);
    cr_dataset_free(&data);
    reset(); /* a rate of the run */
    from.data.video_fps = 4;
    from.data.video_max_pixels = 64;
    check(USER("[{\"type\":\"video\",\"video\":" FRAMES "}]") "}", cr_prompt_encode_rlvr,
          "u:[<|vision_start|>%%<|vision_end|>];a:", &data);
    assert_non_null(strstr(data.rows[0].text, "\"fps\":4"));
    cr_dataset_free(&data);
    reset(); /* an image beside it, each kind in its own order */
    check(USER("\"<video>a<image>\"") ",\"videos\":[{\"video\":" FRAMES
                                      "}],\"images\":[\"png_rgb.png\"]}",
          cr_prompt_encode_rlvr,
          "u:<|vision_start|>%%%%<|vision_end|>a<|vision_start|>####<|vision_end|>;a:", &data);
    assert_int_equal(data.rows[0].num_images, 2);
    check_item(&data.rows[0], 1, "png_rgb.png");
    cr_dataset_free(&data);
}

/* Qwen3-VL: a time before each patch of frames, and no row is cut among them. */
static void times(void **state)
{
    static const char row[] = "{\"messages\":[{\"role\":\"user\",\"content\":[" CLIP
                              "]},{\"role\":\"assistant\",\"content\":\"bb\"}]}";
    static const char text[] = "u:[<0.1 seconds><|vision_start|>%%<|vision_end|><0.5 "
                               "seconds><|vision_start|>%%<|vision_end|>];a:bb;";
    cr_dataset data;
    cr_err err = {0};

    (void)state;
    reset();
    cr_free(put_file("config.json", "{\"model_type\":\"qwen3_vl\"}", 25));
    check(row, cr_prompt_encode_sft, text, &data);
    cr_dataset_free(&data);
    for (int length = 30; length < (int)sizeof text - 1; length += 3) {
        reset();
        config.sequence_length = length;
        assert_int_equal(load(row, cr_prompt_encode_sft, &data, &err), CR_OK);
        assert_int_equal(data.num_rows, length >= 79);
        cr_dataset_free(&data);
    }
    reset();
    cr_free(put_file("config.json", "{\"model_type\":\"qwen2_5_vl\"}", 27));
}

static void reset_pairs(void)
{
    static char prompt[] = "q", chosen[] = "yes", rejected[] = "no";

    reset();
    from.data.messages = NULL;
    config.rows =
        (cr_row_keys){.prompt_key = prompt, .chosen_key = chosen, .rejected_key = rejected};
}

/* Pairs of one image: the prompt's length, and that the bytes of the image are in no column any more. */
static void check_pair(const char *row, const char *text, size_t num_prompt)
{
    cr_dataset data;

    check(row, cr_prompt_encode_pair, text, &data);
    assert_int_equal(data.rows[0].num_prompt, num_prompt);
    assert_int_equal(data.rows[0].num_images, 1);
    check_item(&data.rows[0], 0, "png_rgb.png");
    assert_null(strstr(data.rows[0].text, "iVBOR"));
    cr_dataset_free(&data);
}

#define TURN(role, content) "[{\"role\":\"" role "\",\"content\":" content "}]"

static void pairs(void **state)
{
    cr_buf file = {0}, base64 = {0}, row = {0};
    cr_dataset data;
    cr_err err = {0};

    (void)state;
    reset_pairs();
    check_pair("{\"q\":\"<image>?\",\"image\":\"png_rgb.png\",\"yes\":\"b\",\"no\":\"cc\"}",
               "u:<|vision_start|>####<|vision_end|>?;a:b;cc;", 40);
    reset_pairs();
    check_pair("{\"q\":" TURN("user", "[" PART("png_rgb.png") "]") ",\"yes\":" TURN(
                   "assistant", "\"b\"") ",\"no\":\"cc\"}",
               "u:(####);a:b;cc;", 11);
    reset_pairs(); /* the prompt inside the answers: bytes are in both */
    assert_int_equal(cr_file_read(FILES "/png_rgb.png", &file, &err), CR_OK);
    cr_json_add_base64(&base64, file.data, file.num_bytes);
    cr_buf_addf(&row,
                "{\"yes\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"image\":%s}]},{"
                "\"role\":\"assistant\",\"content\":\"b\"}],\"no\":[{\"role\":\"user\","
                "\"content\":[{\"type\":\"image\",\"image\":%s}]},{\"role\":\"assistant\","
                "\"content\":\"cc\"}]}",
                base64.data, base64.data);
    check_pair(row.data, "u:(####);a:b;cc;", 11);
    reset_pairs(); /* ready text */
    from.data.prompt = (char[]){"q"};
    check_pair("{\"q\":\"<image>?\",\"images\":[\"png_rgb.png\"],\"yes\":\"b\",\"no\":\"cc\"}",
               "<|vision_start|>####<|vision_end|>?bcc", 35);
    for (int length = 3; length <= 14; length++) { /* the longer sequence has 14 tokens */
        reset_pairs();
        config.sequence_length = length;
        assert_int_equal(load("{\"q\":" TURN("user", "[" PART("png_rgb.png") "]") ",\"yes\":\"b\","
                                                                                  "\"no\":\"cc\"}",
                              cr_prompt_encode_pair, &data, &err),
                         CR_OK);
        assert_true(data.num_rows == (length == 14) && maker.num_long_pairs == (length < 14));
        cr_dataset_free(&data);
    }
    cr_buf_free(&file);
    cr_buf_free(&base64);
    cr_buf_free(&row);
}

static void refused_pairs(void **state)
{
    static const struct {
        const char *row, *why;
    } cases[] = {
        {"{\"q\":\"?\",\"yes\":" TURN("assistant", "[" PART("png_rgb.png") "]") ",\"no\":\"c\"}",
         "yes: message 1 has a part of type 'image', and an answer is text only"},
        {"{\"q\":\"?\",\"image\":\"png_rgb.png\",\"yes\":\"b\",\"no\":\"c\"}",
         "the column has 1 images"},
        {"{\"q\":\"<image>\",\"image\":\"none.png\",\"yes\":\"b\",\"no\":\"c\"}", "No such file"},
        {"{\"q\":\"<image>\",\"image\":\"png_rgb.png\",\"yes\":\"<|image_pad|>\",\"no\":\"c\"}",
         "has 2 placeholders"},
    };
    cr_dataset data;
    cr_err err;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        reset_pairs();
        assert_int_not_equal(load(cases[i].row, cr_prompt_encode_pair, &data, &err), CR_OK);
        if (!strstr(err.msg, cases[i].why)) fail_msg("%zu: %s", i, err.msg);
        cr_dataset_free(&data);
    }
    reset_pairs(); /* a service is sent no images */
    config.reference =
        (cr_worker_config){.name = "reference", .service = {.url = (char[]){"http://127.0.0.1:1"}}};
    assert_int_equal(
        load("{\"q\":\"<image>\",\"image\":\"png_rgb.png\",\"yes\":\"b\",\"no\":\"c\"}",
             cr_prompt_encode_pair, &data, &err),
        CR_EFORMAT);
    assert_non_null(strstr(err.msg, "reference.service is sent token ids alone"));
    cr_dataset_free(&data);
}

/* What a row may not have: the error with its line, or, if images may be left out, a count. */
static void refused(void **state)
{
    static const struct {
        const char *row, *why;
        bool is_of_images;
    } cases[] = {
        {USER("[" PART("none.png") "]") "}", "message 1, image 1: none.png: No such file", true},
        {USER("[" PART("../parity/images/png_rgb.png") "]") "}", "leads out of image_folder", true},
        {USER("[" PART("images.json") "]") "}", "image 1", true},
        {USER("[" PART("data:image/png;base64,aaaa") "]") "}", "image 1", true},
        {USER("\"<image>\"") ",\"images\":[\"png_rgb.png\",\"png_rgb.png\"]}",
         "the column has 2 images", true},
        {USER("[{\"type\":\"image\",\"image\":\"png_rgb.png\"},{\"type\":\"text\",\"text\":"
              "\"<|image_pad|>\"}]") "}",
         "has 2 placeholders", false},
        {USER("[{\"type\":\"audio\",\"audio\":\"a.mp3\"}]") "}", "a part of type 'audio'", true},
        {USER("[{\"type\":\"video\",\"video\":\"a.mp4\"}]") "}", "a video is a list of frames",
         true},
        {USER("\"<video>\"") ",\"videos\":[\"a.mp4\"]}", "a video is a list of frames", true},
        {USER("\"x\"") ",\"videos\":[" FRAMES "]}", "the column has 1 videos", true},
        {USER("\"<video><video>\"") ",\"videos\":[" FRAMES "]}", "the column has no further one",
         true},
        {USER("\"<video>\"") ",\"videos\":[[]]}", "a video without frames", true},
        {USER("\"<video>\"") ",\"videos\":[[\"png_gray.png\",\"png_rgb.png\"]]}",
         "message 1, video 1: frame 2: it has 9 x 30 pixels, and the first frame 40 x 24", true},
        {USER("\"<video>\"") ",\"videos\":[[\"png_gray.png\",\"none.png\"]]}",
         "frame 2: none.png: No such file", true},
        {USER("\"<video>\"") ",\"videos\":[{\"video\":" FRAMES ",\"fps\":0}]}",
         "fps of a video: a number from 0.01", true},
    };
    cr_dataset data;
    cr_err err;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++)
        for (int drops = 0; drops < 2; drops++) {
            bool is_dropped = drops && cases[i].is_of_images;
            reset();
            from.data.drops_broken_images = drops;
            assert_int_equal(load(cases[i].row, cr_prompt_encode_rlvr, &data, &err) == CR_OK,
                             is_dropped);
            assert_true(is_dropped || strstr(err.msg, "rows.jsonl:1"));
            if (!strstr(is_dropped ? maker.images.first_broken : err.msg, cases[i].why))
                fail_msg("%zu: %s %s", i, err.msg, maker.images.first_broken);
            assert_int_equal(maker.images.num_broken, is_dropped);
            cr_dataset_free(&data);
        }
    reset(); /* longer than a prompt may be, which the images alone say */
    maker.prompt_length = 3;
    assert_int_equal(
        load(USER("[" PART("png_rgb.png") "]") "}", cr_prompt_encode_rlvr, &data, &err), CR_OK);
    assert_true(data.num_rows == 0 && maker.num_long == 1);
    cr_dataset_free(&data);
    reset(); /* a model without a processor */
    config.train.model_path = (char[]){"tests/parity"};
    assert_int_equal(
        load(USER("[" PART("png_rgb.png") "]") "}", cr_prompt_encode_rlvr, &data, &err),
        CR_EFORMAT);
    assert_non_null(strstr(err.msg, "text only"));
    cr_dataset_free(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts),   cmocka_unit_test(bytes), cmocka_unit_test(answers),
        cmocka_unit_test(videos),    cmocka_unit_test(times), cmocka_unit_test(refused),
        cmocka_unit_test(questions), cmocka_unit_test(pairs), cmocka_unit_test(refused_pairs)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
