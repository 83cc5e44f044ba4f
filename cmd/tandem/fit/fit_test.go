package fit_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/client"
	"github.com/tandem-serving/tandem/cmd/tandem/fit"
	"github.com/tandem-serving/tandem/replay/engine"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/api"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/sglang"
	sglangapi "github.com/tandem-serving/tandem/sim/sglang/api"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// The tests run in synctest bubbles, so the times of the simulated engines are exact.

// simulated is a model whose step times are known.
var simulated = model.Model{Name: "simulated", Vocabulary: 1024, MaxModelLen: 2048, KVBytesPerToken: 1024, StoredBytesPerToken: 32,
	PrefillTokensPerSecond: 20_000, StepMs: 6.4, StepMsPerSequence: 0.25, StepMsPer1kContext: 0.5, LinkBytesPerSecond: 1e9}

// address is where the engine under test listens.
const address = "engine:8000"

// listen serves an engine in memory, and returns how it is fitted. takes is added to every request.
func listen(t *testing.T, handler http.Handler, takes time.Duration) fit.Options {
	t.Helper()
	network := simtest.NewSGLangNetwork()
	l, err := network.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if takes > 0 { // Go 1.26.8 may crash on a timer of 0 in a bubble, with the race detector
			<-time.After(takes)
		}
		handler.ServeHTTP(w, r)
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close(); synctest.Wait() })
	return fit.Options{For: time.Second, Seed: 1, Progress: io.Discard, Settings: engine.Settings{},
		Endpoint: client.Options{URL: "http://" + address, Dial: network.DialContext, Timeout: time.Minute, Connections: 128}}
}

func vllm(t *testing.T, change ...func(*sim.Config)) http.Handler {
	t.Helper()
	e := simtest.NewNetwork().Start(t, append(change, func(c *sim.Config) { c.Model, c.KV.Blocks = simulated, 513 })...)
	return api.NewHandler(e.Engine, e.Faults)
}

func sglangEngine(t *testing.T, mode sglang.Mode) http.Handler {
	t.Helper()
	e := simtest.NewSGLangNetwork().Start(t, mode, func(c *sglang.Config) {
		c.Model, c.ContextLength, c.MaxTotalTokens, c.MaxRunningRequests, c.ChunkedPrefillSize = simulated, 2048, 16384, 32, 1024
	})
	return sglangapi.NewHandler(e.Engine, e.Faults)
}

// late has the first bytes of an answer wait, as those of an engine that is busy with a new request, or of a proxy.
func late(engine http.Handler, by time.Duration) http.Handler {
	if by == 0 {
		return engine
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		engine.ServeHTTP(&lateWriter{ResponseWriter: w, by: by}, r)
	})
}

type lateWriter struct {
	http.ResponseWriter
	by time.Duration
}

func (w *lateWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *lateWriter) Write(p []byte) (int, error) {
	if w.by > 0 {
		<-time.After(w.by)
		w.by = 0
	}
	return w.ResponseWriter.Write(p)
}

// within is by how much a fitted time may be wrong: the context of a batch grows while it is measured.
const within = 0.02

// TestTheTableComesBack: the fit of a simulated engine has the step times of its model, also between the rows, and what a request takes
// besides.
func TestTheTableComesBack(t *testing.T) {
	for _, test := range []struct {
		name    string
		engine  func(*testing.T) http.Handler
		kvWant  int
		chunk   int
		isMixed bool
		late    time.Duration
	}{
		{"vllm", func(t *testing.T) http.Handler { return vllm(t) }, 512 * 32, 2048, true, 0},
		{"vllm", func(t *testing.T) http.Handler { return vllm(t) }, 512 * 32, 2048, true, 5 * time.Millisecond},
		{"sglang", func(t *testing.T) http.Handler { return sglangEngine(t, sglang.Plain) }, 16384, 1024, false, 0},
	} {
		t.Run(fmt.Sprintf("%s, first tokens %v late", test.name, test.late), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const takes = 7 * time.Millisecond
				request := takes + test.late
				r, err := fit.Run(t.Context(), listen(t, late(test.engine(t), test.late), takes))
				if err != nil {
					t.Fatal(err)
				}
				s := r.Settings
				if s.Scheduler != test.name || s.KVTokens != test.kvWant || s.StepTokens != test.chunk || s.Request == nil {
					t.Fatalf("settings %+v", s)
				}
				if d := (*s.Request - request).Abs(); d > 100*time.Microsecond {
					t.Errorf("a request takes %v besides its steps, want %v", *s.Request, request)
				}
				table, err := r.Table()
				if err != nil {
					t.Fatal(err)
				}
				for _, step := range []engine.Step{{New: 16}, {New: 700}, {New: 1000}, {New: 100, Before: 1024}, {New: 512, Before: 512}, {Batch: 1, Context: 600},
					{Batch: 3, Context: 700}, {Batch: 8, Context: 256}, {New: 256, Batch: 8, Context: 512}, {New: 900, Batch: 4, Context: 512}} {
					if step.New > 0 && step.Batch > 0 && !test.isMixed {
						continue
					}
					want := millis(simulated.StepTime(work(step)))
					if got := table.Milliseconds(step); math.Abs(got/want-1) > within {
						t.Errorf("%+v: %.3f ms, want %.3f", step, got, want)
					}
				}
				for _, c := range r.Checks {
					if math.Abs(c.Error()) > within {
						t.Errorf("check: %+v", c)
					}
				}
				if len(r.Checks) < 5 {
					t.Errorf("only %d checks", len(r.Checks))
				}
			})
		})
	}
}

