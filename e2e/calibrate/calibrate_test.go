package calibrate

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/sglang"
	"github.com/tandem-serving/tandem/e2e/vllm"
	"github.com/tandem-serving/tandem/stack"
)

var (
	kind     = flag.String("calibrate", "", "the engines of TestReplayOfRealEngines: vllm or sglang (make calibrate-vllm, make calibrate-sglang)")
	span     = flag.Duration("calibrate.for", 10*time.Minute, "length of the trace")
	fitFor   = flag.Duration("calibrate.fit-for", 2*time.Minute, "how long the steps are measured")
	firstFor = flag.Duration("calibrate.first-for", 2*time.Minute, "length of the trace that shows what the table has not")
	folder   = flag.String("calibrate.dir", "", "where the table and the records are left; default: a folder that is removed")
)

func TestMain(m *testing.M) {
	if flag.Parse(); *kind != "" {
		os.Exit(harness.Run(m))
	}
	goleak.VerifyTestMain(m)
}

// Processors of the engines.
const (
	prefillCore = "0"
	decodeCore  = "1"
)

// kvBytes is the size of a token's KV cache of the tiny model: keys and values of two layers, a head of 32 numbers of 4 bytes each.
const kvBytes = 2 * 2 * 32 * 4

// arrivalSteps are the steps of a busy decode engine that pass before a prompt from another engine gets its first token. The leg of a
// request took 31 ms at an idle vLLM (median of 316), and 35 ms more, which are five steps, beside one other answer (238).
var arrivalSteps = map[string]int{"vllm": 5}

// pair is a pair of engines.
type pair struct{ prefill, decode *realengine.Engine }

// TestReplayOfRealEngines: TTFT and ITL of a replay are those of the real pair, within 10 % at the median and 20 % at p95.
func TestReplayOfRealEngines(t *testing.T) {
	if *kind == "" {
		t.Skip("make calibrate-vllm and make calibrate-sglang run it")
	}
	realengine.Require(t, *kind)
	dir := *folder
	if dir == "" {
		dir = t.TempDir()
	}
	c := calibration{t: t, dir: dir, factor: 1}
	engines := map[string]func(*testing.T, func(*realengine.Engine)) pair{"vllm": startVLLM, "sglang": startSGLang}[*kind]
	if engines == nil {
		t.Fatalf("-calibrate=%s: want vllm or sglang", *kind)
	}
	began := time.Now()
	e := engines(t, c.fit)
	fmt.Printf("ready and fitted after %.0f s\n", time.Since(began).Seconds())
	c.up(e)

	// Two things are not in the table of an engine's steps: the engines share the processors with the rest of the stack, and between them
	// are proxy, picker, sidecar, and the transfer. A first trace shows how much they are.
	c.trace("first", 1, *firstFor)
	first := c.replay("first")
	c.factor = first.ITL.Measured.P50 / first.ITL.Replayed.P50
	first = c.replay("first")
	c.transfer = max(0, first.TTFT.Measured.P50-first.TTFT.Replayed.P50)
	fmt.Printf("steps take %.2f times as long as alone; proxy, picker, sidecar and transfer take %.1f ms\n", c.factor, c.transfer)

	c.trace("second", 2, *span)
	c.show("second")
	second := c.replay("second")
	second.TTFT.within(t, "TTFT")
	second.ITL.within(t, "ITL")
}

// calibration is one run.
type calibration struct {
	t        *testing.T
	dir      string
	url      string
	factor   float64 // by which steps take longer than those that were fitted
	transfer float64 // ms
}

// table is the file with the table of step times.
func (c *calibration) table() string { return filepath.Join(c.dir, *kind+".csv") }

// run runs tandem to its end, and returns what it prints.
func (c *calibration) run(args ...string) []byte {
	c.t.Helper()
	command := exec.CommandContext(c.t.Context(), filepath.Join(harness.BinDir, "tandem"), args...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		c.t.Fatalf("tandem %v: %v\n%s", args, err, out)
	}
	return out
}

// fit measures the steps of an engine.
func (c *calibration) fit(e *realengine.Engine) {
	c.t.Helper()
	table := c.run("replay", "--fit=http://"+e.Address(), "--fit-for="+fitFor.String(), "--kv-bytes-per-token="+strconv.Itoa(kvBytes), "--max-num-batched-tokens=2048")
	if err := os.WriteFile(c.table(), table, 0o644); err != nil {
		c.t.Fatal(err)
	}
}

// up puts a stack before the engines, in which every prompt is prefilled remotely.
func (c *calibration) up(e pair) {
	c.t.Helper()
	p := harness.Start(c.t, stack.Program{Name: "tandem up", Path: filepath.Join(harness.BinDir, "tandem"), ReadyTimeout: harness.Patience, Args: []string{"up", "--listen=127.0.0.1:0",
		"--engine=" + *kind, "--prefill-engine=" + e.prefill.Address(), "--decode-engine=" + e.decode.Address(), "--threshold=1"}})
	c.url = "http://" + p.Addr("http")
}

