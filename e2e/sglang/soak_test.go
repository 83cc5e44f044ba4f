package sglang_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/answer"
	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack"
)

var soak = flag.Duration("sglang.soak", 0, "how long TestSoak sends requests; a minute is the shortest that proves something (make soak-sglang)")

const (
	// soakers is how many requests run at a time, and soakPause the longest time between two of one client.
	soakers, soakPause = 4, time.Second
	// killEvery is the time between two kills. Decode engines forget where a killed engine was within 30 s.
	killEvery = time.Minute
	// soakLimit is how long a client waits: longer than any time-out of sidecars and engines.
	soakLimit = 70 * time.Second
)

// TestSoak sends requests of every kind to a stack with simulated engines, as tandem up starts it, and kills a prefill engine each
// minute, the first one after a third of the time. It is started again at once, so that decode does not notice. Every answer must be
// that of a plain engine, and at the end no engine may hold anything.
func TestSoak(t *testing.T) {
	if *soak == 0 {
		t.Skip("make soak-sglang runs it")
	}
	g, alive := stack.NewGroup(context.Background())
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	s, err := stack.StartPD(alive, g, stack.PDOptions{Dir: harness.BinDir, Engine: stack.EngineSGLang, Prefill: 2, Decode: 2,
		Proxy: stack.ProxyEnvoy, Restarted: func(event string) { t.Log(event) }})
	must(t, err)
	plain := harness.StartSim(t, "plain", "--engine=sglang", "--time-scale=0")
	load := &soaking{front: s.Proxy, plain: plain.Addr}

	ctx, cancel := context.WithTimeout(t.Context(), *soak)
	defer cancel()
	var clients sync.WaitGroup
	for i := range soakers {
		clients.Go(func() { load.send(ctx, rand.New(rand.NewPCG(uint64(i), 1)), s.Model) })
	}
	kills, next := 0, time.After(*soak/3)
	for ctx.Err() == nil {
		select {
		case <-next:
			killMember(t, g, s.Prefill[kills%len(s.Prefill)].Name)
			kills++
			next = time.After(killEvery)
		case <-ctx.Done():
		}
	}
	clients.Wait()
	fmt.Printf("%d requests, %d failed or wrong, %d kills, %d answered at a later attempt, the slowest took %v\n",
		load.sent, len(load.bad), kills, load.retried, load.slowest.Round(time.Millisecond))
	for _, what := range load.bad[:min(10, len(load.bad))] {
		t.Error(what)
	}
	if load.sent == 0 {
		t.Error("nothing was sent")
	}
	for _, pod := range append(s.Prefill, s.Decode...) {
		mustHoldNothing(t, pod)
	}
}

// killMember kills a program of the stack, which starts it again.
func killMember(t *testing.T, g *stack.Group, name string) {
	t.Helper()
	m, ok := g.Member(name)
	if !ok {
		t.Fatalf("the stack has no %s", name)
	}
	must(t, syscall.Kill(m.(*stack.Service).PID(), syscall.SIGKILL)) // the stack does not know that it was meant to end
}

// soaking is what the clients have seen.
type soaking struct {
	front, plain string

	mu      sync.Mutex // guards what follows
	sent    int
	retried int
	slowest time.Duration
	bad     []string
}

// send sends one request after the other until ctx ends. Those that have begun are finished.
func (s *soaking) send(ctx context.Context, r *rand.Rand, model string) {
	for ctx.Err() == nil {
		a := soakAsk(r).with(map[string]any{"model": model})
		began := time.Now()
		got, err := a.within(s.front)
		took := time.Since(began)
		want, wrong := a.within(s.plain)
		s.note(a, got, want, took, err, wrong)
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(r.Int64N(int64(soakPause)))):
		}
	}
}

// within sends the request, and waits no longer than soakLimit.
func (a ask) within(addr string) (answer.Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), soakLimit)
	defer cancel()
	return a.send(ctx, addr)
}

func (s *soaking) note(a ask, got, want answer.Answer, took time.Duration, errs ...error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
	s.slowest = max(s.slowest, took)
	if got.Decision.Attempts > 1 {
		s.retried++
	}
	for _, err := range errs {
		if err != nil {
			s.bad = append(s.bad, fmt.Sprintf("%s, stream %v: %v", a.api, a.stream(), err))
			return
		}
	}
	if got.Status != http.StatusOK || got.Failed != "" || got.Done != want.Done || !reflect.DeepEqual(got.Texts, want.Texts) || got.Finish != want.Finish {
		s.bad = append(s.bad, fmt.Sprintf("%s, stream %v: status %d %v %s %.200q, want %.200q (%s)", a.api, a.stream(), got.Status, got.Decision, got.Failed,
			got.Texts, want.Texts, got.Body))
	}
}

// soakAsk returns a request of some kind.
func soakAsk(r *rand.Rand) ask {
	stream, tokens := r.IntN(2) == 0, []int{1, 8, 60}[r.IntN(3)]
	a := newAsk(apis[r.IntN(len(apis))], []int{5, 40, 200, 900}[r.IntN(4)], tokens, stream)
	if r.IntN(3) > 0 {
		return a
	}
	ids := [][]int{(&harness.Fleet{}).Fresh(90), (&harness.Fleet{}).Fresh(3)}
	switch a.api {
	case pd.APICompletions:
		return a.with(map[string]any{"prompt": ids})
	case pd.APISGLang:
		return a.with(map[string]any{"input_ids": ids, "return_logprob": true, "logprob_start_len": 0})
	}
	return a
}

// mustHoldNothing waits until a simulated engine holds nothing: decode may keep pages of a broken transfer for 30 s.
func mustHoldNothing(t *testing.T, pod stack.Pod) {
	t.Helper()
	var state map[string]any
	deadline := time.Now().Add(deferredRelease)
	for poll := time.NewTicker(100 * time.Millisecond); ; <-poll.C {
		resp, err := harness.Client.Get("http://" + pod.EngineAdmin + "/sim/state")
		must(t, err)
		must(t, json.NewDecoder(resp.Body).Decode(&state))
		resp.Body.Close()
		var held []string
		for _, name := range []string{"live", "held", "bootstrap", "inflight", "prealloc", "transfer", "deferred"} {
			if n, ok := state[name].(float64); !ok || n != 0 {
				held = append(held, fmt.Sprintf("%s %v", name, state[name]))
			}
		}
		if len(held) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s still has %s", pod.Name, strings.Join(held, ", "))
			return
		}
	}
}
