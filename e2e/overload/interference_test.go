package overload

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack"
)

var (
	interferenceFor = flag.Duration("interference.for", 0, "how long TestInterference measures each load; 0 leaves it out")
	interferenceDir = flag.String("interference.write", "", "folder of the page and the plot that TestInterference writes")
)

// What TestInterference offers, and its pool.
const (
	sharedPrefills = 4
	sharedSeqs     = 16  // that one decode engine runs at once
	onlinePrompt   = 600 // tokens; computed remotely, in 150 ms
	onlineTokens   = 25  // a second's worth
	linePrompt     = 60  // tokens of a line of the batch; computed on decode, within a step
	lineTokens     = 50
	goalTTFT       = 550 // ms
	goalTPOT       = 80  // ms
)

const batchObjective = `apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {poolRef: {name: pool}, priority: -10}
`

func reporterConfig(ttft, tpot int) string {
	return fmt.Sprintf("- {type: slo-headroom-reporter, parameters: {ttftMs: %d, tpotMs: %d}}", ttft, tpot)
}

// newSharedStack returns a stack whose picker knows the objective of batches.
func newSharedStack(t *testing.T, config string) *overloadStack {
	t.Helper()
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(batchObjective), 0o644); err != nil {
		t.Fatal(err)
	}
	return newOverloadStack(t, overloadLayout{prefills: sharedPrefills, seqs: sharedSeqs, flags: []string{"--policy-file=" + policy}, config: config})
}

func sharedConfig(plugins string) string {
	return waitingConfig(sharedSeqs, plugins, "")
}

// keptConfig leaves a tenth of the slots of decode engines to online requests, and has lines of the batch end for those that find no slot.
func keptConfig() string {
	return waitingConfig(sharedSeqs, "- {type: priority-holdback-policy, parameters: {minCeiling: 0.9}}",
		"  usageLimitPolicyPluginRef: priority-holdback-policy\n  enableEviction: true\n")
}

// online returns a request of a client that waits.
func (o *overloadStack) online(int) harness.Call {
	return harness.Call{API: pd.APICompletions, Prompt: o.Fresh(onlinePrompt), Tokens: onlineTokens, Stream: true, Header: map[string]string{epp.HeaderFlow: "online"}}
}

// poisson sends rate requests a second for a time, at random moments that are the same for the same seed.
func (l *loadClient) poisson(ctx context.Context, seed uint64, rate float64, length time.Duration, next func(i int) harness.Call) (wait func() []served) {
	var all []served
	var mu sync.Mutex
	var running sync.WaitGroup
	rng, begun := rand.New(rand.NewPCG(seed, 1)), time.Now()
	until := func(at float64) { <-time.After(time.Until(begun.Add(time.Duration(at * float64(time.Second))))) }
	defer until(length.Seconds())
	for i, at := 0, rng.ExpFloat64()/rate; at < length.Seconds(); i, at = i+1, at+rng.ExpFloat64()/rate {
		until(at)
		q := next(i)
		running.Go(func() {
			s := l.ask(ctx, q)
			mu.Lock()
			all = append(all, s)
			mu.Unlock()
		})
	}
	return func() []served {
		running.Wait()
		return all
	}
}

// startBatch starts a batch server before the stack, with a batch of so many lines.
func (o *overloadStack) startBatch(t *testing.T, lines int) harness.Program {
	t.Helper()
	dir := t.TempDir()
	p := harness.Start(t, stack.Program{Name: "batch", Path: filepath.Join(harness.BinDir, "batch"), Args: []string{"--data=" + filepath.Join(dir, "data"),
		"--upstream=http://" + o.Front.Addr, "--port=0", "--metrics-port=0", "--drain-timeout=0s"}})
	var text strings.Builder
	for i := range lines {
		line, err := json.Marshal(map[string]any{"custom_id": fmt.Sprint(i), "method": "POST", "url": "/v1/completions",
			"body": map[string]any{"model": o.Model, "prompt": o.Fresh(linePrompt), "max_tokens": lineTokens}})
		if err != nil {
			t.Fatal(err)
		}
		text.Write(append(line, '\n'))
	}
	file := filepath.Join(dir, "lines.jsonl")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(harness.Within(t), filepath.Join(harness.BinDir, "tandem"), "batch", "submit", file, "--url=http://"+p.Addr("http")).CombinedOutput()
	if err != nil {
		t.Fatalf("submitting the batch: %v\n%s", err, out)
	}
	return p
}

