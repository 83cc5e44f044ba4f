package capture

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/epp/setup"
	"github.com/tandem-serving/tandem/pd"
)

// pool is a pool that tests change.
type pool struct{ now *epp.Snapshot }

func (p *pool) Snapshot() *epp.Snapshot { return p.now }

// set makes these the endpoints of the pool, by role, with a page read now that says how many requests wait.
func (p *pool) set(waiting float64, roles ...string) {
	next := &epp.Snapshot{Version: p.now.Version + 1}
	for i, role := range roles {
		var e *epp.Endpoint
		if i < len(p.now.Endpoints) {
			e = p.now.Endpoints[i]
		} else {
			e = epp.NewEndpoint("default", fmt.Sprintf("%s-%d", role, i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 8000), "",
				map[string]string{pd.RoleLabel: role})
			e.Slot = i
		}
		next.Endpoints = append(next.Endpoints, e)
		next.Loads = append(next.Loads, epp.Load{At: time.Now(), Batch: 2, Engine: "vllm", Cache: epp.CacheInfo{BlockTokens: 16, Blocks: 4000},
			Signals: epp.Values{}.With(epp.Waiting, waiting).With(epp.KVUsage, 0.25)})
	}
	p.now = next
}

// rig is a picker whose requests are captured.
type rig struct {
	t        testing.TB
	path     string
	pool     *pool
	recorder *Recorder
	sched    Scheduler
	plain    Scheduler // that is not captured
	registry *prometheus.Registry
	stop     func()
}

// secret is a word of every prompt, session and flow of these tests.
const secret = "Kassandra"

// start starts a picker with the built-in configuration and a decode and a prefill endpoint. change may be nil.
func start(t testing.TB, change func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, pool: &pool{&epp.Snapshot{}}, registry: prometheus.NewRegistry()}
	r.pool.set(0, "decode", "prefill")
	o := Options{Path: filepath.Join(t.TempDir(), "capture.jsonl"), MaxBytes: 1 << 20, Files: 3, Key: NewKey(),
		Log: slog.New(slog.DiscardHandler), Metrics: r.registry}
	if change != nil {
		change(&o)
	}
	r.path = o.Path
	var err error
	r.recorder, err = New(o)
	must(t, err)
	parsed, err := config.Parse(config.Default(), plugin.Table)
	must(t, err)
	built, err := parsed.Build(slog.New(slog.DiscardHandler), &epp.Keep{})
	must(t, err)
	t.Cleanup(func() { must(t, built.Close()) })
	c := setup.Scheduler(built, 2*time.Second, 42, nil)
	c.Picked = append(c.Picked, r.recorder)
	pipeline, err := sched.NewPipeline(c)
	must(t, err)
	s := sched.New(r.recorder.Watch(r.pool), epp.SystemClock)
	s.Swap(pipeline)
	r.recorder.Use(Setup{string(parsed.YAML()), parsed.Digest(), pipeline.Seed(), BlockTokens(s.Needs())})
	r.sched = r.recorder.Schedule(s)
	c.Picked = c.Picked[:len(c.Picked)-1]
	quiet, err := sched.NewPipeline(c)
	must(t, err)
	plain := sched.New(r.pool, epp.SystemClock)
	plain.Swap(quiet)
	r.plain = plain
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.recorder.Run(ctx) })
	r.stop = func() { cancel(); running.Wait() }
	t.Cleanup(r.stop)
	return r
}

// asked returns a request with a prompt of so many tokens, whose blocks are those of every other one.
func asked(tokens int) *epp.Request {
	r := &epp.Request{API: pd.APIChat, Model: "m", Stream: true, Bytes: int64(tokens) * 4,
		Headers: http.Header{"X-Session-Id": {secret}, "X-Llm-D-Inference-Fairness-Id": {secret}},
		Prompt:  epp.Prompt{Tokens: tokens, BlockTokens: 16}}
	for i := range tokens / 16 {
		r.Prompt.Blocks = append(r.Prompt.Blocks, uint64(i+1))
	}
	return r
}

// pick picks for a request.
func (r *rig) pick(q *epp.Request) *epp.Decision {
	r.t.Helper()
	d, err := r.sched.Pick(r.t.Context(), q)
	must(r.t, err)
	return d
}