// requestsPerSecond keeps each of the engines busy for a quarter of the time, or a third.
const requestsPerSecond = 3

// trace sends a trace of small requests, and keeps the records. Lengths and arrivals follow from the seed.
func (c *calibration) trace(name string, seed uint64, span time.Duration) {
	c.t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	var lines bytes.Buffer
	for at := 0.0; at < span.Seconds(); at += random.ExpFloat64() / requestsPerSecond {
		fmt.Fprintf(&lines, `{"timestamp":%.0f,"input_length":%d,"output_length":%d}`+"\n", 1000*at, 64+random.IntN(1000), 16+random.IntN(49))
	}
	file := filepath.Join(c.dir, name+".trace.jsonl")
	if err := os.WriteFile(file, lines.Bytes(), 0o644); err != nil {
		c.t.Fatal(err)
	}
	c.run("load", "--url="+c.url, "--api=completions", "--trace="+file, "--duration=1h", "--warmup=20", "--records="+c.records(name))
}

func (c *calibration) records(name string) string { return filepath.Join(c.dir, name+".records.jsonl") }

// args are those of the replay of a trace.
func (c *calibration) args(name string) []string {
	return []string{"replay", c.records(name), "--pool=1P+1D", "--engine=" + c.table(), "--threshold=1", "--hop=0s", fmt.Sprintf("--transfer-latency=%.2fms", c.transfer),
		fmt.Sprintf("--step-factor=%.3f", c.factor), "--arrival-steps=" + strconv.Itoa(arrivalSteps[*kind])}
}

// compared are measured and replayed times.
type compared struct{ Measured, Replayed struct{ P50, P95 float64 } }

// within fails if the replay is farther off than it should be.
func (c compared) within(t *testing.T, name string) {
	t.Helper()
	for _, at := range []struct {
		share              string
		measured, replayed float64
		bound              float64
	}{{"p50", c.Measured.P50, c.Replayed.P50, 0.1}, {"p95", c.Measured.P95, c.Replayed.P95, 0.2}} {
		if off := at.replayed/at.measured - 1; math.Abs(off) > at.bound {
			t.Errorf("%s %s: %.1f ms measured, %.1f replayed: off by %+.0f %%, want at most %.0f %%", name, at.share, at.measured, at.replayed, 100*off, 100*at.bound)
		}
	}
}

// replay replays a trace that was measured.
func (c *calibration) replay(name string) (times struct {
	TTFT compared `json:"ttft_ms"`
	ITL  compared `json:"itl_ms"`
}) {
	c.t.Helper()
	var result struct {
		Runs []struct {
			More struct{ Measured json.RawMessage }
		}
	}
	if err := json.Unmarshal(c.run(append(c.args(name), "--json")...), &result); err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(result.Runs[0].More.Measured, &times); err != nil {
		c.t.Fatal(err)
	}
	return times
}

// show prints the replay of a trace beside what was measured.
func (c *calibration) show(name string) { fmt.Printf("%s\n", c.run(c.args(name)...)) }

// stopLater ends an engine with the test.
func stopLater(t *testing.T, e *realengine.Engine) {
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// startVLLM starts a pair of vLLM engines. Each of them also serves whole requests, so one of them is fitted.
func startVLLM(t *testing.T, fit func(*realengine.Engine)) pair {
	t.Helper()
	one := func(name, core string, role vllm.Role) *realengine.Engine {
		e, err := vllm.Start(t.Context(), vllm.Options{Name: name, Role: role, Cores: core, Args: []string{"--max-num-batched-tokens=2048"}})
		if err != nil {
			t.Fatal(err)
		}
		stopLater(t, e)
		return e
	}
	p := pair{prefill: one("prefill", prefillCore, vllm.Prefill), decode: one("decode", decodeCore, vllm.Decode)}
	fit(p.decode)
	return p
}

// startSGLang fits a plain SGLang engine, because those of a pair serve no whole requests, and starts a pair in its place.
func startSGLang(t *testing.T, fit func(*realengine.Engine)) pair {
	t.Helper()
	one := func(name, core string, role sglang.Role) *realengine.Engine {
		e, err := sglang.Start(t.Context(), sglang.Options{Name: name, Role: role, Cores: core, Args: []string{"--chunked-prefill-size=2048"}})
		if err != nil {
			t.Fatal(err)
		}
		stopLater(t, e.Engine)
		return e.Engine
	}
	plain := one("plain", decodeCore, sglang.Plain)
	fit(plain)
	if err := plain.Stop(); err != nil {
		t.Fatal(err)
	}
	return pair{prefill: one("prefill", prefillCore, sglang.Prefill), decode: one("decode", decodeCore, sglang.Decode)}
}
