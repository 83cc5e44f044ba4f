package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/stack"
)

const (
	modelName = "llama-3.1-8b-h100"
	threshold = 256 // uncached tokens, by the picker's estimate, from which a prompt is prefilled remotely
)

// The roles of instances.
const (
	rolePrefill = "prefill"
	roleDecode  = "decode"
	rolePlain   = "plain"
)

// instance is one simulated engine of the stage.
type instance struct {
	name    string // of its pod
	role    string
	address string // host:port of its data port
	admin   string // of its admin port
	pod     string // host:port of its pod: its sidecar, if it has one
}

// stage holds the running programs and their addresses.
type stage struct {
	engine    *engine
	group     *stack.Group
	instances []instance
	sidecars  []string // host:port of their metrics ports
	transport string   // of KV
	reference string   // host:port of the reference's data port
	proxy     string   // host:port
	proxyName string
	picker    string // host:port of its admin port
	spans     *spanCollector
	// blockBytes is how many bytes of KV move for one block.
	blockBytes int64
	http       *http.Client
}

// newStage returns an empty stage, and a context that ends when one of its programs dies.
func newStage(ctx context.Context, of *engine) (*stage, context.Context) {
	group, alive := stack.NewGroup(ctx)
	// The client has its own transport, so that no proxy of the environment is used on loopback.
	return &stage{engine: of, group: group, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}}, alive
}

func (s *stage) start(ctx context.Context, with *settings) error {
	model, err := model.Named(modelName)
	if err != nil {
		return err
	}
	s.blockBytes = int64(s.engine.blockSize * model.StoredBytesPerToken)
	simFlags := append([]string{"--model=" + modelName}, s.engine.flags...)
	if s.spans, err = collectSpans(); err != nil {
		return err
	}
	pd, err := stack.StartPD(ctx, s.group, stack.PDOptions{Dir: with.BinDir, Engine: s.engine.name, Prefill: s.engine.pool.prefill, Decode: s.engine.pool.decode,
		Plain: s.engine.pool.plain, Threshold: threshold, Capture: with.Capture, Proxy: with.proxy(), Transport: with.Transport, Library: with.Library,
		Keeper: s.engine.keeper, SimFlags: simFlags, OTLP: s.spans.address})
	if err != nil {
		return err
	}
	s.proxy, s.proxyName, s.picker = pd.Proxy, pd.ProxyName, pd.EPP.Admin
	s.transport = with.Transport
	for _, of := range []struct {
		role string
		pods []stack.Pod
	}{{rolePrefill, pd.Prefill}, {roleDecode, pd.Decode}, {rolePlain, pd.Plain}} {
		for _, pod := range of.pods {
			s.instances = append(s.instances, instance{pod.Name, of.role, pod.Engine, pod.EngineAdmin, pod.Address})
			if pod.SidecarMetrics != "" {
				s.sidecars = append(s.sidecars, pod.SidecarMetrics)
			}
		}
	}
	// Tokens are the same at any speed, so the reference runs as fast as it can.
	p, err := s.group.Start(ctx, stack.Sim(with.BinDir, "reference engine", slices.Concat(simFlags, s.engine.reference, []string{"--time-scale=0"})...))
	if err != nil {
		return err
	}
	s.reference, err = p.Address("http")
	return err
}

// in returns the engines of a role.
func (s *stage) in(role string) []instance {
	return slices.DeleteFunc(slices.Clone(s.instances), func(i instance) bool { return i.role != role })
}

// transports describe how KV moves.
var transports = map[string]string{
	stack.TransportTCP:  "KV moves between the engines over TCP",
	stack.TransportNIXL: "KV moves between the engines by READs of the real NIXL library",
}

// describe returns a description of the stack.
func (s *stage) describe() []string {
	all := []string{fmt.Sprintf("%s, simulated: %s on %s", s.engine.pool, modelName, s.engine.title)}
	return append(append(all, s.engine.about...), transports[s.transport], s.proxyName, fmt.Sprintf("prefill is remote for %d or more uncached tokens", threshold))
}

// stop ends everything that was started.
func (s *stage) stop() error {
	s.http.CloseIdleConnections()
	err := s.group.Stop()
	if s.spans != nil {
		s.spans.stop()
	}
	return err
}