// end ends a request after a second, with an answer of so many tokens whose headers came in the middle.
func (r *rig) end(d *epp.Decision, tokens int64) {
	pass(time.Second)
	d.Reservation.End()
	r.recorder.Observe(&epp.Outcome{API: pd.APIChat, Status: 200, Decision: d, Plan: pd.Plan{EPP: time.Millisecond}, Served: d.First()[0].Address,
		Result: &pd.AnswerSummary{Prompt: 100, Cached: 10, Completion: tokens}, Answered: 500 * time.Millisecond, Duration: time.Second})
}

// pass lets time pass on the clock of a bubble.
func pass(d time.Duration) { <-time.After(d) }

// read stops the recorder and returns what a file has.
func (r *rig) read(path string) *Capture {
	r.t.Helper()
	r.stop()
	f, err := os.Open(path)
	must(r.t, err)
	defer f.Close()
	c, err := Read(f, func(err error) error { return err })
	must(r.t, err)
	return c
}

// dropped returns what the metric counts, by kind.
func (r *rig) dropped() map[string]int {
	r.t.Helper()
	all, err := r.registry.Gather()
	must(r.t, err)
	counts := map[string]int{}
	for _, family := range all {
		for _, m := range family.Metric {
			if family.GetName() == "tandem_capture_dropped_total" && m.Counter.GetValue() > 0 {
				counts[m.Label[0].GetValue()] = int(m.Counter.GetValue())
			}
		}
	}
	return counts
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What is written is read again: the picker's setup, the loads, what was asked, decided, and how it ended.
func TestRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, nil)
		long := r.pick(asked(4096))
		pass(time.Second)
		r.pool.set(3, "decode", "prefill")
		short := r.pick(asked(32))
		r.end(short, 7)
		r.end(long, 9)
		c := r.read(r.path)
		if h := c.Headers[len(c.Headers)-1]; h.Seed != 42 || h.BlockTokens != 16 || !strings.HasPrefix(h.Digest, "sha256:") || !strings.Contains(h.Config, "prefix-based-pd-decider") ||
			fmt.Sprint(h.Endpoints) != "[{default/decode-0 decode map[llm-d.ai/role:decode]} {default/prefill-1 prefill map[llm-d.ai/role:prefill]}]" {
			t.Errorf("the header is %+v", h)
		}
		if len(c.Loads) != 4 || c.Loads[2].Signals["waiting"] != 3 || c.Loads[2].At-c.Loads[0].At != 1_000_000 {
			t.Errorf("the loads are %+v", c.Loads)
		} else if l := c.Loads[2].Load(c.Headers[0].Began); fmt.Sprint(l) != fmt.Sprint(withTime(r.pool.now.Loads[0], l.At)) {
			t.Errorf("the load is %+v, want %+v", l, r.pool.now.Loads[0])
		}
		one, two := c.Requests[0], c.Requests[1]
		if len(c.Requests) != 2 || one.Verdict != "remote" || one.Reason != "uncached" || one.InputTokens != 4096 || one.InputBytes != 16384 ||
			one.OutputTokens != 9 || one.EngineCached != 10 || one.Status != 200 || one.Served != "default/decode-0" || one.Number != 1 ||
			fmt.Sprint(one.Picks) != "[{decode [default/decode-0] 0 0 0} {prefill [default/prefill-1] 0 0 0}]" ||
			one.Phases != (Phases{Pick: 1000, Answered: 2_500_000, Total: 3_000_000}) {
			t.Errorf("the first request is %+v", one)
		}
		if two.Verdict != "local" || two.OutputTokens != 7 || two.Number != 2 || two.Picks[0].Requests != 1 || two.Picks[0].Cached != 32 || two.Snapshot != one.Snapshot+1 {
			t.Errorf("the second request is %+v", two)
		}
		if len(two.Blocks) != 2 || !slices.Equal(two.Blocks, one.Blocks[:2]) {
			t.Errorf("prompts that begin alike have the blocks %v and %v", two.Blocks, one.Blocks[:2])
		}
		back := one.Asked([]uint64{1}, 16)
		if want := asked(4096); back.API != want.API || back.Fit != want.Fit || back.Mode != want.Mode || back.Header("x-session-id") != one.Session || one.Session == "" {
			t.Errorf("it was asked %+v", back)
		}
	})
}

