package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/replay"
)

// TestElasticIsReproducible performs two runs twice, those of replica-sizer and of an HPA at steady load, and expects the same results. A steady load
// has sizes that do not oscillate.
func TestElasticIsReproducible(t *testing.T) {
	rows := func() (all []elasticRow) {
		s := defaults()
		e, err := s.newElasticity()
		if err != nil {
			t.Fatal(err)
		}
		e.runs = slices.DeleteFunc(e.runs, func(r *elasticRun) bool {
			return !r.steady || r.traffic != &e.traffic[0] || r.contender.scaler == hpaQueue
		})
		if err := e.perform(t.Context(), io.Discard); err != nil {
			t.Fatal(err)
		}
		return e.rows()
	}
	first, again := rows(), rows()
	if !slices.Equal(first, again) {
		t.Errorf("the same runs give\n%+v and\n%+v", first, again)
	}
	sizer := first[len(first)-1]
	if sizer.Autoscaler != bySizer || sizer.Reversals > mostReversals || sizer.Met < 0.99 {
		t.Errorf("at steady load: %+v", sizer)
	}
}

// TestElasticNear: a search begins with the largest sizes of each interval, and that of fixed sizes with those that are usual.
func TestElasticNear(t *testing.T) {
	sizes := []replay.Resize{{At: 0, Role: "prefill", Size: 2}, {At: 0, Role: "decode", Size: 1}, {At: 20 * time.Minute, Role: "prefill", Size: 9},
		{At: 25 * time.Minute, Role: "prefill", Size: 3}, {At: 40 * time.Minute, Role: "decode", Size: 4}}
	r := &elasticRun{run: &run{requests: &replay.Trace{Requests: []replay.Request{{Due: 50 * time.Minute}}}, search: &search{each: searchEach}}}
	if got, want := r.near(sizes), [][2]int{{2, 1}, {9, 1}, {3, 4}, {3, 4}}; !slices.Equal(got, want) {
		t.Errorf("intervals %v, want %v", got, want)
	}
	r.search.each = time.Hour
	if got, want := r.near(sizes), [][2]int{{3, 4}}; !slices.Equal(got, want) {
		t.Errorf("fixed %v, want %v", got, want)
	}
}

// TestElasticBars: of HPAs with several targets the cheapest one counts that meets the objective, or else the one that meets it most often.
func TestElasticBars(t *testing.T) {
	s := defaults()
	one := traffic{Name: "t"}
	e := &elasticity{settings: &s, traffic: []traffic{one}}
	add := func(scaler, name string, steady bool, met, hours float64, reversals int) {
		e.runs = append(e.runs, &elasticRun{&run{summary: replay.Summary{Met: met, GPUSeconds: 3600 * hours, Reversals: reversals}},
			&e.traffic[0], &contender{Name: name, scaler: scaler}, steady})
	}
	add(clairvoyant, "clairvoyant", false, 0.99, 100, 0)
	add(hpaQueue, "tight", false, 0.995, 200, 5)
	add(hpaQueue, "good", false, 0.991, 160, 5)
	add(hpaQueue, "loose", false, 0.95, 90, 5)
	add(bySizer, "replica-sizer", false, 0.992, 120, 3)
	add(bySizer, "replica-sizer", true, 1, 10, 1)
	held := func() (all string) {
		for _, b := range e.bars() {
			all += map[bool]string{true: "+", false: "-"}[b.Held]
		}
		return all
	}
	if got := e.of(&e.traffic[0], hpaQueue, false).contender.Name; got != "good" {
		t.Errorf("%s counts, want good", got)
	}
	if got := held(); got != "+-++" {
		t.Errorf("held %s, want +-++: 1.2 times clairvoyant, 0.75 times the queue's", got)
	}
	e.runs[2].summary.Met, e.runs[1].summary.Met, e.runs[5].summary.Reversals, e.runs[4].summary.Met = 0.97, 0.98, 2, 0.98
	if got := e.of(&e.traffic[0], hpaQueue, false).contender.Name; got != "tight" {
		t.Errorf("%s counts, want tight", got)
	}
	if got := held(); got != "--+-" {
		t.Errorf("held %s, want --+-", got)
	}
}

// TestElasticSizes: a plot has the sum of both roles, from its beginning to its end.
func TestElasticSizes(t *testing.T) {
	s := defaults()
	e := &elasticity{settings: &s, traffic: []traffic{{Name: "t"}}}
	hour := func(n int) time.Duration { return time.Duration(n) * time.Hour }
	e.runs = []*elasticRun{{&run{sizes: []replay.Resize{{At: 0, Role: "prefill", Size: 2}, {At: 0, Role: "decode", Size: 1}, {At: hour(1), Role: "prefill", Size: 3},
		{At: hour(3), Role: "decode", Size: 4}, {At: hour(9), Role: "decode", Size: 1}}}, &e.traffic[0], &contender{scaler: bySizer}, false}}
	var got []float64
	for _, p := range e.sizes(&e.traffic[0], "", []string{bySizer}, hour(2), hour(5)).Lines[0].Points {
		got = append(got, p.X/3.6e6, p.Y)
	}
	if want := []float64{0, 4, 1, 7, 3, 7}; !slices.Equal(got, want) {
		t.Errorf("hours and engines %v, want %v", got, want)
	}
}

