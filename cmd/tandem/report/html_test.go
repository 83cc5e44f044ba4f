package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

func render(t testing.TB, d *Data) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := HTML(&b, d); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// failing returns a run with many failures.
func failing() *Data {
	d := sample(5, 60)
	d.KVMoved = -1
	for i := range d.Requests {
		if r := &d.Requests[i]; i%4 == 0 {
			*r = Request{Number: r.Number, Class: r.Class, API: r.API, Start: r.Start, KVBytes: -1,
				Failure: "POST /v1/chat/completions: unexpected EOF"}
		} else if i%7 == 0 {
			r.Decision, r.Reason, r.Phases, r.ITL = "refused", "no-prefill", nil, nil
		}
	}
	d.Checks[0].Passed, d.Checks[0].Got = false, "41 of 60 answers are equal"
	return d
}

// evil breaks out of text, attributes, SVG and style sheets that do not escape it, and forges lines on terminals.
const evil = `</title></svg></style><script>alert(1)</script><img src=x onerror="alert(1)">"'` + "`{{.}} &lt; \x1b[32mok\x1b[0m\x00\u202e\xff"

// hostile has evil strings in every string, and impossible numbers.
func hostile() *Data {
	long := strings.Repeat("W", 3000)
	d := sample(9, 20)
	d.Title, d.Stack = evil+long, []string{evil, long}
	for i := range d.Requests {
		r := &d.Requests[i]
		r.Class, r.API, r.Reason, r.Failure = evil+strconv.Itoa(i%3)+long, evil, evil, evil+long
		r.TTFT = []float64{math.NaN(), math.Inf(1), -1, 1e-9, 1e300, 5}[i%6]
		r.ITL = append(r.ITL, math.NaN(), math.Inf(-1), 1e11)
		r.Phases[evil] = 1
		if i%5 == 0 {
			r.Decision = evil
		}
	}
	for i := range d.Load {
		x := &d.Load[i]
		x.Endpoint += evil + long
		x.Role, x.KVUsage = evil, []float64{math.NaN(), 7, -1}[i%3]
	}
	d.Load = append(d.Load, LoadSample{At: math.Inf(1), Endpoint: "x"}, LoadSample{Running: -3, Endpoint: "y"},
		LoadSample{Running: math.MaxInt32, Endpoint: "z"})
	for i := range d.Why {
		d.Why[i].Question = evil + long
		x := d.Why[i].Explanation
		x.Reason, x.Decider.Name, x.Decider.Parameters = evil, evil, map[string]any{evil: evil, "nonCachedTokens": -1}
		x.Trace.Stages[0].Candidates[0].Endpoint, x.Trace.Stages[0].Candidates[0].Why = evil+long, evil
		x.Trace.Stages[0].Candidates[0].Scores[0].Scorer = evil
	}
	d.Why = append(d.Why, Why{Question: evil}, Why{Explanation: &epp.Explanation{Decider: epp.DeciderNumbers{Tokens: -5,
		Uncached: -5, Parameters: math.NaN()},
		Refusal: &epp.RefusalSummary{Status: 400, Message: evil}}})
	c := d.Comparison
	c.About, c.Goal, c.Step = []string{evil, long}, Goal{math.NaN(), math.Inf(1)}, math.Inf(-1)
	c.Sides[0].Name, c.Sides[1].Name = evil, long
	c.Sides[0].About, c.Sides[1].About = long, evil
	for i := range c.Sides[0].Rounds {
		r := &c.Sides[0].Rounds[i]
		r.Seconds = 0
		r.Samples = append(r.Samples, Sample{Kind: evil + long, Late: math.NaN(), TTFT: math.Inf(1), ITL: []float64{math.NaN(), -1}, Failure: evil})
	}
	d.Checks = append(d.Checks, Check{Name: evil, Got: evil + long})
	return d
}

// pages returns the data of all pages to check.
func pages() map[string]*Data {
	return map[string]*Data{"sample": sample(1, 90), "one": sample(3, 1), "empty": {}, "failed": failing(),
		"hostile": hostile()}
}

// rendered returns all pages, those of benchmarks and trials too.
func rendered(t testing.TB) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for name, d := range pages() {
		all[name] = render(t, d)
	}
	for name, m := range benchmarks() {
		all["bench "+name] = renderMeasured(t, m)
	}
	for name, m := range trials() {
		all["trial "+name] = renderTrial(t, m)
	}
	for name, m := range plots() {
		all["plots "+name] = renderPlots(t, m)
	}
	return all
}

// element is one start tag of a page with its ancestors.
type element struct {
	name  string
	attrs map[string]string
	text  string // directly inside
	path  string // names from the root, its own included
	first bool   // first child of its parent
}