func withTime(l epp.Load, at time.Time) epp.Load { l.At = at; return l }

// A file tells no one but its owner, and its owner nothing of prompts or headers.
func TestSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, nil)
		r.end(r.pick(asked(64)), 1)
		c := r.read(r.path)
		text, err := os.ReadFile(r.path)
		must(t, err)
		if strings.Contains(string(text), secret) {
			t.Errorf("the capture has a header's value:\n%s", text)
		}
		if info, err := os.Stat(r.path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		for i, b := range c.Requests[0].Blocks {
			if uint64(b) == uint64(i+1) || b < 0 || b >= 1<<53 {
				t.Errorf("block %d has the hash %d", i+1, b)
			}
		}
	})
}

// Hashes can be compared under one key, and only there.
func TestKeys(t *testing.T) {
	shared, err := ParseKey([]byte("0123456789abcdef\n"))
	must(t, err)
	again, err := ParseKey([]byte("0123456789abcdef"))
	must(t, err)
	own := NewKey()
	if shared.blockHashes().of(7) != again.blockHashes().of(7) || shared.text(forFlow, "a") != again.text(forFlow, "a") || shared.Name() != again.Name() {
		t.Error("one secret makes different hashes")
	}
	if shared.blockHashes().of(7) == own.blockHashes().of(7) || shared.text(forFlow, "a") == own.text(forFlow, "a") || shared.Name() == own.Name() {
		t.Error("two keys make the same hashes")
	}
	if shared.text(forFlow, "a") == shared.text(forSession, "a") {
		t.Error("a session and a fairness id of one value have the same hash")
	}
	for name, bad := range map[string]string{"too short": "0123456789abcde", "two lines": "0123456789abcdef\n0123456789abcdef"} {
		if k, err := ParseKey([]byte(bad)); err == nil {
			t.Errorf("%s: %v", name, k)
		}
	}
}

// Refusals, evictions and requests whose end is not reported have a line too.
func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		do      func(r *rig)
		verdict string
		status  int
		total   int64
	}{
		"refused": {func(r *rig) {
			r.pool.set(0)
			_, err := r.sched.Pick(r.t.Context(), asked(16))
			if err == nil {
				r.t.Error("a pool without endpoints refuses nothing")
			}
		}, "refused", 503, 0},
		"ended by the picker": {func(r *rig) {
			d := r.pick(asked(16))
			d.Reservation.End()
			why := pd.Refuse(pd.Evicted, "").Result()
			r.recorder.Observe(&epp.Outcome{API: pd.APIChat, Status: 429, Decision: d, Happened: &why, Immediate: true})
		}, "refused", 429, 0},
		"no stream reports the end": {func(r *rig) {
			r.pick(asked(16)).Reservation.End()
			pass(lookEvery + lost)
			synctest.Wait()
			if text, err := os.ReadFile(r.path); err != nil || !strings.Contains(string(text), `"request":1`) {
				r.t.Errorf("%s, %v", text, err)
			}
		}, "local", 0, -1},
		"the picker ends first": {func(r *rig) { r.pick(asked(16)) }, "local", 0, -1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, nil)
				c.do(r)
				got := r.read(r.path).Requests
				if len(got) != 1 || got[0].Verdict != c.verdict || got[0].Status != c.status || got[0].Phases.Total != c.total {
					t.Errorf("got %+v", got)
				}
			})
		})
	}
}

// Full files are kept under other names, the oldest is removed, and each can be read alone.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, func(o *Options) { o.MaxBytes = 12_000 })
		for i := range 40 {
			if i == 10 {
				r.pool.set(1, "decode", "prefill", "decode")
			}
			r.end(r.pick(asked(320)), int64(i+1))
			synctest.Wait()
		}
		r.stop()
		names, err := filepath.Glob(r.path + "*")
		must(t, err)
		if want := []string{r.path, r.path + ".1", r.path + ".2"}; !slices.Equal(names, want) {
			t.Fatalf("there are %v, want %v", names, want)
		}
		next := int64(0)
		for _, name := range []string{names[2], names[1]} { // the newest may have nothing but its beginning
			info, err := os.Stat(name)
			must(t, err)
			if info.Size() < 12_000 || info.Size() > 15_000 || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %d bytes, %v", name, info.Size(), info.Mode())
			}
			c := r.read(name)
			if len(c.Headers[0].Endpoints) != 3 || len(c.Loads) != 3 {
				t.Errorf("%s: %+v %+v", name, c.Headers, c.Loads)
			}
			for _, q := range c.Requests {
				if next != 0 && q.OutputTokens != next {
					t.Errorf("%s: request %d follows %d", name, q.OutputTokens, next-1)
				}
				next = q.OutputTokens + 1
			}
		}
		if lost := r.dropped(); len(lost) > 0 {
			t.Errorf("dropped: %v", lost)
		}
	})
}

