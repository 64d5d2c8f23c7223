/* language.c -- see language.h.
 *
 * Every letter votes for its script; the script with most letters wins. Among the languages of that
 * script, each frequent word of a language counts 1, divided by the number of languages that have it
 * too, and each of its own letters counts LETTER. A script of one language needs no words.
 */
#include "rewards/language.h"
#include "rewards/text.h"

#include <string.h>

typedef enum script {
    LATIN,
    CYRILLIC,
    ARABIC,
    DEVANAGARI,
    HAN,
    KANA,
    HANGUL,
    GREEK,
    HEBREW,
    THAI,
    BENGALI,
    GURMUKHI,
    GUJARATI,
    TAMIL,
    TELUGU,
    KANNADA,
    MALAYALAM,
    NUM_SCRIPTS
} script;

static const struct {
    uint32_t first, last;
    script script;
} ranges[] = {
    {0x41, 0x5A, LATIN},        {0x61, 0x7A, LATIN},       {0xC0, 0x24F, LATIN},
    {0x1E00, 0x1EFF, LATIN},    {0x370, 0x3FF, GREEK},     {0x1F00, 0x1FFF, GREEK},
    {0x400, 0x52F, CYRILLIC},   {0x590, 0x5FF, HEBREW},    {0x600, 0x6FF, ARABIC},
    {0x750, 0x77F, ARABIC},     {0xFB50, 0xFDFF, ARABIC},  {0xFE70, 0xFEFF, ARABIC},
    {0x900, 0x97F, DEVANAGARI}, {0x980, 0x9FF, BENGALI},   {0xA00, 0xA7F, GURMUKHI},
    {0xA80, 0xAFF, GUJARATI},   {0xB80, 0xBFF, TAMIL},     {0xC00, 0xC7F, TELUGU},
    {0xC80, 0xCFF, KANNADA},    {0xD00, 0xD7F, MALAYALAM}, {0xE00, 0xE7F, THAI},
    {0x1100, 0x11FF, HANGUL},   {0x3130, 0x318F, HANGUL},  {0xAC00, 0xD7AF, HANGUL},
    {0x3040, 0x30FF, KANA},     {0x31F0, 0x31FF, KANA},    {0x3400, 0x4DBF, HAN},
    {0x4E00, 0x9FFF, HAN},      {0x20000, 0x2FA1F, HAN},
};

