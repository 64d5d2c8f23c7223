/* html.c -- see html.h. */
#include "reports/html.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char style[] =
    "body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;padding:24px;max-width:1000px;"
    "color:#1c2430;background:#fff}"
    "h1{font-size:26px;margin:0}h2{font-size:20px;margin:36px 0 6px;border-top:2px solid "
    "#e4e8ee;padding-top:18px}h3{font-size:15px;margin:22px 0 6px}"
    ".under{color:#667080;margin:2px 0 18px}"
    ".cards{display:flex;flex-wrap:wrap;gap:10px;margin:14px 0}"
    ".card{background:#f3f6fa;border-radius:8px;padding:10px 16px}"
    ".card b{display:block;font-size:21px}.card span{color:#667080;font-size:13px}"
    ".bad{background:#fdecea;border-left:5px solid #c8321f;padding:8px 14px;margin:8px 0}"
    ".warn{background:#fff6dd;border-left:5px solid #e0a021;padding:8px 14px;margin:8px 0}"
    ".good{background:#e9f6ec;border-left:5px solid #3b9b57;padding:8px 14px;margin:8px 0}"
    "table{border-collapse:collapse;margin:8px 0;font-size:14px}"
    "th{text-align:left;color:#667080;font-weight:600;padding:3px 12px 3px 0;vertical-align:bottom}"
    "td{padding:3px 12px 3px 0;border-top:1px solid #e4e8ee;vertical-align:top}"
    "td.n,th.n{text-align:right}td.n{white-space:nowrap;font-variant-numeric:tabular-nums}"
    "pre{font:11.5px/1.4 ui-monospace,monospace;background:#f3f6fa;padding:10px 14px;"
    "border-radius:8px;overflow-x:auto;margin:6px 0}"
    "td pre{white-space:pre-wrap;background:none;padding:0;margin:0}"
    "td svg{min-width:110px}svg{display:block;max-width:100%;height:auto}"
    "svg text{font:12px system-ui,sans-serif;fill:#465060}svg .small{font-size:11px}"
    "svg .axis{stroke:#d5dbe4;stroke-width:1}"
    ".legend{font-size:13px;color:#465060;margin:4px 0 10px}"
    ".legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin:0 5px 0 0}"
    ".legend span{margin-right:14px;white-space:nowrap}"
    ".curves{display:flex;flex-wrap:wrap;gap:12px}figure{margin:0;width:315px}"
    "figcaption{font-size:13px}figcaption b{float:right}small,.quiet{color:#667080}"
    ".images{display:flex;flex-wrap:wrap;align-items:flex-start;gap:4px;margin:0 0 4px}.images "
    "img{max-width:128px;"
    "max-height:128px;min-height:40px;object-fit:contain;border:1px solid #d5dbe4}"
    "details{margin:8px 0}summary{cursor:pointer;color:#2457a6}";

void cr_html_begin(cr_buf *out, const char *title, const char *under)
{
    cr_buf_adds(out, "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">"
                     "<head><meta charset=\"utf-8\"/><meta name=\"viewport\" "
                     "content=\"width=device-width\"/><meta http-equiv=\"Content-Security-Policy\" "
                     "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\"/>"
                     "<title>");
    cr_html_adds(out, title);
    cr_buf_addf(out, "</title><style>%s</style></head>\n<body><h1>", style);
    cr_html_adds(out, title);
    cr_buf_adds(out, "</h1>\n");
    if (!under) return;
    cr_buf_adds(out, "<p class=\"under\">");
    cr_html_adds(out, under);
    cr_buf_adds(out, "</p>\n");
}

void cr_html_end(cr_buf *out)
{
    cr_buf_adds(out, "</body></html>\n");
}

static bool is_xml(uint32_t c)
{
    return c == '\t' || c == '\n' || c == '\r' || (c >= 0x20 && c != 0xfffe && c != 0xffff);
}

void cr_html_add(cr_buf *out, const char *text, size_t num_bytes)
{
    for (size_t i = 0; i < num_bytes;) {
        uint32_t c;
        int n = cr_utf8_decode(text + i, num_bytes - i, &c);

        if (n == 0 || !is_xml(c))
            cr_buf_adds(out, "\xef\xbf\xbd");
        else if (c == '<')
            cr_buf_adds(out, "&lt;");
        else if (c == '>')
            cr_buf_adds(out, "&gt;");
        else if (c == '&')
            cr_buf_adds(out, "&amp;");
        else if (c == '"')
            cr_buf_adds(out, "&quot;");
        else
            cr_buf_add(out, text + i, (size_t)n);
        i += n ? (size_t)n : 1;
    }
}

void cr_html_adds(cr_buf *out, const char *text)
{
    cr_html_add(out, text, strlen(text));
}

const char *cr_size_text(int64_t bytes, char text[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double x = (double)bytes;
    size_t u = 0;

    while (x >= 1024 && u + 1 < CR_COUNT(units))
        x /= 1024, u++;
    snprintf(text, 32, u == 0 ? "%.0f %s" : "%.2f %s", x, units[u]);
    return text;
}

const char *cr_seconds_text(double s, char text[32])
{
    if (s < 0.9995e-3)
        snprintf(text, 32, "%.0f us", s * 1e6);
    else if (s < 0.9995)
        snprintf(text, 32, "%.3g ms", s * 1e3);
    else if (s < 600)
        snprintf(text, 32, "%.2f s", s);
    else
        snprintf(text, 32, "%.0f min", s / 60);
    return text;
}

double cr_axis_step(double length, int num)
{
    double step = pow(10, floor(log10(length / num)));

    return step * (length / num > 5 * step   ? 10
                   : length / num > 2 * step ? 5
                   : length / num > step     ? 2
                                             : 1);
}
