package replay

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
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
	"github.com/tandem-serving/tandem/epp/capture"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/epp/setup"
	"github.com/tandem-serving/tandem/pd"
)

// fixedPool is a pool that tests change.
type fixedPool struct{ now *epp.Snapshot }

func (p *fixedPool) Snapshot() *epp.Snapshot { return p.now }

// grow gives the pool another version, with pages read now, and as many endpoints of each role.
func (p *fixedPool) grow(random *rand.Rand, decode, prefill int) {
	next := &epp.Snapshot{Version: p.now.Version + 1}
	for i := range decode + prefill {
		role := "decode"
		if i >= decode {
			role = "prefill"
		}
		name := fmt.Sprintf("%s-%d", role, i)
		e := epp.NewEndpoint("default", name, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 8000), "", map[string]string{pd.RoleLabel: role})
		e.Slot = i
		if j := slices.IndexFunc(p.now.Endpoints, func(e *epp.Endpoint) bool { return e.Name == name }); j >= 0 {
			e = p.now.Endpoints[j]
		}
		load := epp.Load{At: time.Now(), Sent: e.InFlight(), Batch: 4, Engine: "vllm", Cache: epp.CacheInfo{BlockTokens: 16, Blocks: 4000}}
		load.Signals.Set(epp.Waiting, float64(random.IntN(4)))
		load.Signals.Set(epp.Running, float64(random.IntN(8)))
		load.Signals.Set(epp.KVUsage, random.Float64())
		next.Endpoints, next.Loads = append(next.Endpoints, e), append(next.Loads, load)
	}
	p.now = next
}

// captured returns the capture of a picker with a random load: prompts of groups that begin alike, answers that take up to a second,
// pages that change, and endpoints that join.
func captured(t *testing.T, c *config.Config, requests int) *capture.Capture {
	t.Helper()
	path := filepath.Join(t.TempDir(), "capture.jsonl")
	recorder, err := capture.New(capture.Options{Path: path, MaxBytes: 1 << 30, Files: 1, Key: capture.NewKey(), Log: slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	built, err := c.Build(slog.New(slog.DiscardHandler), &epp.Keep{})
	if err != nil {
		t.Fatal(err)
	}
	defer built.Close()
	with := setup.Scheduler(built, 2*time.Second, 0, nil)
	with.Picked = append(with.Picked, recorder)
	pipeline, err := sched.NewPipeline(with)
	if err != nil {
		t.Fatal(err)
	}
	random, pool := rand.New(rand.NewPCG(1, 2)), &fixedPool{&epp.Snapshot{}}
	pool.grow(random, 2, 2)
	s := sched.New(recorder.Watch(pool), epp.SystemClock)
	s.Swap(pipeline)
	recorder.Use(capture.Setup{Config: string(c.YAML()), Digest: c.Digest(), Seed: pipeline.Seed(), BlockTokens: s.Needs().Tokens})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { recorder.Run(ctx) })
	var answering sync.WaitGroup
	for i := range requests {
		<-time.After(time.Duration(1+random.IntN(50_000)) * time.Microsecond)
		if i%10 == 0 {
			pool.grow(random, 2+2*i/requests, 2)
		}
		tokens := 16 * (1 + random.IntN(400))
		q := &epp.Request{API: pd.APIChat, Model: "m", Prompt: epp.Prompt{Tokens: tokens, BlockTokens: s.Needs().Tokens}}
		for j, group := 0, random.IntN(5); j < tokens/s.Needs().Tokens; j++ {
			block := uint64(group)<<32 | uint64(j)
			if j >= 100 {
				block |= uint64(i) << 40
			}
			q.Prompt.Blocks = append(q.Prompt.Blocks, block)
		}
		d, err := recorder.Schedule(s).Pick(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		first, rest := time.Duration(random.IntN(200_000))*time.Microsecond, time.Duration(random.IntN(800_000))*time.Microsecond
		answering.Go(func() {
			<-time.After(first)
			d.Reservation.Answered()
			<-time.After(rest)
			d.Reservation.End()
			recorder.Observe(&epp.Outcome{API: pd.APIChat, Status: 200, Decision: d, Answered: max(1, first), Duration: first + rest, Served: d.First()[0].Address,
				Result: &pd.AnswerSummary{Prompt: int64(tokens), Completion: 20}})
		})
	}
	answering.Wait()
	cancel()
	running.Wait()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	all, err := capture.Read(file, func(err error) error { return err })
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Under the configuration that made it, all picks of a capture come out as they were: the scheduler sees the same endpoints, pages,
// requests in flight, prefixes and random numbers. Another threshold changes verdicts, each named.
func TestRepick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests = 400
		c := thresholdConfig(t, 1000)
		from := captured(t, c, requests)
		same, err := Repick(t.Context(), c, 2*time.Second, from, 0)
		if err != nil {
			t.Fatal(err)
		}
		if same.Captured != requests || same.Same != requests || !same.SameConfig || same.Left != 0 {
			t.Errorf("of %d picks: %+v", requests, same)
		}
		other, err := Repick(t.Context(), thresholdConfig(t, 2000), 2*time.Second, from, 0)
		if err != nil {
			t.Fatal(err)
		}
		if other.SameConfig || len(other.Different) == 0 || !strings.HasPrefix(other.Different[0].What, "local (below-threshold), was remote (uncached)") ||
			other.Different[0].N < requests/10 || other.Same+count(other.Different) != requests {
			t.Errorf("with another threshold: %+v", other)
		}
		first, err := Repick(t.Context(), c, 2*time.Second, from, 10)
		if err != nil || first.Captured != 10 {
			t.Errorf("of the first 10: %+v, %v", first, err)
		}
	})
}

