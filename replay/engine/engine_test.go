package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// flat is a table in which a step takes 10 ms, and a prompt 1 ms more for every 100 tokens.
const flat = `kind,new_tokens,batch,context,ms
prefill,0,0,0,10
prefill,1000,0,0,20
decode,0,1,0,10
decode,0,1000,0,10
`

// driver runs one engine, and writes down what happens.
type driver struct {
	t      *testing.T
	engine *Engine
	log    []string
	first  map[*Request]time.Duration
	done   map[*Request]time.Duration
	sent   []*Request // reserved
}

func newDriver(t *testing.T, c Config, table string) *driver {
	t.Helper()
	parsed, _, err := ReadTable(strings.NewReader(table))
	if err != nil {
		t.Fatal(err)
	}
	d := &driver{t: t, first: map[*Request]time.Duration{}, done: map[*Request]time.Duration{}}
	d.engine = New(c, parsed, d)
	return d
}

func (d *driver) note(now time.Duration, what string, r *Request) {
	d.log = append(d.log, fmt.Sprintf("%v %s %v", now, r.Of, what))
}

func (d *driver) First(now time.Duration, r *Request) { d.first[r] = now; d.note(now, "first", r) }
func (d *driver) Done(now time.Duration, r *Request)  { d.done[r] = now; d.note(now, "done", r) }
func (d *driver) Ran(int, int, time.Duration)         {}
func (d *driver) Reserved(now time.Duration, r *Request, missing int) {
	d.sent = append(d.sent, r)
	d.note(now, fmt.Sprintf("reserved, %d missing", missing), r)
}

// until runs the engine until a moment; single: each step is an event of its own.
func (d *driver) until(end time.Duration, single bool) {
	for {
		if single {
			d.engine.run.steps = 1
		}
		at, ok := d.engine.Next()
		if !ok || at > end {
			return
		}
		d.engine.Advance(at)
	}
}

func (d *driver) want(want ...string) {
	d.t.Helper()
	if !slices.Equal(d.log, want) {
		d.t.Errorf("happened:\n%s\nwant:\n%s", strings.Join(d.log, "\n"), strings.Join(want, "\n"))
	}
}

const forever = 1000 * time.Hour

// parts returns the identities of n parts that belong to one another.
func parts(of uint64, n int) (all []uint64) {
	for i := range n {
		all = append(all, of*1000+uint64(i))
	}
	return all
}

func small() Config {
	return Config{StepTokens: 1000, Sequences: 4, BlockTokens: 10, KVTokens: 10000, PartTokens: 100}
}

func TestChunks(t *testing.T) {
	d := newDriver(t, small(), flat)
	d.engine.Add(0, &Request{Prompt: 2500, Output: 2, Of: "a"})
	d.engine.Add(0, &Request{Prompt: 400, Output: 1, Of: "b"})
	d.until(forever, false)
	// Steps: a 1000; a 1000; a 500 and b 400; a's second token.
	d.want("59ms a first", "59ms b first", "59ms b done", "69ms a done")
}

func TestBudgetOfSequences(t *testing.T) {
	c := small()
	c.Sequences = 2
	d := newDriver(t, c, flat)
	for _, name := range []string{"a", "b", "c"} {
		d.engine.Add(0, &Request{Prompt: 100, Output: 3, Of: name})
	}
	d.until(forever, false)
	// a is alone in the first step: it was there first. b joins in the second, c when a has ended.
	d.want("11ms a first", "32ms b first", "42ms a done", "63ms b done", "63ms c first", "83ms c done")
}

func TestArrivalInARunOfSteps(t *testing.T) {
	d := newDriver(t, small(), flat)
	d.engine.Add(0, &Request{Prompt: 100, Output: 100, Of: "a"})
	d.until(11*time.Millisecond, false)
	if at, _ := d.engine.Next(); at != 1001*time.Millisecond {
		t.Errorf("the steps to the end of a are not one event: the next is at %v", at)
	}
	d.engine.Add(505*time.Millisecond, &Request{Prompt: 100, Output: 1, Of: "b"}) // in the step that ends at 511 ms
	d.until(forever, false)
	d.want("11ms a first", "532ms b first", "532ms b done", "1.012s a done")
}

