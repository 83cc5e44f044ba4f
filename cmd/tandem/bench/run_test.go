package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/stack/envoy"
)

// quick selects one series of every kind.
const quick = `^sidecar, (local, 1 kB|P/D, chunked, 32 kB|P/D, 1 kB, 200 events)$|` +
	`^picker, (1 kB|32 kB, remote|two filters, 1 kB)$|` +
	`^memory, (sidecar, 64|picker)|^absolute.*(decision|idle, 64)`

// run runs the command in this process, where leaks and races show.
func run(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, log bytes.Buffer
	code = boot.Run(ctx, boot.IO{Name: "bench", Stdout: &out, Stderr: &log}, args, Run)
	return code, out.String(), log.String()
}

// measuring runs series as fast as possible, and returns the content of the file of figures.
func measuring(t *testing.T, dir, series string, args ...string) (r Result, stdout string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "figures.json")
	code, stdout, stderr := run(t.Context(), append([]string{"--bin-dir=" + dir, "--series=" + series, "--rounds=1",
		"--span=100ms",
		"--core=-1", "--json=" + file}, args...)...)
	if code != boot.CodeOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	return r, stdout
}

// TestMeasure runs the real programs. Their speed does not matter.
func TestMeasure(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	dir := programs(t)
	for name, test := range map[string]func(t *testing.T, dir string){
		"every kind": testEveryKind, "every protocol": testEveryProtocol, "path": testPath, "without Envoy": testWithoutEnvoy, "against": testAgainst,
		"growth": testGrowth, "bad rival": testBadRival, "interrupted": testInterrupted,
	} {
		t.Run(name, func(t *testing.T) { test(t, dir) })
	}
}

func testEveryKind(t *testing.T, dir string) {
	page := filepath.Join(t.TempDir(), "page.html")
	r, stdout := measuring(t, dir, quick, "--report="+page)
	if len(r.Rows) != 12 { // the events have a second row for allocs, and the decision has two
		t.Errorf("%d rows", len(r.Rows))
	}
	for _, row := range r.Rows {
		mustContain(t, stdout, "\n"+row.Series)
		if row.Ours == nil || row.Ours.Value < 0 || row.Limit <= 0 || row.Missing != "" {
			t.Errorf("%s: %+v", row.Series, row)
			continue
		}
		if row.Table != tableSidecar && row.Table != tablePicker {
			continue
		}
		for part, f := range map[string]*Figure{partBaseline: row.Baseline, partOurs: row.Ours} {
			if f == nil || f.Value <= 0 || f.PerCore <= 0 || f.Busy <= 0 || f.Bench <= 0 || f.Peak <= 0 || row.Ratio <= 0 {
				t.Errorf("%s of %s: %+v", part, row.Series, f)
			}
		}
		few := strings.Contains(row.Series, "events") // so few of them fit into this time that the count may not show them
		if row.Ours.Allocs == nil || *row.Ours.Allocs < 10 && !few || (row.Ours.P50 == nil) != strings.Contains(row.Series, "chunked") {
			t.Errorf("%s: %+v", row.Series, row.Ours)
		}
	}
	if b, err := os.ReadFile(page); err != nil || !bytes.HasPrefix(b, []byte("<!DOCTYPE html>")) {
		t.Errorf("the page begins with %.40q: %v", b, err)
	}
}

// Each protocol's engines and sidecar understand each other: what is not split is an error.
func testEveryProtocol(t *testing.T, dir string) {
	var names []string
	for _, p := range protocols() {
		names = append(names, p.name)
	}
	r, stdout := measuring(t, dir, "^sidecar, ("+strings.Join(names, "|")+"), 1 kB$")
	if len(r.Rows) != 2*len(names) { // the time beyond the engines' is judged too
		t.Errorf("%d rows for %d protocols", len(r.Rows), len(names))
	}
	for _, name := range names {
		mustContain(t, stdout, "\n"+name+", 1 kB ", "\nsidecar, time beyond the engines', "+name+", 1 kB, p50, ms ")
	}
}

// A sidecar that does not split the requests of a series is not measured under its name.
func TestSeriesMustBeSplit(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	dir := programs(t)
	for name, series := range map[string]sidecarSeries{
		`the sidecar does not split requests of this series: it says "local;`: {remote: true, protocol: protocol{flags: connector("nixlv2"),
			prefilled: func(int, string) string { return handedOff(kB, "null") }, decoded: decoded}},
		"the decode engine got 1 legs of one request": {remote: true, protocol: protocol{readsBack: true, flags: connector("nixlv2"),
			prefilled: nixl().prefilled, decoded: decoded}},
	} {
		series.name, series.shape = "P/D", shape{size: kB}
		l, err := newLab(dir, processors())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := measureSidecar(t.Context(), l, series, "", options{1, 100 * time.Millisecond}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want %s", err, name)
		}
		if err := l.close(); err != nil {
			t.Error(err)
		}
	}
}