// TestElasticWrites: the page and the table have every autoscaler and every bar.
func TestElasticWrites(t *testing.T) {
	s := defaults()
	s.Load.Days = []int{6}
	e, err := s.newElasticity()
	if err != nil {
		t.Fatal(err)
	}
	if e.flash() >= 0 {
		t.Error("Saturday has a flash crowd")
	}
	for _, r := range e.runs {
		r.sizes = []replay.Resize{{Role: "prefill", Size: 2}, {Role: "decode", Size: 1}}
		r.summary.GPUSeconds = 3600
	}
	text := written(t, e.text)
	for _, c := range e.contenders {
		if n := strings.Count(text, c.Name+" "); n < len(e.traffic) {
			t.Errorf("the table names %s %d times", c.Name, n)
		}
	}
	if p := e.page(); len(p.Sections) != len(e.traffic) || len(p.Tables) != len(e.traffic)+2 || len(p.Tables[0].Rows) != 4*len(e.traffic) {
		t.Errorf("%d sections and %d tables", len(p.Sections), len(p.Tables))
	}
}

func TestElasticFlags(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"--elastic --shape chat", "loads of its own"},
		{"--elastic --rate 3", "loads of its own"},
		{"--elastic --autoscaler fixed", "compares all autoscalers"},
		{"--elastic --slo-ttft 1s", "one objective"},
		{"--elastic --engine llama-8b-h100", "names none of them"},
		{"--elastic --config elastic.yaml,cost.yaml", "name one --config"},
		{"--elastic --config cost.yaml", "needs the plugin replica-sizer"},
	} {
		err := Run(t.Context(), boot.IO{Name: "replay", Stdout: io.Discard, Stderr: io.Discard}, strings.Fields(test.args))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.args, err, test.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := Run(ctx, boot.IO{Name: "replay", Stdout: io.Discard, Stderr: io.Discard}, []string{"--elastic"})
	if err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("%v, want that it was interrupted", err)
	}
}

// elasticReport reads the report of the repository.
func elasticReport(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "elastic-report.json"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestElasticReportIsReproducible performs those runs of the report that take no minutes, at steady load, and compares them with the report of
// the repository. If the picker, the sizer or the model has changed, make elastic-report writes that anew.
func TestElasticReportIsReproducible(t *testing.T) {
	s := defaults()
	e, err := s.newElasticity()
	if err != nil {
		t.Fatal(err)
	}
	e.runs = slices.DeleteFunc(e.runs, func(r *elasticRun) bool { return !r.steady })
	if err := e.perform(t.Context(), io.Discard); err != nil {
		t.Fatal(err)
	}
	kept := elasticReport(t)
	for _, row := range e.rows() {
		line, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(kept, line) {
			t.Errorf("docs/elastic-report.json does not have\n%s\nmake elastic-report writes it anew", line)
		}
	}
}

// TestElasticReportIsComplete: the report of the repository has every run, and judges replica-sizer by them.
func TestElasticReportIsComplete(t *testing.T) {
	var kept struct {
		Runs []elasticRow
		Bars []bar
	}
	if err := json.Unmarshal(elasticReport(t), &kept); err != nil {
		t.Fatal(err)
	}
	s := defaults()
	e, err := s.newElasticity()
	if err != nil {
		t.Fatal(err)
	}
	if len(kept.Runs) != len(e.runs) || len(kept.Bars) != 4*len(e.traffic) {
		t.Fatalf("%d runs and %d bars, want %d and %d", len(kept.Runs), len(kept.Bars), len(e.runs), 4*len(e.traffic))
	}
	for _, r := range e.runs {
		i := slices.IndexFunc(kept.Runs, func(row elasticRow) bool {
			return row.Traffic == r.traffic.Name && row.Load == r.load() && row.Autoscaler == r.contender.Name
		})
		if i < 0 {
			t.Fatalf("no run of %s with %s load under %s", r.traffic.Name, r.load(), r.contender.Name)
		}
		r.summary.Met, r.summary.GPUSeconds, r.summary.Reversals = kept.Runs[i].Met, 3600*kept.Runs[i].GPUHours, kept.Runs[i].Reversals
		if share := e.settings.Scaling.Share; r.contender.searches() && r.summary.Met < share {
			t.Errorf("%s: %s meets the objective in %.4f, want %v", r.traffic.Name, r.contender.Name, r.summary.Met, share)
		}
	}
	for i, b := range e.bars() {
		if k := kept.Bars[i]; k.Name != b.Name || k.Held != b.Held || k.Got < 0.999*b.Got || k.Got > 1.001*b.Got {
			t.Errorf("the report judges %+v, and its runs say %+v", k, b)
		}
	}
}