// TestBatchYields: the batch server sends more while online requests are far below their goals, and less when they miss them.
func TestBatchYields(t *testing.T) {
	o := newSharedStack(t, sharedConfig(reporterConfig(3_600_000, 0)))
	batch := o.startBatch(t, 2000)
	ctx, cancel := context.WithCancel(t.Context())
	var client sync.WaitGroup
	defer client.Wait()
	defer cancel()
	client.Go(func() {
		for ctx.Err() == nil {
			o.client.ask(ctx, harness.Call{API: pd.APICompletions, Prompt: o.Fresh(linePrompt), Tokens: 2, Stream: true})
		}
	})
	told := func() (headroom, limit float64) {
		at := batch.Addr("metrics")
		return harness.SumOf(t, at, "tandem_batch_headroom"), harness.SumOf(t, at, "tandem_batch_limit")
	}
	grown := 0.0
	o.Eventually(t, "a limit that has grown", func() (string, bool) {
		var headroom float64
		headroom, grown = told()
		return fmt.Sprint(headroom, grown), headroom > 0.5 && grown >= 8
	})
	o.WriteConfig(t, sharedConfig(reporterConfig(1, 0)))
	o.Eventually(t, "a limit that has fallen", func() (string, bool) {
		headroom, limit := told()
		if headroom > 0 {
			grown = limit // the picker has yet to read its configuration
		}
		return fmt.Sprint(headroom, limit), headroom < 0 && limit < grown
	})
}

// TestBatchGivesWay: a batch takes all slots but those that are kept for online requests. When these need more, lines end for them, are sent again,
// and the pace of the others stays.
func TestBatchGivesWay(t *testing.T) {
	o := newSharedStack(t, keptConfig())
	batch := o.startBatch(t, 2000)
	pace := func() (limit, inflight float64) {
		at := batch.Addr("metrics")
		return harness.SumOf(t, at, "tandem_batch_limit"), harness.SumOf(t, at, "tandem_batch_inflight")
	}
	var full float64
	o.Eventually(t, "lines that wait for slots", func() (string, bool) {
		limit, inflight := pace()
		full = limit
		waiting := harness.SumOf(t, o.Pickers[0].Addr("metrics"), "tandem_queue_requests")
		return fmt.Sprint(limit, inflight, waiting), waiting > 0
	})
	const needed = 12 // slots, of which some 3 are kept
	answers := make([]served, needed)
	var clients sync.WaitGroup
	for i := range answers {
		clients.Go(func() { answers[i] = o.client.ask(t.Context(), o.online(i)) })
	}
	clients.Wait()
	for _, a := range answers {
		if !a.finished() {
			t.Errorf("an online request: %+v", a)
		}
	}
	if n := evictedOf(t, batch); n == 0 {
		t.Errorf("no line of the batch has ended for %d online requests", needed)
	}
	if limit, _ := pace(); limit < full {
		t.Errorf("the limit falls from %v to %v", full, limit)
	}
}

// linesOf returns how many requests of a batch were answered.
func linesOf(t *testing.T, batch harness.Program) float64 {
	return harness.SumOf(t, batch.Addr("metrics"), "tandem_batch_request_seconds_count")
}

