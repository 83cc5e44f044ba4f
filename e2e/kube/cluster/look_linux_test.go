package cluster

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/e2e/otlp"
	"github.com/tandem-serving/tandem/pd"
)

const (
	enginePort  = 8000 // of prefill engines; on decode pods the sidecar, which passes the engine's pages
	sidecarPort = 9095 // the sidecar's own metrics
	// lease is the releases' engine.leaseSeconds.
	lease = 7 * time.Second
)

// holding is what a pod's engine, and its sidecar if it has one, hold and have lost.
type holding struct {
	running, waiting, open int     // requests: in the engine's batch, before it, in the sidecar
	usage                  float64 // share of the KV cache in use
	expired                int     // hand-offs that ran out at the engine
	stranded               int     // and those that the sidecar knows it could not release
}

func (h holding) idle() bool { return h.running == 0 && h.waiting == 0 && h.open == 0 && h.usage == 0 }

// holdings reads those of the release's pods, by pod and restart: what was started again counts from 0.
func (r *run) holdings(t *testing.T, rel *release) map[string]holding {
	t.Helper()
	var all map[string]holding
	r.await(t, "the metrics of "+rel.name, 20*time.Second, func(ctx context.Context) (string, bool) {
		var err error
		if all, err = r.tryHoldings(ctx, t, rel); err != nil {
			return err.Error(), false
		}
		return "", true
	})
	return all
}

func (r *run) tryHoldings(ctx context.Context, t *testing.T, rel *release) (map[string]holding, error) {
	all := map[string]holding{}
	for _, component := range []string{"prefill", "decode"} {
		for _, pod := range rel.readyPods(ctx, t, component) {
			h, err := r.holding(ctx, pod, component == "decode")
			if err != nil {
				return nil, err
			}
			all[fmt.Sprintf("%s/%d/%d", pod.Name, restarts(pod, "engine"), restarts(pod, "sidecar"))] = h
		}
	}
	return all, nil
}

func (r *run) holding(ctx context.Context, pod corev1.Pod, decode bool) (h holding, err error) {
	page, err := r.page(ctx, pod.Namespace, pod.Name, enginePort, "metrics")
	if err != nil {
		return h, err
	}
	h.running = int(sum(page, "vllm:num_requests_running"))
	h.waiting = int(sum(page, "vllm:num_requests_waiting"))
	h.usage = sum(page, "vllm:kv_cache_usage_perc")
	h.expired = int(sum(page, "vllm:nixl_num_kv_expired_reqs_total"))
	if !decode {
		return h, nil
	}
	if page, err = r.page(ctx, pod.Namespace, pod.Name, sidecarPort, "metrics"); err != nil {
		return h, err
	}
	h.open = int(sum(page, "tandem_open_requests"))
	h.stranded = int(sum(page, "tandem_kv_stranded_total"))
	return h, nil
}

// sum adds the samples of a metric on a page, with any labels; labels, if there are some, have to be on the line as well.
func sum(page, metric string, labels ...string) (total float64) {
	lines := bufio.NewScanner(strings.NewReader(page))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), metric)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' ||
			slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(rest, l) }) {
			continue
		}
		if v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64); err == nil {
			total += v
		}
	}
	return total
}

// lookAt holds what has to be so after every scenario: all pods are idle, nothing is stranded that could have been released,
// and the traces of requests are whole.
func (r *run) lookAt(t *testing.T, rel *release, before map[string]holding) {
	t.Helper()
	traces := r.probe(t, rel)
	r.mustBeIdle(t, rel, before)
	if r.local != nil {
		r.mustBeWhole(t, traces)
	}
}

// mustBeIdle waits until no pod holds anything: at once, or, where something was killed that would have given it back, when
// leases have run out. It fails the test if more of them did than may.
func (r *run) mustBeIdle(t *testing.T, rel *release, before map[string]holding) {
	t.Helper()
	var after map[string]holding
	r.await(t, rel.name+" is idle", 4*lease, func(ctx context.Context) (string, bool) {
		now, err := r.tryHoldings(ctx, t, rel)
		if err != nil {
			return err.Error(), false
		}
		after = now
		for _, pod := range slices.Sorted(maps.Keys(now)) {
			if !now[pod].idle() {
				return fmt.Sprintf("%s: %+v", pod, now[pod]), false
			}
		}
		return "", true
	})
	expired, known := 0, 0
	for pod, now := range after {
		expired += now.expired - before[pod].expired
		known += now.stranded - before[pod].stranded
	}
	r.row.stranded = max(expired, known)
	if r.row.stranded > r.strands {
		t.Errorf("%d hand-offs ran out, and sidecars know of %d that they could not release; at most %d may", expired, known, r.strands)
	}
}