func TestPrefixCache(t *testing.T) {
	tests := []struct {
		name   string
		kv     int
		before []int // whose parts, each of 5 parts
		cached int   // tokens of another request that begins like the first of them
	}{
		{"warm", 10000, []int{1}, 500},
		{"cold", 10000, []int{2}, 0},
		{"least recently used is evicted", 1100, []int{1, 2, 3}, 0},
		{"a use keeps it", 1150, []int{1, 2, 1}, 500},
		{"the last parts are evicted first", 1350, []int{1, 2, 3}, 300},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := small()
			c.KVTokens = test.kv
			d := newDriver(t, c, flat)
			now := time.Duration(0)
			for _, of := range test.before {
				d.engine.Add(now, &Request{Prompt: 510, Output: 1, Parts: parts(uint64(of), 5), Of: "x"})
				d.until(forever, false)
				now += time.Hour
			}
			r := &Request{Prompt: 510, Output: 1, Parts: parts(1, 5), Of: "r"}
			d.engine.Add(now, r)
			d.until(forever, false)
			if r.Cached != test.cached {
				t.Errorf("%d tokens were cached, want %d", r.Cached, test.cached)
			}
			if used := d.engine.Usage(now); used != 0 {
				t.Errorf("blocks in use after all requests: %v", used)
			}
		})
	}
}

func TestLastTokenIsComputed(t *testing.T) {
	d := newDriver(t, small(), flat)
	for range 2 {
		r := &Request{Prompt: 500, Output: 1, Parts: parts(1, 5), Of: "a"}
		d.engine.Add(0, r)
		d.until(forever, false)
		d.log = append(d.log, fmt.Sprint(r.Cached))
	}
	d.want("15ms a first", "15ms a done", "0", "11ms a first", "11ms a done", "400")
}

func TestPreemption(t *testing.T) {
	c := small()
	c.KVTokens = 230
	d := newDriver(t, c, flat)
	a, b := &Request{Prompt: 100, Output: 50, Of: "a"}, &Request{Prompt: 100, Output: 50, Of: "b"}
	d.engine.Add(0, a)
	d.engine.Add(0, b)
	d.until(forever, false)
	// Both run with 10 blocks each, then with 11. For 12 each there are not enough of the 23 blocks: b, the younger one, gives its own
	// up, and is computed again when a has ended.
	if a.Preempted != 0 || b.Preempted != 1 {
		t.Errorf("preempted: a %d times, b %d times, want 0 and 1", a.Preempted, b.Preempted)
	}
	if d.done[b] <= d.done[a] {
		t.Errorf("b ended at %v, before a at %v", d.done[b], d.done[a])
	}
	if used := d.engine.Usage(0); used != 0 {
		t.Errorf("blocks in use after all requests: %v", used)
	}
}

// TestPreemptionBesideArrived: the only running request is preempted while another one waits whose KV cache has arrived and has the
// other half of the blocks. If that one did not run first, neither could: the preempted one needs more than the half that it has freed.
func TestPreemptionBesideArrived(t *testing.T) {
	for _, prefillFirst := range []bool{false, true} {
		c := small()
		c.KVTokens, c.PrefillFirst = 100, prefillFirst
		d := newDriver(t, c, flat)
		local, remote := &Request{Prompt: 45, Output: 20, Of: "local"}, &Request{Prompt: 50, Output: 3, Remote: true, Of: "remote"}
		d.engine.Add(0, local)
		d.engine.Add(0, remote)
		for len(d.sent) == 0 || local.computed < 49 { // the next step is the last one that the blocks suffice for
			at, _ := d.engine.Next()
			d.engine.run.steps = 1
			d.engine.Advance(min(at, d.engine.run.end(1)))
		}
		d.engine.Arrived(d.engine.run.start+time.Millisecond, remote)
		d.until(forever, false)
		if local.Preempted+remote.Preempted != 1 || d.done[remote] == 0 || d.done[local] == 0 {
			t.Errorf("prefill first %v: preempted %d times and %d times, local done at %v, remote at %v; want one preemption, and that both end",
				prefillFirst, local.Preempted, remote.Preempted, d.done[local], d.done[remote])
		}
	}
}