// What was there before is kept, and nothing else than a file is replaced.
func TestFileThatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "capture.jsonl")
		must(t, os.WriteFile(path, []byte("before"), 0o644))
		r := start(t, func(o *Options) { o.Path = path })
		r.end(r.pick(asked(16)), 1)
		if got := r.read(path); len(got.Requests) != 1 {
			t.Errorf("got %+v", got)
		}
		if text, err := os.ReadFile(path + ".1"); string(text) != "before" {
			t.Errorf("%q, %v", text, err)
		}
		must(t, os.Mkdir(filepath.Join(dir, "folder"), 0o755))
		must(t, os.Symlink(path, filepath.Join(dir, "link")))
		for _, name := range []string{"folder", "link", "missing/capture.jsonl"} {
			if _, err := New(Options{Path: filepath.Join(dir, name), Files: 2, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()}); err == nil {
				t.Errorf("%s is written to", name)
			}
		}
	})
}

// No request waits for a writer that does not come: what does not fit is dropped and counted.
func TestFullQueue(t *testing.T) {
	o := Options{Path: filepath.Join(t.TempDir(), "capture.jsonl"), MaxBytes: 1 << 20, Files: 1, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()}
	recorder, err := New(o)
	must(t, err)
	r := &rig{t: t, recorder: recorder, registry: o.Metrics.(*prometheus.Registry)}
	for range queued + 10 {
		one := recorder.record(asked(16))
		one.decision = &epp.Decision{}
		recorder.add(one)
	}
	if lost := r.dropped(); lost["request"] != 10 {
		t.Errorf("dropped %v, want 10 requests", lost)
	}
	for range queued {
		<-recorder.queue
	}
	recorder.waiting.Store(queuedBytes)
	recorder.add(recorder.record(asked(16)))
	if lost := r.dropped(); lost["request"] != 11 || recorder.waiting.Load() != queuedBytes {
		t.Errorf("dropped %v, want 11 requests; %d bytes wait", lost, recorder.waiting.Load())
	}
	few := &pool{&epp.Snapshot{Version: 1, Loads: make([]epp.Load, 1)}}
	recorder.loads.Store(queuedLoads)
	recorder.Watch(few).Snapshot()
	if lost := r.dropped(); lost["load"] != 1 || recorder.loads.Load() != queuedLoads {
		t.Errorf("dropped %v, want 1 load; %d wait", lost, recorder.loads.Load())
	}
	recorder.loads.Store(0)
	many := &pool{&epp.Snapshot{Version: 2, Loads: make([]epp.Load, queuedLoads+1)}} // more than the bound in one
	recorder.Watch(many).Snapshot()
	if lost := r.dropped(); lost["load"] != 1 || recorder.loads.Load() != queuedLoads+1 {
		t.Errorf("dropped %v, want 1 load; %d wait", lost, recorder.loads.Load())
	}
	<-recorder.queue
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	recorder.Run(ctx)
}

// While the disk of the file stalls, requests go on. What the queue cannot hold is dropped, and the rest is written later.
func TestStalledFile(t *testing.T) {
	r := start(t, func(o *Options) { o.MaxBytes = 1 << 40 })
	disk, file, err := os.Pipe() // it takes 64 KiB until it is read
	must(t, err)
	must(t, r.recorder.writer.file.close())
	r.recorder.writer.file.open = file
	sent := 0
	for len(r.dropped()) == 0 {
		for range 100 {
			r.pool.set(float64(sent%4), "decode", "prefill")
			d := r.pick(asked(160))
			d.Reservation.End()
			r.recorder.Observe(&epp.Outcome{API: pd.APIChat, Status: 200, Decision: d, Duration: time.Second})
			sent++
		}
	}
	var text []byte
	var reading sync.WaitGroup
	reading.Go(func() { text, err = io.ReadAll(disk) })
	r.stop() // which closes the file
	reading.Wait()
	must(t, err)
	must(t, disk.Close())
	c, err := Read(bytes.NewReader(text), func(err error) error { return err })
	must(t, err)
	if lost := r.dropped(); len(c.Requests) != sent-lost["request"] || lost["write"] > 0 || sent < 1000 {
		t.Errorf("%d of %d requests are captured, dropped: %v", len(c.Requests), sent, lost)
	}
	if blocks, loads := r.recorder.waiting.Load(), r.recorder.loads.Load(); blocks != 0 || loads != 0 {
		t.Errorf("%d bytes of blocks and %d loads wait", blocks, loads)
	}
}