func count(all []Difference) (n int) {
	for _, d := range all {
		n += d.N
	}
	return n
}

// A pick that comes out otherwise is told with what made the difference.
func TestRepickTellsDifferences(t *testing.T) {
	c := thresholdConfig(t, 1000)
	var from *capture.Capture
	synctest.Test(t, func(t *testing.T) { from = captured(t, c, 40) })
	other := map[string]string{"default/decode-0": "default/decode-1", "default/decode-1": "default/decode-0"}
	for _, test := range []struct {
		name   string
		change func(q *capture.Request)
		want   string // of one difference
		left   int
	}{
		{"another endpoint", func(q *capture.Request) { q.Picks[0].Endpoints[0] = other[q.Picks[0].Endpoints[0]] }, "another decode endpoint: other", 0},
		{"requests in flight", func(q *capture.Request) {
			q.Picks[0].Endpoints[0], q.Picks[0].Requests = other[q.Picks[0].Endpoints[0]], 99
		}, "another decode endpoint: other requests in flight there", 0},
		{"one that has left", func(q *capture.Request) { q.Picks[0].Endpoints[0] = "default/gone" }, "another decode endpoint: the one before is not in the pool", 0},
		{"refused by a full stage", func(q *capture.Request) { q.Picks, q.Verdict, q.Reason = nil, "refused", "saturated" }, "local (short-prompt), was refused (saturated)|remote (uncached), was refused (saturated)", 0},
		{"refused by a queue", func(q *capture.Request) { q.Picks, q.Verdict, q.Reason = nil, "refused", "queue-full" }, "", 1},
		{"in a part of the pool", func(q *capture.Request) { q.Subset = true }, "", 1},
		{"evicted", func(q *capture.Request) { q.Verdict, q.Reason = "refused", "evicted" }, "", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			changed := *from
			changed.Requests = slices.Clone(from.Requests)
			last := &changed.Requests[len(changed.Requests)-1]
			last.Picks = slices.Clone(last.Picks)
			last.Picks[0].Endpoints = slices.Clone(last.Picks[0].Endpoints)
			test.change(last)
			got, err := Repick(t.Context(), c, 2*time.Second, &changed, 0)
			if err != nil {
				t.Fatal(err)
			}
			what := ""
			for _, d := range got.Different {
				what += d.What
			}
			is := func(want string) bool { return strings.HasPrefix(what, want) && (want != "") == (what != "") }
			if !slices.ContainsFunc(strings.Split(test.want, "|"), is) || got.Left != test.left || got.Same+count(got.Different)+got.Left != 40 {
				t.Errorf("got %+v, want %s", got, test.want)
			}
		})
	}
}

// TestRepickSeveralPickers: each picker makes its own picks, and knows nothing of the others' requests.
func TestRepickSeveralPickers(t *testing.T) {
	c := thresholdConfig(t, 1000)
	var one, other *capture.Capture
	synctest.Test(t, func(t *testing.T) { one, other = captured(t, c, 40), captured(t, c, 60) })
	both := &capture.Capture{Headers: slices.Concat(one.Headers, other.Headers), Requests: slices.Concat(one.Requests, other.Requests), Each: []*capture.Capture{one, other}}
	slices.SortStableFunc(both.Requests, func(a, b capture.Request) int { return cmp.Compare(a.Arrived, b.Arrived) })
	got, err := Repick(t.Context(), c, 2*time.Second, both, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got.Captured != 100 || got.Same < 95 || got.Same+count(got.Different) != 100 || !got.SameConfig {
		t.Errorf("%+v, want nearly all of 100 picks as captured", got)
	}
	if first, err := Repick(t.Context(), c, 2*time.Second, both, 10); err != nil || first.Captured != 10 {
		t.Errorf("of the first 10: %+v, %v", first, err)
	}
}
