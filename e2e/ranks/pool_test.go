package ranks

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/server"
)

const (
	// ranksOf is how many data-parallel ranks each pod has.
	ranksOf = 16
	// podsOf is how many pods each role has.
	podsOf = 4
	// firstPort is the port of the first rank's endpoint, and firstEngine that of the engine behind a sidecar.
	firstPort, firstEngine = 8000, 8200
)

// pod is a pod with an address of its own, and its ranks in their order.
type pod struct {
	name    string
	host    string
	engines []*server.Server
}

// pool is a pool of pods behind a picker and a gateway.
type pool struct {
	*harness.Fleet
	prefill, decode []pod
}

// startPool starts all pods, and waits until the picker has read the pages of all ranks.
func startPool(t *testing.T, config string) *pool {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has an address of its own for each pod on loopback")
	}
	p := &pool{Fleet: harness.NewFleet(t, 0, 0)}
	var list strings.Builder
	list.WriteString("endpoints:\n")
	for i := range podsOf {
		p.prefill = append(p.prefill, startPod(t, &list, "prefill", i))
		p.decode = append(p.decode, startPod(t, &list, "decode", podsOf+i))
	}
	harness.Replace(t, p.Endpoints, list.String())
	p.WriteConfig(t, config)
	// Loads are counted by the picker itself: pages of 128 engines may be old where all of them share a busy machine.
	picker := p.StartPicker(t, "--log-level=info", "--refresh-metrics-interval=5s", "--metrics-staleness-threshold=5m")
	p.Eventually(t, "endpoints whose pages the picker has read", func() (string, bool) {
		state, err := harness.EndpointsOf(picker)
		read := 0
		for _, e := range state.Endpoints {
			if e.LoadAge >= 0 {
				read++
			}
		}
		return fmt.Sprint(read, err), read == 2*podsOf*ranksOf
	})
	p.StartFront(t, harness.Layout{Proxy: "gateway", Mode: "single"})
	return p
}

// startPod starts the engines of a pod, a sidecar before those of a decode pod, and lists its endpoints.
func startPod(t *testing.T, list *strings.Builder, role string, number int) pod {
	t.Helper()
	id := os.Getpid()
	p := pod{name: fmt.Sprintf("%s-%d", role, number), host: netip.AddrFrom4([4]byte{127, byte(64 + id>>8&0x3f), byte(id), byte(1 + number)}).String()}
	first := firstPort
	if role == "decode" {
		first = firstEngine
	}
	for rank := range ranksOf {
		cfg := sim.Config{MaxModelLen: 1024, KV: sim.KVConfig{Blocks: 128}}
		e, err := server.Serve(cfg, listen(t, p.host, first+rank), listen(t, "127.0.0.1", 0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		p.engines = append(p.engines, e)
		fmt.Fprintf(list, "- {name: %s-rank-%d, address: %s, port: %d, labels: {llm-d.ai/role: %s}}\n", p.name, rank, p.host, firstPort+rank, role)
	}
	if role == "decode" {
		startSidecar(t, p.host)
	}
	return p
}

// startSidecar serves one sidecar before all ranks of a pod.
func startSidecar(t *testing.T, host string) {
	t.Helper()
	cfg := sidecar.Defaults()
	cfg.Engine.Host, cfg.Engine.Port, cfg.Engine.Ranks, cfg.Trust.Loopback = host, firstEngine, ranksOf, true
	cfg.Engine.HangAfter = 0 // the tests hold requests back
	s, err := sidecar.New(cfg, sidecar.Telemetry{Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Tracer: noop.NewTracerProvider().Tracer(""), Propagator: propagation.NewCompositeTextMapPropagator()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait) // after all are closed
	for rank, handler := range s.Handlers(firstPort) {
		front, at := &http.Server{Handler: handler}, listen(t, host, firstPort+rank)
		serving.Go(func() { _ = front.Serve(at) }) // it always ends with an error
		t.Cleanup(func() { _ = front.Close() })
	}
}

func listen(t *testing.T, host string, port int) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, fmt.Sprint(port)))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// eachRank calls f with every rank of pods.
func eachRank(pods []pod, f func(name string, e *server.Server)) {
	for _, p := range pods {
		for rank, e := range p.engines {
			f(fmt.Sprintf("%s rank %d", p.name, rank), e)
		}
	}
}

// hold has all ranks of a role hold back the legs of that role, and returns a function that lets them go.
func hold(t *testing.T, pods []pod, leg string) (release func()) {
	t.Helper()
	eachRank(pods, func(_ string, e *server.Server) {
		if err := e.Faults.Add(fault.Fault{Leg: leg, Fault: fault.Slow, Arg: fault.Forever}); err != nil {
			t.Fatal(err)
		}
	})
	return func() { eachRank(pods, func(_ string, e *server.Server) { e.Faults.Clear() }) }
}

// mustHold waits until the ranks of a role hold back total requests, and fails unless each has its share of them. One more or less is
// allowed: what the picker reads on a metrics page may be from before its own picks.
func (p *pool) mustHold(t *testing.T, pods []pod, total int) {
	t.Helper()
	counts := map[string]int64{}
	p.Eventually(t, "requests held back", func() (string, bool) {
		sum := int64(0)
		eachRank(pods, func(name string, e *server.Server) {
			counts[name] = e.Engine.State().Held
			sum += counts[name]
		})
		return fmt.Sprintf("%d of %d", sum, total), sum == int64(total)
	})
	for name, n := range counts {
		if share := int64(total / len(counts)); n < share-1 || n > share+1 {
			t.Errorf("%s has %d requests, want %d, or one more or less", name, n, share)
		}
	}
}

// mustBeFree fails unless no rank holds anything, no lease has expired, and no rank has read a KV cache of another prompt.
func (p *pool) mustBeFree(t *testing.T) {
	t.Helper()
	p.MustRest(t)
	eachRank(append(p.prefill, p.decode...), func(name string, e *server.Server) {
		st, err := e.Engine.WaitState(harness.Within(t), func(st sim.State) bool { return st.Blocks.Used == 0 && st.Blocks.Pinned == 0 })
		if err != nil || st.Expired+st.StaleReads+st.ForeignReads > 0 {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
	})
}

// ask returns a completion of tokens that no engine has seen.
func (p *pool) ask(prompt []int, tokens int) harness.Call {
	return harness.Call{API: pd.APICompletions, Prompt: prompt, Tokens: tokens}
}