func TestRemote(t *testing.T) {
	c := small()
	c.KVTokens = 300
	d := newDriver(t, c, flat)
	warm := &Request{Prompt: 110, Output: 1, Parts: parts(1, 1), Of: "warm"}
	d.engine.Add(0, warm)
	d.until(forever, false)
	d.log = nil
	now := time.Second
	a := &Request{Prompt: 205, Output: 2, Parts: parts(1, 2), Remote: true, Of: "a"}
	d.engine.Add(now, a)
	d.engine.Add(now, &Request{Prompt: 150, Output: 1, Of: "b"}) // a's blocks are reserved: there are 9 left
	if all, delayed := d.engine.Waiting(); all != 2 || delayed != 1 {
		t.Errorf("%d wait, %d of them for their KV cache; want 2 and 1", all, delayed)
	}
	d.engine.Arrived(2*time.Second, a)
	d.until(forever, false)
	d.want("1s a reserved, 105 missing", "2.01s a first", "2.02s a done", "2.0315s b first", "2.0315s b done")
}

// TestForgetsRemote: the second of two equal requests whose KV caches come from elsewhere lacks all of it, and leaves nothing for others.
func TestForgetsRemote(t *testing.T) {
	for forgets, missing := range map[bool]int{true: 205, false: 5} {
		c := small()
		c.ForgetsRemote = forgets
		d := newDriver(t, c, flat)
		for i := range 2 {
			now := time.Duration(i) * time.Second
			r := &Request{Prompt: 205, Output: 1, Parts: parts(1, 2), Remote: true, Of: "r"}
			d.engine.Add(now, r)
			d.engine.Arrived(now, r)
			d.until(forever, false)
		}
		if want := fmt.Sprintf("1s r reserved, %d missing", missing); !slices.Contains(d.log, want) {
			t.Errorf("forgets %t: %q, want %s", forgets, d.log, want)
		}
	}
}

// TestArrivalSteps: a request whose KV cache has arrived waits for two steps to end while others run, and for none otherwise.
func TestArrivalSteps(t *testing.T) {
	for _, test := range []struct {
		name   string
		beside bool
		first  time.Duration
	}{{"beside another", true, 50 * time.Millisecond}, {"alone", false, 35 * time.Millisecond}} {
		c := small()
		c.ArrivalSteps = 2
		d := newDriver(t, c, "kind,new_tokens,batch,context,ms\nprefill,0,0,0,10\nprefill,1000,0,0,10\ndecode,0,1,0,10\ndecode,0,1000,0,10\n")
		if test.beside {
			d.engine.Add(0, &Request{Prompt: 100, Output: 40, Of: "a"})
		}
		r := &Request{Prompt: 100, Output: 3, Remote: true, Of: "b"}
		d.engine.Add(5*time.Millisecond, r)
		d.until(24*time.Millisecond, false)
		d.engine.Arrived(25*time.Millisecond, r) // in the step that ends at 30 ms
		if _, delayed := d.engine.Waiting(); delayed != map[bool]int{true: 1}[test.beside] {
			t.Errorf("%s: %d requests wait for their KV cache", test.name, delayed)
		}
		d.until(forever, false)
		if got := d.first[r]; got != test.first {
			t.Errorf("%s: first token after %v, want %v", test.name, got, test.first)
		}
	}
}

func TestHold(t *testing.T) {
	c := small()
	c.KVTokens = 200
	d := newDriver(t, c, flat)
	a := &Request{Prompt: 150, Output: 1, Hold: true, Of: "a"}
	d.engine.Add(0, a)
	d.engine.Add(0, &Request{Prompt: 100, Output: 1, Of: "b"})
	d.until(forever, false)
	d.engine.Release(time.Second, a)
	d.until(forever, false)
	d.want("11.5ms a first", "11.5ms a done", "1.011s b first", "1.011s b done")
}

