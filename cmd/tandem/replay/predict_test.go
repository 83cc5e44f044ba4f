package replay

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/workload"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/replay"
)

var besideXGBoost = flag.Bool("xgboost", false, "compare predictions with XGBoost: make test-predict")

// outcomeRows is a plugin that writes what was predicted for requests, and what came, as rows for testdata/xgboost/compare.py.
type outcomeRows struct{ bytes.Buffer }

func (*outcomeRows) Problems(epp.Report)               {}
func (n *outcomeRows) Build(*epp.Builder) (any, error) { return n, nil }

// Observe implements epp.Observer.
func (n *outcomeRows) Observe(o *epp.Outcome) {
	d := o.Decision
	if d == nil || o.Phases == nil || o.Result == nil || d.Picks[0].Seen == nil {
		return
	}
	first, ok := o.Phases.Get(pd.PhaseFirst)
	if d.Verdict == pd.Local && ok {
		n.row("ttft", &d.Picks[0], d.Tokens, first, latency.TTFT50, latency.TTFT90)
	}
	for i := range d.Picks {
		if took, ok := o.Phases.Get(pd.PhasePrefill); ok && d.Picks[i].Row.Split {
			n.row("prefill", &d.Picks[i], d.Tokens, took, latency.TTFT50, latency.TTFT90)
		}
	}
	if took, ok := o.Phases.Get(pd.PhaseDecode); ok && d.Verdict == pd.Local && o.Result.Completion > 8 {
		n.row("itl", &d.Picks[0], d.Tokens, took/time.Duration(o.Result.Completion-1), latency.TPOT50, latency.TPOT90)
	}
}

func (n *outcomeRows) row(kind string, p *epp.StagePick, tokens int, came time.Duration, half, ninety epp.Signal) {
	value := func(s epp.Signal) float64 { v, _ := p.Seen.Load.Signals.Value(s); return v }
	fmt.Fprintf(n, "%s,%v,%v,%d,%d,%v,%d,%v,%v,%v\n", kind, value(epp.Waiting), value(epp.KVUsage), tokens, p.Seen.Cached, value(epp.Running),
		p.Seen.InFlight.Tokens, came.Seconds(), value(half), value(ninety))
}

// TestPredictionsBesideXGBoost: of the requests of several workloads on several engines, the predictions of the picker are in the range of those of
// XGBoost, trained on the same outcomes, and calibrated, or nearly as well as XGBoost is where a load changes within the length of an answer. The times of modelled engines have no noise, which is the best case of XGBoost: their errors
// are a few percent with both.
func TestPredictionsBesideXGBoost(t *testing.T) {
	if !*besideXGBoost {
		t.Skip("make test-predict runs it")
	}
	python, err := filepath.Abs(filepath.Join("..", "..", "..", ".tools", "xgboost", "bin", "python"))
	if err != nil {
		t.Fatal(err)
	}
	type errors struct{ MAPE, MAE, Pinball90, Within50, Within90 float64 }
	type pair struct {
		Rows          int
		XGBoost, Ours errors
	}
	t.Logf("%-24s %-16s %-8s %6s  %13s  %15s  %13s", "engine", "workload", "what", "rows", "MAPE x, ours", "pinball90 ratio", "in p90 x, ours")
	for _, name := range []string{"llama-70b-h100-tp4", "qwen3-30b-a3b-h100"} {
		for _, load := range []struct {
			shape string
			rate  float64
		}{{"pd-guide", 5}, {"b2b-saas-short", 12}, {"summarization", 14}, {"chatbot", 6}} {
			rows := predicted(t, name, load.shape, load.rate)
			cmd := exec.CommandContext(t.Context(), python, filepath.Join("testdata", "xgboost", "compare.py"))
			cmd.Stdin, cmd.Stderr = strings.NewReader(rows), os.Stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			var all map[string]pair
			if err := json.Unmarshal(out, &all); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for _, kind := range []string{"ttft", "prefill", "itl"} {
				p, ok := all[kind]
				if !ok {
					continue
				}
				off := func(within float64) float64 { return math.Abs(within - 0.9) }
				if p.Ours.MAPE > 2*p.XGBoost.MAPE+0.02 || off(p.Ours.Within90) > max(0.06, off(p.XGBoost.Within90)+0.02) {
					t.Errorf("%s, %s, %s: the errors are %.1f %%, XGBoost's %.1f %%, and %.1f %% of the outcomes are within the predicted p90", name, load.shape, kind,
						100*p.Ours.MAPE, 100*p.XGBoost.MAPE, 100*p.Ours.Within90)
				}
				t.Logf("%-24s %-16s %-8s %6d  %5.1f%% %5.1f%%  %15.2f  %5.1f%% %5.1f%%", name, load.shape, kind, p.Rows, 100*p.XGBoost.MAPE, 100*p.Ours.MAPE,
					p.Ours.Pinball90/p.XGBoost.Pinball90, 100*p.XGBoost.Within90, 100*p.Ours.Within90)
			}
		}
	}
}

// predicted replays a workload under the cost decision, and returns the rows.
func predicted(t *testing.T, name, shape string, rate float64) string {
	t.Helper()
	n := &outcomeRows{}
	n.WriteString("kind,waiting,usage,tokens,cached,running,ahead,came,p50,p90\n")
	table := append(slices.Clone(plugin.Table), epp.Row{Type: "notes", New: func() epp.Plugin { return n }})
	text := strings.Replace(string(costYAML), "plugins:\n", "plugins:\n  - type: notes\n", 1)
	c, err := config.Parse([]byte(text), table)
	if err != nil {
		t.Fatal(err)
	}
	s := defaults()
	m, err := s.Pool.model(name)
	if err != nil {
		t.Fatal(err)
	}
	f := loadFlags{Shape: shape, Rate: workload.Rates{First: rate, Last: rate}, Requests: 4000}
	from, err := f.source(nil, 1, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	trace, err := from.requests(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	n.Reset()
	n.WriteString("kind,waiting,usage,tokens,cached,running,ahead,came,p50,p90\n")
	if _, err := replay.Run(t.Context(), s.options(m, replay.Pool{Prefill: 2, Decode: 2}, c), trace); err != nil {
		t.Fatal(err)
	}
	return n.String()
}