// parsed reads a page, which must also be valid XML, with every tag closed.
func parsed(t testing.TB, page []byte) (all []*element) {
	t.Helper()
	dec := xml.NewDecoder(bytes.NewReader(page))
	dec.Strict = true
	var open []*element
	children := []int{0}
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the page is not well-formed: %v", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			e := &element{name: token.Name.Local, attrs: map[string]string{}, path: token.Name.Local, first: children[len(open)] == 0}
			for _, a := range token.Attr {
				e.attrs[a.Name.Local] = a.Value
			}
			if len(open) > 0 {
				e.path = open[len(open)-1].path + " " + e.name
			}
			children[len(open)]++
			all, open, children = append(all, e), append(open, e), append(children, 0)
		case xml.EndElement:
			open, children = open[:len(open)-1], children[:len(open)]
		case xml.CharData:
			if len(open) > 0 {
				open[len(open)-1].text += string(token)
			}
		}
	}
	return all
}

// allowed lists all elements that a page may have: none that loads, runs, sends or embeds anything.
var allowed = strings.Fields(`html head meta title style body a header main footer nav section article h1 h2 h3 p ul ol li dl dt dd div span b
	figure figcaption details summary table caption thead tbody tr th td svg desc rect line circle path text g`)

func TestPageIsSelfContained(t *testing.T) {
	for name, page := range rendered(t) {
		t.Run(name, func(t *testing.T) {
			for _, e := range parsed(t, page) {
				if !slices.Contains(allowed, e.name) {
					t.Errorf("element %s", e.path)
				}
				for attr, value := range e.attrs {
					if strings.HasPrefix(attr, "on") || attr == "style" || attr == "src" || attr == "href" && !strings.HasPrefix(value,
						"#") {
						t.Errorf("%s has %s=%q", e.path, attr, value)
					}
				}
				if e.name == "style" && e.text != styleText {
					t.Error("the style sheet is not the embedded one")
				}
			}
			if bad := regexp.MustCompile(`NaN|Inf|%!`).Find(page); bad != nil {
				t.Errorf("the page shows %q", bad)
			}
		})
	}
	if loads := regexp.MustCompile(`url\(|@import|@font-face`).FindString(styleText); loads != "" {
		t.Errorf("the style sheet has %s", loads)
	}
}

func TestPageIsAccessible(t *testing.T) {
	for name, page := range rendered(t) {
		t.Run(name, func(t *testing.T) {
			all := parsed(t, page)
			count, ids, level := map[string]int{}, map[string]int{}, 0
			var links []string
			for i, e := range all {
				count[e.name]++
				if id := e.attrs["id"]; id != "" {
					ids[id]++
				}
				for _, attr := range []string{"href", "aria-labelledby"} {
					if to := strings.TrimPrefix(e.attrs[attr], "#"); to != "" {
						links = append(links, to)
					}
				}
				switch {
				case e.name == "svg" && !strings.HasSuffix(e.path, "svg svg") && e.attrs["aria-hidden"] != "true":
					if e.attrs["role"] != "img" || all[i+1].name != "title" || all[i+2].name != "desc" || all[i+1].text == "" ||
						all[i+2].text == "" {
						t.Errorf("a drawing has no title: %v, then %v and %v", e.attrs, all[i+1], all[i+2])
					}
				case e.name == "table" && all[i+1].name != "caption":
					t.Errorf("%s has no caption", e.path)
				case e.name == "th" && e.attrs["scope"] == "":
					t.Errorf("%s has no scope", e.path)
				case e.attrs["tabindex"] != "" && (e.attrs["aria-label"] == "" || e.attrs["role"] != "region"):
					t.Errorf("%s can have the focus, but no name", e.path)
				case regexp.MustCompile(`^h[1-6]$`).MatchString(e.name):
					if next := int(e.name[1] - '0'); next > level+1 {
						t.Errorf("heading %q skips a level", e.text)
					} else {
						level = next
					}
				}
			}
			for _, once := range []string{"h1", "main", "header", "nav", "footer"} {
				if count[once] != 1 {
					t.Errorf("%d elements %s", count[once], once)
				}
			}
			for _, to := range links {
				if ids[to] != 1 {
					t.Errorf("%d elements have the id %q", ids[to], to)
				}
			}
			if all[0].attrs["lang"] != "en" {
				t.Error("the page has no language")
			}
		})
	}
}

func TestPageContents(t *testing.T) {
	page := string(render(t, sample(1, 90)))
	failed := string(render(t, failing()))
	empty := string(render(t, &Data{}))
	for name, c := range map[string]struct{ page, want string }{
		"title":         {page, "<h1>Tandem demo</h1>"},
		"summary":       {page, "90 requests in 10.2 s: 41 prefilled remotely, 49 locally."},
		"checks":        {page, "All 5 checks passed."},
		"decider":       {page, "88 of 1560 prompt tokens are not cached on the decode endpoint (nonCachedTokens 256, promptTokens 0)"},
		"score":         {page, ">0.944</td>"},
		"filtered":      {page, "dropped by decode-filter"},
		"usual request": {page, "The remote request with the median TTFT"},
		"slow request":  {page, "The slowest request, by TTFT"},
		"pods":          {page, ", prefilled on prefill-"},
		"comparison":    {page, "P/D pays here in ITL p99 ("},
		"sides":         {page, "</b>: 2 engines prefill for the other 2</p>"},
		"whole answers": {page, "Answers in one piece (E2E)"},
		"table":         {page, "Table of 90 requests"},
		"failed check":  {failed, "FAILED: 1 of 5 checks."},
		"failed mark":   {failed, "✗ FAILED"},
		"failure":       {failed, "unexpected EOF"},
		"more failures": {failed, "and 5 more"},
		"nothing":       {empty, "No request was sent. Nothing was checked."},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(c.page, c.want) {
				t.Errorf("the page does not have %q", c.want)
			}
		})
	}
	if strings.Contains(empty, `findings passed"`) {
		t.Error("a run without checks looks as if it had passed some")
	}
}