func TestPrefillFirst(t *testing.T) {
	c := small()
	c.PrefillFirst = true
	d := newDriver(t, c, flat)
	d.engine.Add(0, &Request{Prompt: 100, Output: 3, Of: "a"})
	d.engine.Add(0, &Request{Prompt: 1500, Output: 1, Of: "b"})
	d.until(forever, false)
	// a 100; b 1000; b 500; only then a again.
	d.want("11ms a first", "46ms b first", "46ms b done", "66ms a done")
}

// TestClosedForms compares the engine with what is known of queues and batches.
func TestClosedForms(t *testing.T) {
	t.Run("M/D/1", func(t *testing.T) {
		for _, load := range []float64{0.3, 0.6} {
			d := newDriver(t, Config{StepTokens: 1000, Sequences: 1, BlockTokens: 10, KVTokens: 100}, flat)
			service := 10100 * time.Microsecond // a prompt of 10 tokens
			random := rand.New(rand.NewPCG(1, uint64(load*10)))
			var waited, now float64
			const n = 300_000
			added := make([]*Request, n)
			at := make([]time.Duration, n)
			for i := range added {
				now += random.ExpFloat64() * float64(service) / load
				at[i], added[i] = time.Duration(now), &Request{Prompt: 10, Output: 1, Of: ""}
				d.until(at[i]-1, false)
				d.engine.Add(at[i], added[i])
			}
			d.until(forever, false)
			for i, r := range added {
				waited += float64(d.done[r]-at[i]-service) / n
			}
			want := load / (2 * (1 - load)) * float64(service)
			near(t, waited, want, 0.01)
		}
	})
	t.Run("batch of one", func(t *testing.T) {
		table, _, err := Preset("llama-70b-h100-tp4")
		if err != nil {
			t.Fatal(err)
		}
		d := newDriver(t, VLLM(), flat)
		c := VLLM()
		c.KVTokens = 448_000
		d.engine = New(c, table, d)
		r := &Request{Prompt: 4096, Output: 1000, Of: "r"}
		d.engine.Add(0, r)
		d.until(forever, false)
		want := table.Milliseconds(Step{New: 4096}) + 2
		near(t, float64(d.first[r])/1e6, want, 1e-6)
		for i := range 999 {
			want += table.Milliseconds(Step{Batch: 1, Context: float64(4096 + i)}) + 2
		}
		near(t, float64(d.done[r])/1e6, want, 0.001)
	})
	t.Run("saturation", func(t *testing.T) {
		const n, tokens = 4000, 250
		c := Config{StepTokens: 100_000, Sequences: 50, BlockTokens: 10, KVTokens: 1_000_000}
		d := newDriver(t, c, flat)
		for range n {
			d.engine.Add(0, &Request{Prompt: 1, Output: tokens, Of: ""})
		}
		d.until(forever, false)
		_, end := maxOf(d.done)
		near(t, n*tokens/end.Seconds(), 50/0.010, 0.01)
	})
}

func maxOf(m map[*Request]time.Duration) (last *Request, at time.Duration) {
	for r, t := range m {
		if t > at {
			last, at = r, t
		}
	}
	return last, at
}

func near(t *testing.T, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance*want {
		t.Errorf("%v, want %v within %v %%", got, want, 100*tolerance)
	}
}

