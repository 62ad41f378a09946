/* test_plots.c - curves of any length, nice axes, text and SVG of what may be drawn */
#include "../fl_data.h"
#include "disk.h"

static fl_data_curve line = {.name = "line"};

static char printed[1 << 16];
#define PRINT(...) print(__VA_ARGS__, ._end = 0)
#define print(curves, ...) print_opt(curves, (fl_data_plot_opts){__VA_ARGS__})
static const char *print_opt(fl_data_curves curves, fl_data_plot_opts o) {
    FILE *f = tmpfile();
    CHECK(f && fl_data_plot_print_opt(f, curves, o));
    rewind(f);
    printed[fread(printed, 1, sizeof printed - 1, f)] = 0;
    fclose(f);
    return printed;
}

static bool same_text(const char *got, const char *want) {
    if (!strcmp(got, want)) return true;
    printf("got:\n%s\nwanted:\n%s\n", got, want);
    return false;
}

TEST(curves_hold_any_number_of_points) {
    for (int total = 1; total < 5000; total += total < 20 ? 1 : total % 37 + 100) {
        fl_data_curve c = {.name = "c"};
        double sum = 0, of_curve = 0;
        int points = 0;
        for (int i = 0; i < total; i++) {
            const double y = sin(i) + i;
            fl_data_curve_add(&c, i, y);
            fl_data_curve_add(&c, i, NAN);
            fl_data_curve_add(&c, INFINITY, 1);
            fl_data_curve_add(&c, i, 2e300);
            sum += y;
        }
        int stride = 1;
        while (stride * FL_DATA_CURVE < total) stride *= 2;
        CHECK_EQ_INT(c.n, (total + stride - 1) / stride);
        for (int i = 0; i < c.n; i++) {
            const int here = i + 1 < c.n ? stride : total - stride * (c.n - 1);
            CHECK_NEAR(c.x[i], i * stride + (here - 1) / 2.0, 1e-9 * total);
            of_curve += c.y[i] * here;
            points += here;
        }
        CHECK_EQ_INT(points, total);
        CHECK_NEAR(of_curve, sum, 1e-9 * fabs(sum) + 1e-12);
    }
}

TEST(text) {
    fl_data_curve down = {.name = "down"};
    const fl_data_curves both = FL_DATA_CURVES(&line, &down), nothing = {0, {NULL}};
    for (int i = 0; i <= 4; i++) fl_data_curve_add(&line, i, i * 2.5), fl_data_curve_add(&down, i, 8 - 2 * i);
    CHECK(same_text(PRINT(both, .title = "A plot", .y_label = "y", .x_label = "step", .width = 21,
                          .height = 6, .ascii = true),
                    "              A plot  y:  * line  + down  \n"
                    "          10 |                  ***\n"
                    "             |+++           ****\n"
                    "           5 |   +++++  ****\n"
                    "             |      ****+++\n"
                    "             |  ****       +++++\n"
                    "           0 |**                +++\n"
                    "             +---------------------\n"
                    "              0         2         4  step\n"));
    CHECK_STR(PRINT(FL_DATA_CURVES(&line), .height = 3), "\u2524");
    CHECK_STR(printed, "\u2514\u2500");
    CHECK_STR(PRINT(nothing), "1 \u2524"); /* nothing to draw: an empty plot from 0 to 1 */
}

/* Every label of the y axis, as numbers from the top. */
static int labels(double *v) {
    int n = 0;
    for (char *row = printed, *end; (end = strchr(row, '\n')); row = end + 1) {
        char *after;
        const double x = strtod(row, &after);
        if (after != row && after - row <= 12 && strchr("|\xe2", after[1])) v[n++] = x;
    }
    return n;
}

static void check_axis(double low, double high, bool log) {
    fl_data_curve c = {.name = ""};
    fl_data_curve_add(&c, 0, low);
    fl_data_curve_add(&c, 1, high);
    double v[64];
    PRINT(FL_DATA_CURVES(&c), .height = 20, .log_y = log);
    const int n = labels(v);
    CHECK(n >= 2 && n <= 12);
    const double slack = 1e-5 * fmax(fabs(low), fabs(high));
    CHECK(v[0] >= high - slack && v[n - 1] <= low + slack); /* as far as six digits tell */
    if (log || !(high - low > 1e-11 * fabs(high) + 1e-299)) return; /* such a span is widened */
    CHECK(v[0] - v[n - 1] <= 3 * (high - low) + slack);
    const double step = (v[0] - v[n - 1]) / (n - 1), tenths = step / pow(10, floor(log10(step * 1.0001)));
    if (high - low > 1e-3 * fabs(high))
        CHECK(fabs(tenths - 1) < 0.01 || fabs(tenths - 2) < 0.01 || fabs(tenths - 5) < 0.01 ||
              fabs(tenths - 10) < 0.01);
}