// evictedOf returns how many of its requests the picker has ended for more important ones.
func evictedOf(t *testing.T, batch harness.Program) float64 {
	_, text := harness.FetchPage(t, "http://"+batch.Addr("metrics")+"/metrics")
	_, after, found := strings.Cut(text, `tandem_batch_attempts_total{outcome="evicted"} `)
	if !found {
		return 0
	}
	value, _, _ := strings.Cut(after, "\n")
	n, err := strconv.ParseFloat(value, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// mixture is what was measured of a load.
type mixture struct {
	Online  float64 `json:"online_requests_per_second"`
	TTFT50  float64 `json:"ttft_p50_ms"`
	TTFT99  float64 `json:"ttft_p99_ms"`
	TPOT99  float64 `json:"tpot_p99_ms"`
	Lines   float64 `json:"batch_lines_per_second"`
	Used    float64 `json:"batch_share_of_what_is_left"`
	Limit   float64 `json:"batch_limit"` // requests in flight, at the end
	Refused int     `json:"online_not_answered"`
	Evicted float64 `json:"lines_evicted_per_second"`
}

// variant is what runs beside the online requests.
type variant struct {
	Name   string    `json:"name"`
	Loads  []mixture `json:"loads"`
	config string    // of the picker
	batch  bool
}

// interferenceSettle is how long a load runs before it is measured: the limit of the batch server doubles every two seconds, and falls every five.
const interferenceSettle = 20 * time.Second

// mix offers online requests for a while, without a batch or beside one.
func (o *overloadStack) mix(t *testing.T, v *variant, rate float64) (m mixture) {
	t.Helper()
	o.WriteConfig(t, v.config)
	m.Online = rate
	answered, evicted := func() float64 { return 0 }, func() float64 { return 0 }
	if v.batch {
		batch := o.startBatch(t, 20000)
		defer batch.MustStop(t)
		answered = func() float64 { return linesOf(t, batch) }
		evicted = func() float64 { return evictedOf(t, batch) }
		defer func() { m.Limit = harness.SumOf(t, batch.Addr("metrics"), "tandem_batch_limit") }()
	}
	o.client.poisson(t.Context(), 1, rate, interferenceSettle, o.online)
	begun, before, ended := time.Now(), answered(), evicted()
	all := o.client.poisson(t.Context(), 2, rate, *interferenceFor, o.online)
	m.Lines = (answered() - before) / time.Since(begun).Seconds()
	m.Evicted = (evicted() - ended) / time.Since(begun).Seconds()
	row := overloadRow{all: all()}
	ms := func(of func(*served) time.Duration, q float64) float64 {
		return float64(harness.Quantile(collect(row.all, of), q).Microseconds()) / 1000
	}
	ttft := func(s *served) time.Duration { return s.ttft }
	m.TTFT50, m.TTFT99, m.TPOT99 = ms(ttft, 0.5), ms(ttft, 0.99), ms((*served).tpot, 0.99)
	m.Refused = len(row.all) - len(collect(row.all, ttft))
	return m
}

// TestInterference measures what a batch does to online requests, and what it gets done, over the load of online requests: without a batch, with
// the pace that follows queues alone, with the pace that follows headroom too, and with slots that are kept for online requests and taken back.
func TestInterference(t *testing.T) {
	if *interferenceFor == 0 {
		t.Skip("make batch-interference runs it")
	}
	plain := sharedConfig("")
	o := newSharedStack(t, plain)
	o.client.closedLoop(t.Context(), 2, time.Second, o.online) // engines shake hands
	const settle, measured = 5 * time.Second, 10 * time.Second
	begun := time.Now()
	capacity := rateWithin(o.client.closedLoop(t.Context(), 48, settle+measured, o.online), begun.Add(settle), begun.Add(settle+measured), time.Hour)
	queues := variant{batch: true, config: plain}
	alone := o.mix(t, &queues, 0).Lines
	variants := []*variant{{Name: "without a batch", config: plain}, {Name: "pace by queues", batch: true, config: plain},
		{Name: "pace by queues and headroom", batch: true, config: sharedConfig(reporterConfig(goalTTFT, goalTPOT))},
		{Name: "slots are kept, and taken back", batch: true, config: keptConfig()}}
	for _, share := range []float64{0.2, 0.4, 0.6} {
		for _, v := range variants {
			m := o.mix(t, v, share*capacity)
			m.Used = m.Lines / (alone * (1 - share))
			v.Loads = append(v.Loads, m)
			t.Logf("%s: %+v", v.Name, m)
		}
	}
	report := interference{Capacity: capacity, Alone: alone, TTFT: goalTTFT, TPOT: goalTPOT, Variants: variants}
	t.Logf("\n%s", report.table())
	if *interferenceDir == "" {
		return
	}
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"batch-interference.json": append(text, '\n'), "batch-interference.svg": report.plot()} {
		if err := os.WriteFile(filepath.Join(*interferenceDir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