// TestRunsAreSteps: an engine that runs steps as one event does the same as one that is woken in each of them.
func TestRunsAreSteps(t *testing.T) {
	c := small()
	c.KVTokens, c.Sequences = 900, 16
	runs, steps := newDriver(t, c, flat), newDriver(t, c, flat)
	random := rand.New(rand.NewPCG(1, 2))
	now := time.Duration(0)
	for i := range 300 {
		now += time.Duration(random.ExpFloat64() * float64(200*time.Millisecond))
		a := Request{Prompt: 1 + random.IntN(600), Output: 1 + random.IntN(80), Parts: parts(uint64(random.IntN(9)), 6), Of: fmt.Sprint(i)}
		a.Parts = a.Parts[:a.Prompt/100]
		b := a
		for _, one := range []struct {
			*driver
			r *Request
		}{{runs, &a}, {steps, &b}} {
			one.until(now-1, one.driver == steps)
			one.engine.Add(now, one.r)
		}
	}
	runs.until(forever, false)
	steps.until(forever, true)
	if len(runs.log) == 0 || !slices.Equal(runs.log, steps.log) {
		for i := range runs.log {
			if runs.log[i] != steps.log[i] {
				t.Fatalf("event %d: %s in runs, %s in steps", i, runs.log[i], steps.log[i])
			}
		}
	}
	preempted := 0
	for r := range runs.done {
		preempted += r.Preempted
	}
	if preempted == 0 {
		t.Error("no request was preempted: the test does not show that runs end before blocks are missing")
	}
}

func TestPresets(t *testing.T) {
	names := Presets()
	if len(names) != 10 || len(presets) != 10 {
		t.Fatalf("%d tables, %d presets, want 10", len(names), len(presets))
	}
	for _, name := range names {
		table, hardware, err := Preset(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if hardware.GPUs == 0 || hardware.KVTokens == 0 || hardware.KVBytes == 0 {
			t.Errorf("%s: hardware is not known: %+v", name, hardware)
		}
		for _, batch := range []int{1, 7, 100, 1000} {
			for _, context := range []float64{0, 100, 5000, 200_000} {
				alone := table.Milliseconds(Step{Batch: batch, Context: context})
				both := table.Milliseconds(Step{Batch: batch, Context: context, New: 300})
				if !(alone > 0) || both < alone {
					t.Errorf("%s: a step of %d requests with %v tokens takes %v ms, and with a prompt %v ms", name, batch, context, alone, both)
				}
			}
		}
	}
}

func TestMilliseconds(t *testing.T) {
	table, _, err := Preset("llama-8b-h100")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		step Step
		want float64
	}{
		{"a row of prefill", Step{New: 1024}, 22.11},
		{"between two", Step{New: 1536}, (22.11 + 43.51) / 2},
		{"behind cached tokens", Step{New: 2048, Before: 4096}, 50.25},
		{"beyond the last", Step{New: 24576}, 440.2 + (440.2 - 199.7)},
		{"nothing", Step{}, 0},
	} {
		if got := table.Milliseconds(test.step); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: %v ms, want %v", test.name, got, test.want)
		}
	}
}

// TestMixedRows: at its own points a table gives its own times.
func TestMixedRows(t *testing.T) {
	rows := flat + "mixed,100,1,0,12\nmixed,100,10,0,14\nmixed,500,1,0,18\nmixed,500,10,0,20\n"
	table, _, err := ReadTable(strings.NewReader(rows))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct {
		step Step
		want float64
	}{{Step{New: 100, Batch: 1}, 12}, {Step{New: 500, Batch: 10}, 20}} {
		near(t, table.Milliseconds(s.step), s.want, 1e-9)
	}
}