// A file that cannot be written costs lines, and no more. When it can be, the capture goes on.
func TestUnwritableFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, nil)
		r.end(r.pick(asked(16)), 1)
		synctest.Wait()
		must(t, r.recorder.writer.file.close()) // as if it had failed
		dir := filepath.Dir(r.path)
		must(t, os.Rename(dir, dir+".away"))
		r.end(r.pick(asked(16)), 2)
		synctest.Wait()
		must(t, os.Rename(dir+".away", dir))
		r.end(r.pick(asked(16)), 3)
		r.end(r.pick(asked(16)), 4)
		got := r.read(r.path).Requests
		if len(got) == 0 || got[len(got)-1].OutputTokens != 4 || r.dropped()["write"] == 0 {
			t.Errorf("got %+v; dropped %v", got, r.dropped())
		}
	})
}

// Captures of pickers with one key are one capture, if they follow one another in a file; others are refused.
func TestSeveralPickers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared, err := ParseKey([]byte("0123456789abcdef"))
		must(t, err)
		var both []byte
		keys := []Key{*shared, *shared, NewKey()}
		for i, key := range keys {
			r := start(t, func(o *Options) { o.Key = key })
			pass(time.Minute)
			r.end(r.pick(asked(64)), int64(i))
			r.stop()
			text, err := os.ReadFile(r.path)
			must(t, err)
			both = append(both, text...)
			c, err := Read(strings.NewReader(string(both)), func(err error) error { return err })
			switch {
			case i == 2:
				if err == nil || !strings.Contains(err.Error(), "another key") {
					t.Errorf("got %v", err)
				}
			case err != nil:
				t.Error(err)
			case i == 1:
				if c.Pickers() != 1 || len(c.Each) != 2 || c.Requests[1].Arrived-c.Requests[0].Arrived != 61_000_000 || !slices.Equal(c.Requests[0].Blocks, c.Requests[1].Blocks) {
					t.Errorf("%d pickers at a time, of %d; %+v", c.Pickers(), len(c.Each), c.Requests)
				}
			}
		}
	})
}

func TestUnreadableLines(t *testing.T) {
	const header = `{"capture":1,"began":"2026-01-01T00:00:00Z","block_tokens":16,"key":"k"}` + "\n"
	const request = `{"request":1,"api":"chat","input_tokens":5,"blocks":[]}` + "\n"
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "it has no requests"},
		{"no header", request, "line 1: it comes before the first header"},
		{"another version", `{"capture":9}`, "version 9 of the format, and this program reads version 1"},
		{"another kind", header + `{"answer":1}`, "line 2: it begins with answer"},
		{"no JSON", header + "\n{", "line 3: "},
		{"no load before", header + `{"load":"a","same":true}`, "line 2: the load of a is said to be as before"},
		{"too long", header + `{"request":1,"input_tokens":99999999}`, "line 2: 99999999 input"},
		{"other blocks", header + strings.Replace(header, "16", "64", 1), "line 2: prompts are cut into blocks of 64 tokens, and before into blocks of 16"},
		{"no blocks", strings.Replace(header, "16", "0", 1), "line 1: blocks of 0 tokens cannot be"},
		{"good", header + request, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Read(strings.NewReader(c.text), func(err error) error { return err })
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	left := 0
	if c, err := Read(strings.NewReader(header+"{\n"+request), func(error) error { left++; return nil }); err != nil || len(c.Requests) != 1 || left != 1 {
		t.Errorf("%v, %v, %d lines left out", c, err, left)
	}
}