// work is a step as the simulator's model counts it.
func work(s engine.Step) model.Step {
	w := model.Step{PrefillTokens: s.New, Sequences: s.Batch, ContextTokens: int(float64(s.Batch) * s.Context)}
	if s.New > 0 {
		w.Sequences++
		w.ContextTokens += s.New + int(s.Before)
	}
	return w
}

func millis(d time.Duration) float64 { return float64(d) / 1e6 }

// TestWrittenTable: what is written can be read again, with the settings.
func TestWrittenTable(t *testing.T) {
	request := 3 * time.Millisecond
	r := fit.Result{Model: "m", Rounds: 2, Notes: []string{"A note."}, Rows: []fit.Row{{"prefill", 1, 0, 0, 5, 0.01, 3}, {"prefill", 100, 0, 0, 12.3456, 0.02, 3}, {"decode", 0, 1, 64, 5, 0.01, 90}},
		Settings: engine.Settings{Scheduler: "sglang", KVTokens: 16384, BlockTokens: 16, StepTokens: 2048, Sequences: 64, Request: &request}}
	var text bytes.Buffer
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	table, s, err := engine.ReadTable(&text)
	if err != nil {
		t.Fatal(err)
	}
	if s.KVTokens != 16384 || s.Scheduler != "sglang" || *s.Request != request || table.Milliseconds(engine.Step{New: 100}) != 12.35 {
		t.Errorf("%+v, %v ms", s, table.Milliseconds(engine.Step{New: 100}))
	}
}

func TestProblems(t *testing.T) {
	mute := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "{}") })
	for _, test := range []struct {
		name   string
		engine func(*testing.T) http.Handler
		change func(*fit.Options)
		want   string
	}{
		{"nothing listens", nil, func(o *fit.Options) { o.Endpoint.URL = "http://nowhere:80" }, "connecting to nowhere:80"},
		{"no engine", func(*testing.T) http.Handler { return mute }, nil, "the answer lists none"},
		{"another model", nil, func(o *fit.Options) { o.Model = "other" }, "does not serve the model other, but simulated"},
		{"no space", func(t *testing.T) http.Handler {
			return vllm(t, func(c *sim.Config) { c.MaxModelLen = 128 })
		}, nil, "it has space for 128 tokens, and 256 are needed"},
		{"half of a pair", func(t *testing.T) http.Handler { return sglangEngine(t, sglang.Prefill) }, nil, "it is a prefill engine of a pair"},
		{"refused", func(t *testing.T) http.Handler {
			engine := vllm(t)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					http.Error(w, `{"error":{"message":"no","type":"Denied"}}`, http.StatusForbidden)
					return
				}
				engine.ServeHTTP(w, r)
			})
		}, nil, "a first prompt: status 403, Denied: no"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if test.engine == nil {
					test.engine = func(t *testing.T) http.Handler { return vllm(t) }
				}
				o := listen(t, test.engine(t), 0)
				if test.change != nil {
					test.change(&o)
				}
				if _, err := fit.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v, want %q", err, test.want)
				}
			})
		})
	}
}

// TestInterruption: what was measured in whole rounds is there.
func TestInterruption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		o := listen(t, vllm(t), 0)
		o.For = time.Hour
		o.Progress = writer(func(text string) {
			if strings.HasPrefix(text, "round 2:") {
				interrupt()
			}
		})
		r, err := fit.Run(ctx, o)
		if r == nil || r.Rounds != 2 || err == nil || err.Error() != "interrupted: the table is that of 2 rounds" {
			t.Errorf("%v, %v", r, err)
		}
	})
}

type writer func(string)

func (w writer) Write(p []byte) (int, error) {
	w(string(p))
	return len(p), nil
}
