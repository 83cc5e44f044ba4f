package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/workload"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/replay"
)

func TestSplits(t *testing.T) {
	for n, want := range map[int]string{
		1:  "1B",
		2:  "2B 1P+1D",
		4:  "4B 1P+3D 2P+2D 3P+1D",
		24: "24B 3P+21D 6P+18D 9P+15D 12P+12D 14P+10D 17P+7D 20P+4D 23P+1D",
	} {
		var all []string
		for _, p := range splits(n) {
			all = append(all, p.String())
		}
		if got := strings.Join(all, " "); got != want {
			t.Errorf("%d engines: %s, want %s", n, got, want)
		}
	}
}

func TestPartsOfATrace(t *testing.T) {
	r := &replay.Result{}
	for i := range 100 {
		r.Records = append(r.Records, replay.Record{TTFT: time.Duration(i) * time.Millisecond})
	}
	parts := partsOf(r, replay.SLO{TTFT: 44 * time.Millisecond})
	if len(parts) != pieces || parts[0] != 1 || parts[4] != 0.5 || parts[9] != 0 {
		t.Errorf("parts %v", parts)
	}
	if b := interval([]float64{1, 2, 3}); b.Mean != 2 || math.Abs(b.High-2-2.920/math.Sqrt(3)) > 1e-9 || math.Abs(b.High+b.Low-2*b.Mean) > 1e-9 {
		t.Errorf("the mean of 1, 2, 3 is %+v", b)
	}
}

// advised returns the advice for a workload on llama-70b, four GPUs an engine, as JSON and as text.
func advised(t *testing.T, shape string, speed float64, gpus int, ttft time.Duration) (split bool, text string) {
	t.Helper()
	return concluded(t, &advice{hardwareFlags{GPUs: gpus, Engine: "llama-70b-h100-tp4", Bandwidth: 50},
		adviceLoad{TTFT: ttft, TPOT: 50 * time.Millisecond, Speed: speed, Seed: 1, Shape: shape, Requests: 400}, adviceOutput{}})
}