// probe sends a request of each sort, with a trace of its own, and gives the traces by what the request has to become.
func (r *run) probe(t *testing.T, rel *release) map[string]pd.Verdict {
	t.Helper()
	traces := map[string]pd.Verdict{}
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	var n tally
	for _, c := range []struct {
		length int
		stream bool
		want   pd.Verdict
	}{{threshold / 8, false, pd.Local}, {2 * threshold, false, pd.Remote}, {2 * threshold, true, pd.Remote}} {
		trace := fmt.Sprintf("%016x%016x", random.Uint64(), random.Uint64())
		q := call{api: pd.APICompletions, stream: c.stream, prompt: drawTokens(random, c.length), tokens: 8,
			header: map[string]string{"traceparent": "00-" + trace + "-" + clientSpan + "-01"}}
		got := r.ask(t, rel, q)
		if got.Status != 200 || got.Decision.Verdict != c.want {
			t.Errorf("a request of %d tokens: status %d, decision %q, want %v; %s", c.length, got.Status, plain(got.Decision), c.want, got.Body)
			continue
		}
		want, err := r.plain.ask(r.ctx, q)
		if err != nil || !slices.Equal(got.Tokens, want) {
			t.Errorf("a request of %d tokens: %v, an undisturbed engine gives %v %v", c.length, got.Tokens, want, err)
		}
		n.right++
		if c.want == pd.Remote {
			n.remote++
		}
		traces[trace] = c.want
	}
	r.row.add(n)
	return traces
}

// clientSpan is the client's own span, in all of its traces.
const clientSpan = "00f067aa0ba902b7"

// mustBeWhole waits until the spans of each trace are there, which programs send every five seconds, and holds that they hang
// together.
func (r *run) mustBeWhole(t *testing.T, traces map[string]pd.Verdict) {
	t.Helper()
	for id, verdict := range traces {
		legs := []string{"decode"}
		if verdict == pd.Remote {
			legs = []string{"prefill", "decode"}
		}
		r.await(t, fmt.Sprintf("the trace of a %v request", verdict), 15*time.Second, func(context.Context) (string, bool) {
			spans := r.local.traces.Of(id)
			return describe(spans), whole(spans, legs)
		})
	}
	r.saw("%d traces whole: epp.pick and sidecar.request under the client's span, legs under the sidecar's", len(traces))
}

// proxyService is what the Envoys call themselves in their spans.
const proxyService = "tandem-gateway"

// whole reports whether a trace has the pick and the sidecar's request, both under the client's span or one of the proxy's that
// is, and the legs under the sidecar's; and besides only the proxy's own spans.
func whole(spans []otlp.Span, legs []string) bool {
	byID, byName := map[string]otlp.Span{}, map[string]otlp.Span{}
	ours := 0
	for _, s := range spans {
		byID[s.ID()] = s
		if s.Service != proxyService {
			byName[s.Name] = s
			ours++
		}
	}
	underClient := func(s otlp.Span) bool {
		for range spans {
			if s.Under(clientSpan) {
				return true
			}
			parent, ok := byID[s.Parent()]
			if !ok || parent.Service != proxyService {
				return false
			}
			s = parent
		}
		return false
	}
	request := byName["sidecar.request"]
	complete := underClient(byName["epp.pick"]) && underClient(request) && ours == 2+len(legs)
	for _, leg := range legs {
		complete = complete && byName[leg].Under(request.ID())
	}
	return complete
}

func describe(spans []otlp.Span) string {
	var all []string
	for _, s := range spans {
		all = append(all, fmt.Sprintf("%s of %s (%s) under %s", s.Name, s.Service, s.ID(), s.Parent()))
	}
	return strings.Join(all, ", ")
}
