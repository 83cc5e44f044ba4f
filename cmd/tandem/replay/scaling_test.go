package replay

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/replay"
)

// scaledRuns replays the command line, and returns the runs by their autoscaler.
func scaledRuns(t *testing.T, args ...string) map[string]shown {
	t.Helper()
	var out, errs bytes.Buffer
	args = append([]string{"--json", "--config", "elastic.yaml", "--slo-ttft", "6s", "--refresh-metrics-interval", "1s"}, args...)
	if err := Run(t.Context(), boot.IO{Name: "replay", Stdout: &out, Stderr: &errs}, args); err != nil {
		t.Fatalf("%v\n%s", err, &errs)
	}
	var printed struct{ Runs []shown }
	if err := json.Unmarshal(out.Bytes(), &printed); err != nil {
		t.Fatal(err)
	}
	all := map[string]shown{}
	for _, r := range printed.Runs {
		all[r.Autoscaler] = r
	}
	return all
}

// TestAutoscalers replays a morning, in which the load triples. What knows the future needs the least engines that meet the objective.
func TestAutoscalers(t *testing.T) {
	all := scaledRuns(t, "--rate", "0.4-1.2", "--requests", "7000", "--input-tokens", "4000-20000", "--output-tokens", "300",
		"--pool", "2P+2D", "--autoscaler", "fixed,hpa-queue,hpa-kv,replica-sizer,clairvoyant")
	if len(all) != len(autoscalers) {
		t.Fatalf("%d autoscalers have results", len(all))
	}
	for _, name := range []string{fixedSizes, clairvoyant} {
		if met := all[name].More.Scaled.Met; met < 0.99 {
			t.Errorf("%s meets the objective in %.2f %%", name, 100*met)
		}
	}
	least := all[clairvoyant].More.Scaled.GPUHours
	if fixed := all[fixedSizes].More.Scaled.GPUHours; fixed < 1.1*least {
		t.Errorf("fixed sizes take %.1f GPU-hours, clairvoyant ones %.1f: want clearly fewer", fixed, least)
	}
	if met, hours := all[bySizer].More.Scaled.Met, all[bySizer].More.Scaled.GPUHours; met < 0.98 || hours > 1.5*least {
		t.Errorf("replica-sizer meets the objective in %.2f %% by %.1f GPU-hours, clairvoyant sizes take %.1f", 100*met, hours, least)
	}
}

// TestSearchRaises: sizes that are too small are raised until they are not, by what came too late.
func TestSearchRaises(t *testing.T) {
	s := &search{each: time.Minute, slo: replay.SLO{TTFT: time.Second, TPOT: 50 * time.Millisecond}, share: 0.99}
	r := &run{options: replay.Options{Scaling: &replay.Scaling{Prefill: replay.ScaledRole{Min: 1, Max: 4}, Decode: replay.ScaledRole{Min: 1, Max: 4}}}}
	intervals := []sized{{size: [2]int{2, 2}, least: [2]int{1, 1}, lowered: -1}}
	step := func(round int, m misses, wantPrefill, wantDecode int) {
		t.Helper()
		s.next(r, round, intervals, []misses{m})
		if got := intervals[0].size; got != [2]int{wantPrefill, wantDecode} {
			t.Fatalf("round %d: %v, want %d and %d", round, got, wantPrefill, wantDecode)
		}
	}
	step(0, misses{all: 100, first: 5}, 3, 2)   // prefill was too slow
	step(1, misses{all: 100, further: 5}, 3, 3) // decode was
	step(3, misses{all: 100}, 3, 3)             // neither is known to suffice with fewer
	intervals[0].least = [2]int{1, 1}
	step(4, misses{all: 100}, 2, 3)
	step(5, misses{all: 100, further: 9}, 3, 3) // what was lowered is taken back
	if s.next(r, 6, intervals, []misses{{all: 100}}); intervals[0].size != [2]int{3, 2} {
		t.Fatalf("%v: the other role is to be tried", intervals[0].size)
	}
}

func TestScalingFlags(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"--autoscaler replica-sizer", "needs the plugin replica-sizer"},
		{"--autoscaler clairvoyant --concurrency 3", "knows when requests come"},
		{"--autoscaler karpenter", "is not one of fixed, hpa-queue"},
		{"--autoscaler hpa-kv --replicas 2", "has one picker"},
		{"--autoscaler hpa-kv --scale-decode 0-3", "must have at least one engine"},
		{"--scale-prefill 3", "1-16"},
		{"--scale-prefill 4-2", "1-16"},
		{"--arrivals week", "--rate=1"},
		{"--regret --autoscaler fixed", "leave out"},
	} {
		var errs bytes.Buffer
		err := Run(t.Context(), boot.IO{Name: "replay", Stdout: &bytes.Buffer{}, Stderr: &errs}, append(strings.Fields(test.args), "--requests", "10"))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.args, err, test.want)
		}
	}
}