// concluded returns advice, as JSON and as text.
func concluded(t *testing.T, a *advice) (split bool, text string) {
	t.Helper()
	s := a.settings()
	c, err := a.advise(t.Context(), s, nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var b, words bytes.Buffer
	if err := c.json(&b); err != nil {
		t.Fatal(err)
	}
	if err := c.text(&words); err != nil {
		t.Fatal(err)
	}
	var said struct {
		Split bool `json:"split"`
		Best  struct {
			Pool    string  `json:"pool"`
			Goodput between `json:"goodput"`
		} `json:"best"`
		Tried []struct{} `json:"tried"`
	}
	if err := json.Unmarshal(b.Bytes(), &said); err != nil {
		t.Fatal(err)
	}
	if g := said.Best.Goodput; len(said.Tried) != len(c.all) || g.Low > g.Mean || g.High < g.Mean || said.Split == strings.HasSuffix(said.Best.Pool, "B") && len(c.all) > 1 {
		t.Errorf("%s: %+v", words.String(), said)
	}
	return said.Split, words.String()
}

// TestAdvice: short prompts at a low load need no split; long ones at a load that shared engines do not bear do; and one engine cannot be split.
func TestAdvice(t *testing.T) {
	if split, text := advised(t, "sharegpt", 0.2, 16, time.Second); split || !strings.HasPrefix(text, "Do not split: 4 shared engines (4B)") {
		t.Errorf("short prompts:\n%s", text)
	}
	if split, text := advised(t, "pd-guide", 0.25, 24, 3*time.Second); !split || !strings.HasPrefix(text, "Split: ") || !strings.Contains(text, "percentage points more") {
		t.Errorf("long prompts:\n%s", text)
	}
	if split, text := advised(t, "sharegpt", 0.2, 4, time.Second); split || !strings.HasPrefix(text, "4 GPUs are one engine llama-70b-h100-tp4: it cannot be split.") {
		t.Errorf("one engine:\n%s", text)
	}
}

// TestAdviceForLengths: of four engines whose prompts of 4,000 tokens take 218 ms and whose answers have 500, half prefill; they cannot
// serve more than two such prompts at a time.
func TestAdviceForLengths(t *testing.T) {
	split, text := concluded(t, &advice{hardwareFlags{GPUs: 8, Engine: "qwen3-32b-h100-tp2", Bandwidth: 50},
		adviceLoad{TTFT: 2 * time.Second, TPOT: 30 * time.Millisecond, Speed: 1, Seed: 1,
			Input: workload.Lengths{Least: 4000, Most: 4000}, Output: workload.Lengths{Least: 500, Most: 500}}, adviceOutput{}})
	found := regexp.MustCompile(`^Split: 2 of 4 engines prefill .*\nNine in ten requests meet 2s/30ms while at most ([0-9.]+) come in a second; with shared engines it is ([0-9.]+)\.\n`).FindStringSubmatch(text)
	if !split || found == nil {
		t.Fatal(text)
	}
	best, _ := strconv.ParseFloat(found[1], 64)
	shared, _ := strconv.ParseFloat(found[2], 64)
	if best > 1.1*2/0.218 || best < 6 || shared > 0.9*best {
		t.Errorf("at most %v requests a second, %v with shared engines", best, shared)
	}
}

// TestAdviceForOneRequest: it comes at no rate.
func TestAdviceForOneRequest(t *testing.T) {
	split, text := concluded(t, &advice{hardwareFlags{GPUs: 8, Engine: "llama-70b-h100-tp4", Bandwidth: 50},
		adviceLoad{TTFT: time.Second, TPOT: 50 * time.Millisecond, Speed: 1, Seed: 1, Shape: "sharegpt", Requests: 1}, adviceOutput{}})
	if split || strings.Contains(text, "NaN") {
		t.Error(text)
	}
}

// TestAdviceAboutWeights: where engines hold the beginnings of a part of the prompts, it matters that requests go where theirs are, so weights of 0 lose
// much, and the weight of the built-in configuration stays.
func TestAdviceAboutWeights(t *testing.T) {
	_, text := advised(t, "tiered-prefix", 0.4, 24, 3*time.Second)
	found := regexp.MustCompile(`\nKeep what scorers weigh: prefix-cache-scorer with 0, 1, 6, 12 instead of 3 changes the goodput by -([0-9.]+) to `).FindStringSubmatch(text)
	if found == nil || !strings.Contains(text, ", prefix-cache-scorer 12 ") {
		t.Fatal(text)
	}
	if lost, _ := strconv.ParseFloat(found[1], 64); lost < 10 {
		t.Errorf("without regard to caches the goodput is %v %% less", lost)
	}
}

func TestWorthwhileWeights(t *testing.T) {
	for _, tc := range []struct {
		gain between
		want string
	}{
		{between{0.09, 0.01, 0.17}, "Give prefix-cache-scorer the weight 6 instead of 3: +10.0 % goodput (+1.1 to +18.9)."},
		{between{0.09, -0.01, 0.19}, "Keep what scorers weigh: prefix-cache-scorer with 0, 1, 6, 12 instead of 3 changes the goodput by -20.0 to +10.0 %, but more is not certain by this traffic."},
		{between{0.018, 0.01, 0.026}, "Keep what scorers weigh: prefix-cache-scorer with 0, 1, 6, 12 instead of 3 changes the goodput by -20.0 to +2.0 %."},
	} {
		w := weighed{usual: 3, weight: 6, gain: tc.gain, low: -0.18}
		if got := w.words(0.9); got != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
	}
}

func TestWithWeight(t *testing.T) {
	c, err := config.Parse(costYAML, plugin.Table)
	if err != nil {
		t.Fatal(err)
	}
	with, had, ok, err := withWeight(c, 0.5)
	if err != nil || !ok || had != 3 {
		t.Fatalf("weight %v, there %v: %v", had, ok, err)
	}
	if _, had, _, err := withWeight(with, 1); err != nil || had != 0.5 {
		t.Errorf("then the weight is %v: %v", had, err)
	}
	none, err := config.Parse([]byte("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]\n"), plugin.Table)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, ok, err := withWeight(none, 1); ok || err != nil {
		t.Errorf("a configuration without the scorer has a weight: %v", err)
	}
}

// TestNearer: of many splits, those between the best one and its neighbours follow.
func TestNearer(t *testing.T) {
	a := advice{Hardware: hardwareFlags{GPUs: 96, Engine: "llama-70b-h100-tp4", Bandwidth: 50}, Load: adviceLoad{Speed: 1, Shape: "chat", Requests: 10}}
	trials, err := a.trials(a.settings(), nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	all, err := trials.first()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all { // 14P+10D is the best
		one.run.summary.Met, one.run.load = 1-math.Abs(float64(one.run.pool.Prefill-14))/100, 1
	}
	var got [][]int
	for {
		near, err := trials.nearer(all)
		if err != nil {
			t.Fatal(err)
		}
		var prefills []int
		for _, one := range near { // 15P+9D is better, and 16P+8D better still
			one.run.summary.Met, one.run.load = 0.98+float64(one.run.pool.Prefill)/500, 1
			prefills = append(prefills, one.run.pool.Prefill)
		}
		if all = append(all, near...); len(near) == 0 {
			break
		}
		got = append(got, prefills)
	}
	if want := [][]int{{13, 15}, {16}}; !reflect.DeepEqual(got, want) {
		t.Errorf("then %v prefill, want %v", got, want)
	}
}

// TestAdviceAndScalerAgree feeds the same requests, engines and objectives to both: the rate at which nine in ten requests meet the objective on
// a pool, as advise finds it by replays, and the engines that replica-sizer has for that rate, as it computes them from the times it learns. They
// differ by as much as docs/howto/advise.md says, whose quick rows these are.
func TestAdviceAndScalerAgree(t *testing.T) {
	for _, test := range []struct {
		engine        string
		input, output int
		ttft          time.Duration
		pool, scaler  string
		rate          float64
	}{
		{"qwen3-32b-h100-tp2", 4000, 500, 2 * time.Second, "2P+2D", "2P+2D", 8.02},
		{"qwen3-32b-h100-tp2", 4000, 500, 2 * time.Second, "4B", "4B", 5.84},
		{"llama-70b-h100-tp4", 12035, 343, 5 * time.Second, "3P+1D", "4P+2D", 3.64},
		{"llama-70b-h100-tp4", 12035, 343, 5 * time.Second, "4B", "4B", 1.39},
		{"llama-70b-h100-tp4", 2048, 28, time.Second, "4B", "3B", 7.62},
	} {
		t.Run(fmt.Sprintf("%s %d/%d %s", test.engine, test.input, test.output, test.pool), func(t *testing.T) {
			t.Parallel()
			both := func(n int) workload.Lengths { return workload.Lengths{Least: n, Most: n} }
			a := &advice{hardwareFlags{GPUs: 1, Engine: test.engine, Bandwidth: 50},
				adviceLoad{TTFT: test.ttft, TPOT: 30 * time.Millisecond, Speed: 1, Seed: 1, Input: both(test.input), Output: both(test.output)}, adviceOutput{}}
			s := a.settings()
			m, err := s.Pool.model(test.engine)
			if err != nil {
				t.Fatal(err)
			}
			c, err := config.Parse(costYAML, plugin.Table)
			if err != nil {
				t.Fatal(err)
			}
			var pool replay.Pool
			if err := pool.UnmarshalText([]byte(test.pool)); err != nil {
				t.Fatal(err)
			}
			r := &run{options: s.options(m, pool, c)}
			if err := s.loadOne(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			size, err := sizeByScaler(t.Context(), r, s.slo())
			if err != nil {
				t.Fatal(err)
			}
			if got := size.pool(pool); got.String() != test.scaler || math.Abs(r.load/test.rate-1) > 0.02 {
				t.Errorf("at %.3g requests a second, %v by advise and %v by the scaler; docs/howto/advise.md says %v and %s", r.load, pool, got, test.rate, test.scaler)
			}
		})
	}
}
