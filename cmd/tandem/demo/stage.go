package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/stack"
)

const (
	prefillEngines = 2
	decodeEngines  = 2
	modelName      = "llama-3.1-8b-h100"
	blockSize      = 32  // tokens
	threshold      = 256 // uncached tokens, by the picker's estimate, from which a prompt is prefilled remotely
)

// simFlags are the flags of all engines, the reference too. 32768 tokens of KV are a little more than the concurrent
// requests need, so the prefix caches evict, as real ones do.
var simFlags = []string{"--model=" + modelName, "--block-size=" + strconv.Itoa(blockSize), "--max-model-len=8192", "--blocks=1024"}

// engine is one simulated engine of the stage.
type engine struct {
	name    string // of its pod
	address string // host:port of its data port
	admin   string // of its admin port
	pod     string // host:port of its pod: the sidecar of a decode engine
}

// stage holds the running programs and their addresses.
type stage struct {
	group           *stack.Group
	prefill, decode []engine
	sidecars        []string // host:port of their metrics ports
	transport       string   // of KV
	reference       string   // host:port of its data port
	proxy           string   // host:port
	proxyName       string
	picker          string // host:port of its admin port
	spans           *spanCollector
	blockBytes      int64 // KV bytes that move for one block
	http            *http.Client
}

// newStage returns an empty stage, and a context that ends when one of its programs dies.
func newStage(ctx context.Context) (*stage, context.Context) {
	group, alive := stack.NewGroup(ctx)
	// The client has its own transport, so that no proxy of the environment is used on loopback.
	return &stage{group: group, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}}, alive
}

func (s *stage) start(ctx context.Context, with *settings) error {
	model, err := model.Named(modelName)
	if err != nil {
		return err
	}
	s.blockBytes = int64(blockSize * model.StoredBytesPerToken)
	if s.spans, err = collectSpans(); err != nil {
		return err
	}
	pd, err := stack.StartPD(ctx, s.group, stack.PDOptions{Dir: with.BinDir, Prefill: prefillEngines, Decode: decodeEngines,
		Threshold: threshold, Capture: with.Capture, Proxy: with.proxy(), Transport: with.Transport, Library: with.Library, Keeper: true, SimFlags: simFlags, OTLP: s.spans.address})
	if err != nil {
		return err
	}
	s.proxy, s.proxyName, s.picker = pd.Proxy, pd.ProxyName, pd.EPP.Admin
	s.prefill, s.decode, s.transport = engines(pd.Prefill), engines(pd.Decode), with.Transport
	for _, pod := range pd.Decode {
		s.sidecars = append(s.sidecars, pod.SidecarMetrics)
	}
	// Tokens are the same at any speed, so the reference runs as fast as it can.
	p, err := s.group.Start(ctx, stack.Sim(with.BinDir, "reference engine", slices.Concat(simFlags, []string{"--time-scale=0"})...))
	if err != nil {
		return err
	}
	s.reference, err = p.Address("http")
	return err
}

func engines(pods []stack.Pod) []engine {
	all := make([]engine, len(pods))
	for i, pod := range pods {
		all[i] = engine{pod.Name, pod.Engine, pod.EngineAdmin, pod.Address}
	}
	return all
}

// transports describe how KV moves.
var transports = map[string]string{
	stack.TransportTCP:  "KV moves between the engines over TCP",
	stack.TransportNIXL: "KV moves between the engines by READs of the real NIXL library",
}

// describe returns a description of the stack.
func (s *stage) describe() []string {
	return []string{
		fmt.Sprintf("%d prefill and %d decode engines, simulated: %s", len(s.prefill), len(s.decode), modelName),
		"a Tandem sidecar with a NIXL agent process (keeper) for each decode engine, and the Tandem EPP",
		transports[s.transport],
		s.proxyName,
		fmt.Sprintf("prefill is remote for %d or more uncached tokens", threshold),
	}
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
	for _, e := range slices.Concat(s.prefill, s.decode) {
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
	return s.setFault(ctx, s.prefill, fault.Fault{Leg: "prefill", Fault: kind, Arg: arg})
}

// setFault sets a fault in engines.
func (s *stage) setFault(ctx context.Context, engines []engine, f fault.Fault) error {
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

// settleTime is how long blocks may be held after the last answer. The prefill engine learns of the end of a transfer by a
// notification, which takes milliseconds; a lease would hold the blocks for 30 s.
const settleTime = 3 * time.Second

// settle waits until an engine holds no blocks, for at most settleTime, and returns its last state.
func (s *stage) settle(ctx context.Context, e engine) (state sim.State, err error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(settleTime)
	for {
		err = s.get(ctx, e.admin, "/sim/state", &state)
		if err != nil || state.Blocks.Used == 0 || time.Now().After(deadline) {
			return state, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return state, context.Cause(ctx)
		}
	}
}

// settleAll waits until no engine of the stack holds blocks, for at most settleTime each, and returns their last states.
func (s *stage) settleAll(ctx context.Context) (states []sim.State, err error) {
	for _, e := range slices.Concat(s.prefill, s.decode) {
		state, err := s.settle(ctx, e)
		if err != nil {
			return nil, err
		}
		states = append(states, state)
	}
	return states, nil
}

// pulls returns how much the decode engines have pulled from others.
func (s *stage) pulls(ctx context.Context) (sum pulls, err error) {
	for _, e := range s.decode {
		var state sim.State
		if err := s.get(ctx, e.admin, "/sim/state", &state); err != nil {
			return sum, err
		}
		page, err := s.page(ctx, e.address, "/metrics")
		if err != nil {
			return sum, err
		}
		tokens, err := pulledTokens(page)
		if err != nil {
			return sum, fmt.Errorf("reading the metrics of %s: %w", e.address, err)
		}
		sum.bytes += state.KVBytesRead
		sum.tokens += tokens
	}
	return sum, nil
}

// pulledTokens returns, from an engine's metrics page, how many prompt tokens came from another engine.
func pulledTokens(page []byte) (int64, error) {
	const name, label = "vllm:prompt_tokens_by_source_total{", `source="external_kv_transfer"`
	for line := range strings.Lines(string(page)) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if ok && strings.HasPrefix(series, name) && strings.Contains(series, label) {
			n, err := strconv.ParseFloat(value, 64)
			return int64(n), err
		}
	}
	return 0, fmt.Errorf("there is no %s%s}", name, label)
}