// many returns a run of 5,000 requests on 100 endpoints.
func many() *Data {
	d := unsampled(2, 5000)
	for i := range 200_000 {
		d.Load = append(d.Load, LoadSample{At: float64(i), Endpoint: fmt.Sprintf("default/endpoint-%d", i%100), Role: "decode",
			Running: i % 7, InFlight: i % 9, KVUsage: 0.5})
	}
	return d
}

func TestPageOfManyRequestsIsSmall(t *testing.T) {
	const limit = 3 << 20
	classes := many()
	for i := range classes.Requests {
		classes.Requests[i].Class = fmt.Sprintf("class %d", i)
		classes.Requests[i].Reason = fmt.Sprintf("reason-%d", i)
	}
	for name, d := range map[string]*Data{"few classes": many(), "as many classes": classes} {
		t.Run(name, func(t *testing.T) {
			page := render(t, d)
			if len(page) > limit {
				t.Errorf("%d bytes", len(page))
			}
			if rows := bytes.Count(page, []byte(`<tr><th scope="row">`)); rows < 5000 {
				t.Errorf("%d rows", rows)
			}
			if !bytes.Contains(page, []byte("52 more endpoints are not drawn")) {
				t.Error("the number of omitted endpoints is missing")
			}
		})
	}
}

func BenchmarkHTML(b *testing.B) {
	d := many()
	b.ReportAllocs()
	for b.Loop() {
		render(b, d)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestWriterErrors(t *testing.T) {
	for name, show := range map[string]func(io.Writer, *Data) error{"HTML": HTML, "Text": Text} {
		if err := show(full{}, sample(1, 3)); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

var declaration = regexp.MustCompile(`--([a-z]+): (#[0-9a-f]{6});`)

// schemes returns the colours of the style sheet by name: light, and dark with what it inherits from light.
func schemes(t *testing.T) map[string]map[string]string {
	t.Helper()
	light, dark, ok := strings.Cut(styleText, "@media (prefers-color-scheme: dark)")
	if !ok {
		t.Fatal("no dark scheme")
	}
	read := func(css string) map[string]string {
		colours := map[string]string{}
		for _, m := range declaration.FindAllStringSubmatch(css, -1) {
			colours[m[1]] = m[2]
		}
		return colours
	}
	all := map[string]map[string]string{"light": read(light), "dark": read(dark)}
	if l, d := slices.Sorted(maps.Keys(all["light"])), slices.Sorted(maps.Keys(all["dark"])); !slices.Equal(l, d) ||
		len(l) < 20 {
		t.Fatalf("light has %v, dark has %v", l, d)
	}
	return all
}

// luminance returns the relative luminance of WCAG 2.2.
func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	rgb, err := strconv.ParseUint(colour[1:], 16, 32)
	if err != nil {
		t.Fatal(err)
	}
	linear := func(shift int) float64 {
		c := float64(rgb>>shift&0xff) / 255
		if c <= 0.04045 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*linear(16) + 0.7152*linear(8) + 0.0722*linear(0)
}

func TestContrast(t *testing.T) {
	if one, other := luminance(t, "#ffffff"), luminance(t, "#000000"); math.Abs(one-1) > 1e-9 || other != 0 {
		t.Fatalf("white is %v, black %v", one, other)
	}
	text := []string{"ink", "quiet", "link", "good", "bad"} // WCAG 2.2, 1.4.3
	marks := []string{"focus", "remote", "local", "refused", "other", "epp", "recv", "encode", "prefill", "handoff", "first", "decode", "overlap",
		"running", "waiting", "inflight", "kv"} // 1.4.11
	for scheme, colours := range schemes(t) {
		for name, colour := range colours {
			least := 0.0
			switch {
			case slices.Contains(text, name):
				least = 4.5
			case slices.Contains(marks, name):
				least = 3
			case !slices.Contains([]string{"page", "panel", "rule"}, name):
				t.Errorf("%s: --%s has no known use", scheme, name)
			}
			for _, behind := range []string{"page", "panel"} {
				one, other := luminance(t, colour), luminance(t, colours[behind])
				if ratio := (max(one, other) + 0.05) / (min(one, other) + 0.05); ratio < least {
					t.Errorf("%s: --%s on --%s has a contrast of %.2f, want %v", scheme, name, behind, ratio, least)
				}
			}
		}
	}
}