/* Frequent words between spaces; letters that few others of the script have. */
static const struct {
    const char *code;
    script script;
    const char *words, *letters;
} languages[] = {
    {"en", LATIN,
     " the and of to in is that it was for on are as with his they at be this from have or by had "
     "not but what were when we there can an your which their if will each how them then so these "
     "would he she you i my ",
     ""},
    {"de", LATIN,
     " der die das und ist in zu den mit von nicht ein eine sich auf es dem im auch als an nach "
     "wie "
     "aus bei oder nur sind noch werden einen wird um ich sie wir aber weil wenn war zum zur so ",
     "äöüß"},
    {"fr", LATIN,
     " le la les de des un une et est en que qui dans du pour pas au sur il elle ne se ce par plus "
     "avec son sa nous vous je mais ou était cette ils leur aux même ",
     "éèêàçùœîô"},
    {"es", LATIN,
     " el la los las de y que en un una es por con no para se su al lo como más pero sus le ya o "
     "este porque esta cuando muy sin sobre también me hasta hay donde ",
     "ñáíóú¿¡é"},
    {"it", LATIN,
     " il la di che e un una in per non sono con del della si da come gli le dei nel alla anche "
     "più "
     "questo lo ma al ha è delle era molto quando perché ",
     "òàìùè"},
    {"pt", LATIN,
     " o a os as de que e do da em um uma para com não por mais dos se na no como mas foi ao das "
     "são seu sua ou quando muito nos já também é ",
     "ãõçâáéêó"},
    {"nl", LATIN,
     " de het een en van is in op te dat die niet zijn met voor aan er om ook als maar dan nog "
     "naar "
     "bij ze wordt hij werd door over uit was toen omdat ",
     ""},
    {"sv", LATIN,
     " och att det i en som är av för på med till den har inte om ett han men var jag från kan ska "
     "när så eller de sig vi ",
     "åäö"},
    {"da", LATIN,
     " og at det i en som er af for på med til den har ikke om et han men var jeg fra kan skal når "
     "så eller de sig vi blev efter meget af ",
     "æøå"},
    {"no", LATIN,
     " og å det i en som er av for på med til den har ikke om et han men var jeg fra kan skal når "
     "så eller de seg vi ble etter veldig ",
     "æøå"},
    {"fi", LATIN,
     " ja on ei se että oli hän mutta ovat joka kun niin tai myös kuin sen olla mitä voi nyt siitä "
     "ne jotka koska hyvin ",
     "äö"},
    {"pl", LATIN,
     " i w na z się że nie do to jest o jak po co tak za od ale przez przy by był dla są oraz "
     "który "
     "gdy lub może ",
     "ąćęłńśźż"},
    {"cs", LATIN,
     " a se v na je že to s z do o i jako po pro k ale za jsou by byl nebo podle který když tak ",
     "ěščřžýůťďň"},
    {"sk", LATIN,
     " a sa v na je že to s z do o i ako po pre k ale za sú by bol alebo podľa ktorý keď tak ",
     "ľĺŕôäšťž"},
    {"sl", LATIN, " in je v na se da so za z ki s pa ne bi kot po tudi od ali ko pri sem bil zelo ",
     "čšž"},
    {"hr", LATIN,
     " i je u na se da su za s što ne bi kao po od ili ali koji iz to nije bio kada vrlo jer ",
     "čćđšž"},
    {"hu", LATIN,
     " a az és hogy nem is egy ez meg van de volt csak mint már ha még vagy el azt fel nagyon ",
     "őűöüáéí"},
    {"ro", LATIN,
     " și în de la a cu pe nu un o este care din că pentru mai sau sunt ca fost când dar lui ",
     "ășțâî"},
    {"tr", LATIN,
     " ve bir bu da de için ile çok olarak olan daha gibi ne kadar sonra var ama en o değil ",
     "ığşçöü"},
    {"vi", LATIN,
     " và của là có cho không được trong một những các người đã khi với này để như từ đến ",
     "ăâđêôơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ"},
    {"id", LATIN,
     " yang dan di untuk dengan ini itu dari dalam tidak akan pada juga ke ada oleh saya mereka "
     "karena adalah sangat bisa kami telah ",
     ""},
    {"sw", LATIN,
     " na ya wa kwa ni katika la za kuwa hii cha kama watu yake hiyo lakini sana pia au ili wao "
     "alikuwa ambayo ",
     ""},
    {"so", LATIN, " waa iyo ka oo ku in ay u soo la waxa uu inay aad isku waxaa ", ""},
    {"tl", LATIN, " ang ng sa na mga at ay hindi ito para ko ni siya nang kung ako may ", ""},
    {"sq", LATIN, " dhe në të e i një që për me nuk është nga si u do kjo kur shumë ", "ëç"},
    {"af", LATIN, " die en van is het in nie dat vir met op te hulle wat ek was sy aan ", "ê"},
    {"cy", LATIN, " y yn a i o ar ei mae wedi gan am eu bod yr oedd ac fel ", "ŵŷ"},
    {"et", LATIN, " ja on ei et see oli kui ta ka mis aga ning oma nad või väga selle ", "õäöü"},
    {"lv", LATIN, " un ir ar no par ka uz kas tas bija nav bet vai pie lai kā ļoti ",
     "āēīūģķļņčšž"},
    {"lt", LATIN, " ir yra kad su į iš ne tai kaip bet buvo ar per jis už labai ", "ąčęėįšųūž"},
    {"ca", LATIN, " el la de i que en un una és per amb no els les del al com més però va molt ",
     "àèòçï·"},
    {"ru", CYRILLIC,
     " и в не на что он с как это по но к из у за от то был для все она так же бы когда было о ",
     "ыэъё"},
    {"uk", CYRILLIC,
     " і в не на що він з як це по але до та у за від був для все вона так же й коли було про ",
     "іїєґ"},
    {"bg", CYRILLIC,
     " и в не на че той с как това по но към от за се да са е като беше много когато ", "ъ"},
    {"mk", CYRILLIC, " и во не на дека тој со како ова по но од за се да се е беше многу кога ",
     "ѓќѕј"},
    {"ar", ARABIC,
     " في من على إلى أن هذا التي كان لا ما مع عن هذه الذي هو كانت لأن عندما كل بعد وقد ", "ةىأإ"},
    {"fa", ARABIC, " و در به از که این را با است برای آن یک خود تا بود هم شد بر می کرد ", "پچژگکی"},
    {"ur", ARABIC, " کے کی میں اور ہے سے کا کو نے پر یہ ہیں کہ تھا ایک بھی ", "ٹڈڑںہھےگ"},
    {"hi", DEVANAGARI, " के है में की और से का को ने पर यह हैं कि था एक भी नहीं लिए हो तो वे थे थी ", ""},
    {"mr", DEVANAGARI, " आणि आहे या तो ते होते होता मध्ये हे ही की आहेत नाही एक साठी व ", "ळ"},
    {"ne", DEVANAGARI, " र छ को मा हो यो पनि ले लाई छन् भने थियो गर्न एक तथा थिए ", ""},
    {"zh-cn", HAN, "", "这们为个来时说国会对发开关见门问车东语学习书电话气样爱"},
    {"zh-tw", HAN, "", "這們為個來時說國會對發開關見門問車東語學習書電話氣樣愛"},
    {"ja", KANA, "", ""},
    {"ko", HANGUL, "", ""},
    {"el", GREEK, "", ""},
    {"he", HEBREW, "", ""},
    {"th", THAI, "", ""},
    {"bn", BENGALI, "", ""},
    {"pa", GURMUKHI, "", ""},
    {"gu", GUJARATI, "", ""},
    {"ta", TAMIL, "", ""},
    {"te", TELUGU, "", ""},
    {"kn", KANNADA, "", ""},
    {"ml", MALAYALAM, "", ""},
};