func TestReadTable(t *testing.T) {
	head := "kind,new_tokens,batch,context,ms\n"
	for _, test := range []struct{ name, text, want string }{
		{"another file", "a,b\n", "the first line must be kind,new_tokens"},
		{"no rows", head, "no rows of kind prefill"},
		{"unknown kind", head + "encode,1,1,1,1\n", `line 2: kind is "encode"`},
		{"no number", head + "decode,0,1,1,1\ndecode,0,one,1,1\n", "line 3:"},
		{"no time", head + "decode,0,1,1,0\n", "line 2: a step takes time"},
		{"infinite", head + "decode,0,1,1,Inf\n", "line 2: ms cannot be Inf"},
		{"another setting", "# --port=1\n" + head, "line 1: a table cannot say --port"},
		{"a setting without a number", head + "# --kv-tokens=0\n", `line 2: kv-tokens cannot be "0"`},
		{"another scheduler", "# --scheduler=none\n" + head, `the scheduler is "none"`},
		{"a negative time", "# --request-overhead=-1s\n" + head, `request-overhead cannot be "-1s"`},
		{"twice", head + "prefill,1,0,0,1\nprefill,1,0,0,2\ndecode,0,1,1,1\n", "two rows of kind prefill"},
	} {
		_, _, err := ReadTable(strings.NewReader(test.text))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

// TestAbort: a request that is aborted takes no further steps, and its blocks are free when nothing writes into them.
func TestAbort(t *testing.T) {
	c := small()
	for _, test := range []struct {
		name    string
		abort   func(d *driver, r *Request)
		waiting int // then
		log     []string
	}{
		{"while it waits", func(d *driver, r *Request) {
			d.engine.Add(0, &Request{Prompt: 20, Output: 1, Of: "other"})
			d.engine.Add(0, r)
			d.engine.Abort(0, r)
		}, 0, []string{"10.2ms other first", "10.2ms other done"}},
		{"while its prompt is computed", func(d *driver, r *Request) {
			d.engine.Add(0, r)
			d.engine.Abort(0, r)
		}, 0, nil},
		{"while its answer is computed", func(d *driver, r *Request) {
			d.engine.Add(0, r)
			d.until(35*time.Millisecond, false)
			d.engine.Abort(35*time.Millisecond, r)
		}, 0, []string{"10.2ms r first"}},
		{"while its KV cache is on its way", func(d *driver, r *Request) {
			r.Remote = true
			d.engine.Add(0, r)
			d.engine.Abort(0, r)
			if d.engine.Usage(0) == 0 {
				d.t.Error("blocks are free that another engine writes into")
			}
			d.engine.Arrived(time.Second, r)
		}, 0, []string{"0s r reserved, 20 missing"}},
		{"when its KV cache has arrived", func(d *driver, r *Request) {
			r.Remote = true
			d.engine.Add(0, &Request{Prompt: 20, Output: 3, Of: "other"})
			d.engine.Add(0, r)
			d.until(11*time.Millisecond, false)
			d.engine.Arrived(12*time.Millisecond, r)
			d.engine.Abort(13*time.Millisecond, r)
		}, 0, []string{"10.2ms other first", "10.2ms r reserved, 20 missing", "30.2ms other done"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDriver(t, c, flat)
			r := &Request{Prompt: 20, Output: 10, Of: "r"}
			test.abort(d, r)
			if waiting, delayed := d.engine.Waiting(); waiting != test.waiting || delayed != 0 {
				t.Errorf("%d wait, %d for their KV cache; want %d, and none", waiting, delayed, test.waiting)
			}
			d.until(forever, false)
			if d.engine.Running() != 0 || d.engine.Usage(forever) != 0 {
				t.Errorf("%d run, and %v of the KV cache is used", d.engine.Running(), d.engine.Usage(forever))
			}
			d.want(test.log...)
		})
	}
}

// TestAdapters: steps that load adapters or use them take longer, and no more run at a time than can be loaded; others pass.
func TestAdapters(t *testing.T) {
	adding := func(adapters ...string) func(d *driver) {
		return func(d *driver) {
			for i, a := range adapters {
				d.engine.Add(0, &Request{Prompt: 100, Output: 2, Adapter: a, Of: fmt.Sprint(i + 1)})
			}
		}
	}
	after := func(first, second string) func(d *driver) {
		return func(d *driver) {
			adding(first)(d)
			d.until(time.Second, false)
			d.engine.Add(time.Second, &Request{Prompt: 100, Output: 1, Adapter: second, Of: "2"})
		}
	}
	one := Config{Adapters: 1, Load: 100 * time.Millisecond, Slowdown: 2}
	for _, test := range []struct {
		name string
		give Config
		do   func(d *driver)
		want []string
	}{
		{"without a limit they cost nothing", Config{}, adding("a"), []string{"11ms 1 first", "21ms 1 done"}},
		{"no adapter", one, adding(""), []string{"11ms 1 first", "21ms 1 done"}},
		{"one is loaded", one, adding("a"), []string{"122ms 1 first", "142ms 1 done"}},
		{"one is loaded by an engine that is slower than its table", Config{Adapters: 1, Load: 100 * time.Millisecond, Slowdown: 2, Factor: 3}, adding("a"),
			[]string{"166ms 1 first", "226ms 1 done"}},
		{"one that is loaded", one, after("a", "a"), []string{"122ms 1 first", "142ms 1 done", "1.022s 2 first", "1.022s 2 done"}},
		{"one in place of another", one, after("a", "b"), []string{"122ms 1 first", "142ms 1 done", "1.122s 2 first", "1.122s 2 done"}},
		{"one more waits, and others pass it", one, adding("a", "b", "a", ""),
			[]string{"122ms 1 first", "166ms 1 done", "166ms 3 first", "166ms 4 first", "186ms 3 done", "186ms 4 done", "308ms 2 first", "328ms 2 done"}},
		{"two are loaded in one step", Config{Adapters: 2, Load: 100 * time.Millisecond}, func(d *driver) {
			d.engine.Add(0, &Request{Prompt: 100, Output: 1, Of: "0"})
			adding("a", "b")(d)
		}, []string{"11ms 0 first", "11ms 0 done", "223ms 1 first", "223ms 2 first", "233ms 1 done", "233ms 2 done"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := small()
			c.Adapters, c.Load, c.Slowdown, c.Factor = test.give.Adapters, test.give.Load, test.give.Slowdown, test.give.Factor
			d := newDriver(t, c, flat)
			test.do(d)
			d.until(forever, false)
			d.want(test.want...)
		})
	}
	c := small()
	c.Adapters = 1
	d := newDriver(t, c, flat)
	adding("b", "a", "c", "a")(d)
	if running, waiting := d.engine.Adapters(); !slices.Equal(running, []string{"b"}) || !slices.Equal(waiting, []string{"a", "c"}) {
		t.Errorf("running %v, waiting %v", running, waiting)
	}
}

// TestHostMemory: what the prefix cache has dropped is loaded from the host's memory, as far as that holds it, and the step takes longer by that.
func TestHostMemory(t *testing.T) {
	tests := []struct {
		name           string
		host           int // tokens
		before         []int
		remote         bool
		cached, loaded int // tokens of another request that begins like the first of them
		first          time.Duration
	}{
		{"all is there", 5000, []int{1, 2, 3}, false, 500, 500, 11100 * time.Microsecond},
		{"none", 0, []int{1, 2, 3}, false, 0, 0, 15100 * time.Microsecond},
		{"behind what the prefix cache has", 5000, []int{1, 2}, false, 500, 200, 10500 * time.Microsecond},
		{"in the prefix cache", 5000, []int{1}, false, 500, 0, 10100 * time.Microsecond},
		{"the last parts are dropped first", 1300, []int{1, 2, 3}, false, 300, 300, 12700 * time.Microsecond},
		{"a use keeps it", 1000, []int{1, 2, 1, 3}, false, 500, 200, 10500 * time.Microsecond},
		{"other connectors come first", 5000, []int{1, 2, 3}, true, 0, 0, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := small()
			c.KVTokens, c.HostTokens, c.HostLoad = 850, test.host, 2*time.Microsecond
			d := newDriver(t, c, flat)
			now := time.Duration(0)
			for _, of := range test.before {
				d.engine.Add(now, &Request{Prompt: 510, Output: 1, Parts: parts(uint64(of), 5), Of: "x"})
				d.until(forever, false)
				now += time.Hour
			}
			r := &Request{Prompt: 510, Output: 1, Parts: parts(1, 5), Remote: test.remote, Of: "r"}
			d.engine.Add(now, r)
			d.until(forever, false)
			if r.Cached != test.cached || r.Loaded != test.loaded {
				t.Errorf("%d tokens were cached, %d of them loaded; want %d and %d", r.Cached, r.Loaded, test.cached, test.loaded)
			}
			if first := d.first[r] - now; !test.remote && first != test.first {
				t.Errorf("the first token comes after %v, want %v", first, test.first)
			}
		})
	}
}