TEST(axes_are_nice_whatever_the_numbers) {
    for (int e = -12; e <= 12; e++)
        for (int k = 1; k < 40; k += 3) check_axis(-k * pow(10, e) / 7, k * pow(10, e) / 3, false);
    check_axis(0, 1e300, false);
    check_axis(-1e300, 1e300, false);
    check_axis(5, 5, false);
    check_axis(0, 0, false);
    check_axis(1e16, 1e16 + 4, false);
    check_axis(1, 1 + 1e-15, false);
    check_axis(0, 5e-324, false);
    check_axis(1e-5, 1e5, true);
    check_axis(1e-300, 1e300, true);
    check_axis(3, 4, true);
    check_axis(7, 7, true);
    fl_data_curve c = {.name = "part"}; /* a log axis leaves out what is not positive */
    for (int i = -2; i < 3; i++) fl_data_curve_add(&c, i, i);
    CHECK_STR(PRINT(FL_DATA_CURVES(&c), .log_y = true, .log_x = true), "part");
}

static char *svg(const char *path) {
    node *f = disk_find(path)->file;
    f->bytes[f->size] = 0;
    return (char *)f->bytes;
}

static bool draw(void) {
    static fl_data_curve c = {.name = "a & <b> \xff\n"};
    if (!c.n) fl_data_curve_add(&c, 1, 2), fl_data_curve_add(&c, 3, 4);
    return fl_data_plot_svg("p.svg", FL_DATA_CURVES(&c), .title = "T<", .log_y = true);
}

TEST(svg_files) {
    begin();
    fl_scope s = fl_scope_begin();
    CHECK(draw());
    CHECK_STR(svg("p.svg"), "<svg xmlns=\"http://www.w3.org/2000/svg\"");
    CHECK_STR(svg("p.svg"), ">a &amp; &lt;b&gt; ? </text>");
    CHECK_STR(svg("p.svg"), ">T&lt;</text>");
    CHECK_STR(svg("p.svg"), "</svg>\n");
    CHECK(!strstr(svg("p.svg"), "nan") && !strstr(svg("p.svg"), "script"));
    /* a disk that fails leaves the old file or the new one */
    const int calls = count_calls(draw);
    CHECK(calls >= 4);
    for (int at = 1; at <= calls; at++) {
        disk_fault_at(0, FAULT_ERROR);
        disk_write("p.svg", "old", 3);
        disk_fault_at(at, FAULT_ERROR);
        CHECK(!draw());
        CHECK_ERROR("fl_data_plot_svg: p.svg");
        CHECK(!strcmp(svg("p.svg"), "old") || strstr(svg("p.svg"), "</svg>\n"));
        disk.fail_at = 0;
    }
    CHECK(sweep_heap(draw, false) > 2);
    end(&s);
}

static bool print_to_nowhere(void) {
    FILE *f = fopen("/dev/null", "w");
    const bool ok = f && fl_data_plot_print(f, FL_DATA_CURVES(&line));
    if (f) fclose(f);
    return ok;
}

TEST(what_cannot_be_drawn) {
    begin();
    fl_scope s = fl_scope_begin();
    const fl_data_curves none = {0, {NULL}}, missing = {1, {NULL}}, many = {17, {NULL}};
    CHECK(!fl_data_plot_print(NULL, none));
    CHECK_ERROR("fl_data_plot_print: the stream is NULL");
    CHECK(!fl_data_plot_print(stdout, missing));
    CHECK_ERROR("fl_data_plot_print: a curve is NULL, or an option is out of range");
    CHECK(!fl_data_plot_print(stdout, none, .width = 10001));
    CHECK_ERROR("an option is out of range");
    CHECK(!fl_data_plot_svg("x", many));
    CHECK_ERROR("fl_data_plot_svg: a curve is NULL, or an option is out of range");
    CHECK(!fl_data_plot_svg(NULL, none));
    CHECK_ERROR("fl_data_plot_svg: path is NULL");
    FILE *full = fopen("/dev/full", "w");
    if (full) {
        setvbuf(full, NULL, _IONBF, 0);
        CHECK(!fl_data_plot_print(full, none));
        CHECK_ERROR("fl_data_plot_print: cannot write");
        fclose(full);
    }
    CHECK(sweep_heap(print_to_nowhere, false) > 2);
    end(&s);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}

/* MIT licence: see LICENSE. */