// trace sets what the sidecars' spans say about each request. All spans are there once the stage is stopped.
func (s *stage) trace(all []exchange) {
	names := map[string]string{}
	for _, e := range s.instances {
		names[e.pod] = e.name
	}
	for i := range all {
		all[i].traced = s.spans.of(all[i].answer.requestID, names)
	}
}

// spoil makes every prefill leg fail; an empty fault does nothing.
func (s *stage) spoil(ctx context.Context, named string) error {
	if named == "" {
		return nil
	}
	kind, arg, _ := strings.Cut(named, ":")
	return s.setFault(ctx, s.in(rolePrefill), fault.Fault{Leg: "prefill", Fault: kind, Arg: arg})
}

// setFault sets a fault in engines.
func (s *stage) setFault(ctx context.Context, engines []instance, f fault.Fault) error {
	body, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("writing the fault: %w", err)
	}
	for _, e := range engines {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.admin+"/sim/faults", bytes.NewReader(body))
		if err != nil {
			return fmt.Errorf("setting the fault: %w", err)
		}
		status, answer, err := s.do(req)
		switch {
		case err != nil:
			return err
		case status != http.StatusNoContent:
			return boot.Usagef("setting --fault: %s", bytes.TrimSpace(answer))
		}
	}
	return nil
}

// do sends a request to an admin or metrics port, and returns the whole answer.
func (s *stage) do(req *http.Request) (status int, answer []byte, err error) {
	resp, err := s.http.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("calling a program of the stack: %w", err)
	}
	defer resp.Body.Close()
	if answer, err = io.ReadAll(resp.Body); err != nil {
		return 0, nil, fmt.Errorf("calling a program of the stack: %w", err)
	}
	return resp.StatusCode, answer, nil
}

// page returns the text of a page.
func (s *stage) page(ctx context.Context, address, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", address, err)
	}
	return s.successful(req)
}

func (s *stage) successful(req *http.Request) ([]byte, error) {
	status, answer, err := s.do(req)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("reading %s: status %d: %s", req.URL, status, bytes.TrimSpace(answer))
	}
	return answer, err
}

// get reads a page of JSON.
func (s *stage) get(ctx context.Context, address, path string, into any) error {
	text, err := s.page(ctx, address, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("reading %s of %s: %w", path, address, err)
	}
	return nil
}

// explain returns the picker's explanation of where it would send a question now.
func (s *stage) explain(ctx context.Context, q *question) (*epp.Explanation, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.picker+"/explain"+q.class.api.Path(), bytes.NewReader(q.body))
	if err != nil {
		return nil, fmt.Errorf("calling the picker: %w", err)
	}
	req.Header = q.header()
	text, err := s.successful(req)
	if err != nil {
		return nil, err
	}
	var x epp.Explanation
	if err := json.Unmarshal(text, &x); err != nil {
		return nil, fmt.Errorf("reading the picker's explanation: %w", err)
	}
	return &x, nil
}

// settle waits until an engine holds nothing, for as long as its kind may take, and returns its last account.
func (s *stage) settle(ctx context.Context, e instance) (a account, err error) {
	a.instance = e
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(s.engine.settles)
	for {
		a.state = state{}
		if err = s.get(ctx, e.admin, "/sim/state", &a.state); err != nil {
			return a, err
		}
		if a.idle() || time.Now().After(deadline) {
			if s.engine.read != nil {
				err = s.engine.read(ctx, s, &a)
			}
			return a, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return a, context.Cause(ctx)
		}
	}
}

// settleAll waits until no engine of the stack holds anything, for as long as their kind may take each, and returns their last accounts.
func (s *stage) settleAll(ctx context.Context) (all []account, err error) {
	for _, e := range s.instances {
		a, err := s.settle(ctx, e)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// pulls returns how much the decode engines have pulled from others.
func (s *stage) pulls(ctx context.Context) (sum pulls, err error) {
	for _, e := range s.in(roleDecode) {
		var has state
		if err := s.get(ctx, e.admin, "/sim/state", &has); err != nil {
			return sum, err
		}
		sum.bytes += has.KVBytesRead
		if s.engine.pulledTokens == nil {
			continue
		}
		page, err := s.page(ctx, e.address, "/metrics")
		if err != nil {
			return sum, err
		}
		tokens, err := s.engine.pulledTokens(page)
		if err != nil {
			return sum, fmt.Errorf("reading the metrics of %s: %w", e.address, err)
		}
		sum.tokens += tokens
	}
	return sum, nil
}