func testPath(t *testing.T, dir string) {
	envoy.Require(t)
	r, _ := measuring(t, dir, "^path|messages")
	if len(r.Rows) != 3 {
		t.Fatalf("%d rows", len(r.Rows))
	}
	for _, row := range r.Rows[:2] {
		if row.Baseline == nil || row.Ours == nil || row.Ours.P99 == nil || row.Baseline.P99 == nil {
			t.Errorf("%s: baseline %+v, ours %+v", row.Series, row.Baseline, row.Ours)
		}
	}
	if unread := r.Rows[2]; unread.Ours.Value != 0 || !unread.Passed {
		t.Errorf("the picker got %v messages for events that it does not read", unread.Ours.Value)
	}
}

// Without Envoy, series that do not need it are still measured.
func testWithoutEnvoy(t *testing.T, dir string) {
	t.Chdir(t.TempDir())
	t.Setenv("ENVOY_BIN", "")
	t.Setenv("PATH", t.TempDir())
	r, stdout := measuring(t, dir, "^sidecar, local, 1 kB|^path, local")
	if len(r.Rows) != 2 || r.Rows[0].Ours == nil || r.Rows[1].Missing == "" {
		t.Errorf("%+v", r.Rows)
	}
	mustContain(t, stdout, "path, local was not measured: finding Envoy: there is none")
	code, _, stderr := run(t.Context(), "--bin-dir="+dir, "--series=^sidecar, local, 1 kB$|^path, local", "--rounds=1", "--span=100ms", "--core=-1", "--gate")
	if code != boot.CodeFailed {
		t.Errorf("exit %d", code)
	}
	mustContain(t, stderr, "series through Envoy will not be measured: finding Envoy: there is none", "1 were not measured")
}

func testAgainst(t *testing.T, dir string) {
	r, stdout := measuring(t, dir, "^sidecar, P/D, 1 kB$|^picker, 1 kB$|decision",
		"--against-sidecar="+dir+"/sidecar --host=127.0.0.1 --port={port} --metrics-port=0 --admin-address=127.0.0.1:0 "+
			"--model-server-host=127.0.0.1 --model-server-port={engine-port} --prefill-allow=127.0.0.0/8",
		"--against-epp="+dir+"/epp --host=127.0.0.1 --grpc-port={port} --grpc-health-port=0 --metrics-port=0 "+
			"--admin-address=127.0.0.1:0 --secure-serving=false --config-file={config} --endpoints-file={endpoints}")
	for _, row := range r.Rows {
		if row.Other == nil || row.Other.P50 == nil || row.Ratio != 0 && (row.OtherRatio <= 0 || row.Other.Value <= 0) {
			t.Errorf("%s: %+v", row.Series, row.Other)
		}
	}
	mustContain(t, stdout, "  other  ratio  ")
}

func testGrowth(t *testing.T, dir string) {
	p := &plan{dir: dir, apart: processors(), options: options{1, 100 * time.Millisecond},
		points: growthPoints{endpoints: []int{4, 8}, scraped: []int{2, 4}, streams: []int{0, 3, 150}}}
	var r Result
	for _, step := range p.growth() {
		if err := step.run(t.Context(), &r); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
	}
	if len(r.Curves) != 5 {
		t.Fatalf("%d curves", len(r.Curves))
	}
	for i, c := range r.Curves {
		if want := []int{2, 2, 2, 3, 3}[i]; len(c.Points) != want {
			t.Errorf("%s: %v", c.Name, c.Points)
		}
		for _, p := range c.Points {
			if p.Y <= 0 && i != 2 { // an idle picker may use no CPU time for a while
				t.Errorf("%s: %v", c.Name, c.Points)
			}
		}
	}
}

// The error contains the last output of the other program.
func testBadRival(t *testing.T, dir string) {
	for name, command := range map[string]string{
		"starting the other program: starting sidecar: ": dir + "/sidecar --port={port} --nonsense",
		"no-such-program": "no-such-program {port}",
	} {
		code, _, stderr := run(t.Context(), "--bin-dir="+dir, "--series=^sidecar, local, 1 kB", "--core=-1",
			"--against-sidecar="+command)
		if code != boot.CodeFailed {
			t.Errorf("exit %d", code)
		}
		mustContain(t, stderr, "bench: measuring sidecar, local, 1 kB: starting the other program", name)
	}
}

// waiting cancels a context when something is written.
type waiting struct{ cancel context.CancelFunc }

func (w waiting) Write(b []byte) (int, error) { w.cancel(); return len(b), nil }

func testInterrupted(t *testing.T, dir string) {
	ctx, cancel := context.WithCancel(t.Context())
	s := settings{BinDir: dir, Series: "^picker, 1 kB$", Rounds: 1, Span: time.Hour, Core: -1}
	steps, err := s.steps()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.measure(ctx, waiting{cancel}, steps); err == nil || err.Error() != "interrupted, no results" {
		t.Errorf("error %v", err)
	}
}