enum { NUM_LANGUAGES = CR_COUNT(languages), LONGEST_WORD = 32 };
static const double LETTER = 0.25;

bool cri_language_is_known(const char *code)
{
    for (size_t i = 0; i < NUM_LANGUAGES; i++)
        if (strcmp(languages[i].code, code) == 0) return true;
    return false;
}

static script script_of(uint32_t c)
{
    for (size_t i = 0; i < CR_COUNT(ranges); i++)
        if (c >= ranges[i].first && c <= ranges[i].last && cri_is_word(c)) return ranges[i].script;
    return NUM_SCRIPTS;
}

/* Japanese is written in Han and kana together. */
static script main_script(const char *text, size_t n)
{
    size_t votes[NUM_SCRIPTS + 1] = {0};
    script best = LATIN;

    for (size_t i = 0; i < n;)
        votes[script_of(cri_text_next(text, n, &i))]++;
    if (votes[KANA] && votes[KANA] * 8 >= votes[HAN]) {
        votes[KANA] += votes[HAN];
        votes[HAN] = 0;
    }
    for (int s = 0; s < NUM_SCRIPTS; s++)
        if (votes[s] > votes[best]) best = (script)s;
    return votes[best] ? best : NUM_SCRIPTS;
}

static void count_word(const char *word, size_t n, script of, double votes[])
{
    char key[LONGEST_WORD + 3] = " ";
    bool has[NUM_LANGUAGES] = {false};
    int num = 0;

    if (n == 0 || n > LONGEST_WORD) return;
    memcpy(key + 1, word, n);
    memcpy(key + 1 + n, " ", 2);
    for (size_t i = 0; i < NUM_LANGUAGES; i++)
        if (languages[i].script == of && strstr(languages[i].words, key)) has[i] = true, num++;
    for (size_t i = 0; i < NUM_LANGUAGES; i++)
        if (has[i]) votes[i] += 1.0 / num;
}

/* The votes of a text for each language; returns its script. */
static script count_votes(const char *text, double votes[NUM_LANGUAGES])
{
    char *low = cri_text_lower(text);
    size_t n = strlen(low), start = 0;
    script of = main_script(low, n);
    bool is_in = false;

    for (size_t i = 0; i < n && of != NUM_SCRIPTS;) {
        size_t at = i;
        uint32_t c = cri_text_next(low, n, &i);
        bool is_part = cri_is_word(c) || script_of(c) == of || c >= 0x900; /* vowel signs */
        char letter[5] = {0};
        if (is_part && !is_in) start = at;
        if (is_in && !is_part) count_word(low + start, at - start, of, votes);
        if (is_part && i == n) count_word(low + start, i - start, of, votes);
        is_in = is_part;
        memcpy(letter, low + at, i - at);
        for (size_t k = 0; c > 0x7F && k < NUM_LANGUAGES; k++)
            if (languages[k].script == of && strstr(languages[k].letters, letter))
                votes[k] += LETTER;
    }
    cr_free(low);
    return of;
}

/* The language of that script with most votes; NUM_LANGUAGES: none. */
static size_t winner(const double votes[NUM_LANGUAGES], script of)
{
    size_t best = NUM_LANGUAGES;

    for (size_t i = 0; i < NUM_LANGUAGES; i++)
        if (languages[i].script == of && (best == NUM_LANGUAGES || votes[i] > votes[best]))
            best = i;
    return best;
}

const char *cri_language_of(const char *text)
{
    double votes[NUM_LANGUAGES] = {0};
    const script of = count_votes(text, votes);
    const size_t best = winner(votes, of);

    return best == NUM_LANGUAGES ? "" : languages[best].code;
}

void cri_language_explain(const char *text, json_t *explain)
{
    double votes[NUM_LANGUAGES] = {0};
    json_t *shown;
    script of;

    if (!explain) return;
    of = count_votes(text, votes);
    shown = json_object();
    for (size_t num = 0, best; num < 5; num++) { /* the first ones */
        best = winner(votes, of);
        if (best == NUM_LANGUAGES || votes[best] < 0 || (num && votes[best] == 0)) break;
        json_object_set_new(shown, languages[best].code, json_real(votes[best]));
        votes[best] = -1;
    }
    cr_explain_value(explain, "votes", shown);
}
