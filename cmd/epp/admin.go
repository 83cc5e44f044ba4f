package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
)

// admin serves the pages that only the picker's operator may see.
func (p *picker) admin() http.Handler {
	mux := boot.Admin()
	mux.HandleFunc("GET /debug/endpoints", p.debugEndpoints)
	mux.HandleFunc("GET /debug/config", p.debugConfig)
	mux.HandleFunc("GET /debug/queues", p.debugQueues)
	mux.HandleFunc("GET /debug/replicas", p.debugReplicas)
	mux.HandleFunc("GET /debug/prefix", p.debugPrefix)
	mux.HandleFunc("POST /debug/prefix", p.debugPrompt)
	mux.HandleFunc("GET /debug/shadow", p.debugShadow)
	p.requests.kept.Register(mux)
	mux.HandleFunc("POST /explain", p.explain)
	mux.HandleFunc("POST /explain/", p.explain)
	return mux
}

// endpointState is one endpoint as /debug/endpoints shows it.
type endpointState struct {
	Name         string            `json:"name"`
	Address      string            `json:"address"`
	Role         string            `json:"role"`
	Labels       map[string]string `json:"labels"`
	Signals      epp.Readings      `json:"signals"`
	Cache        epp.CacheInfo     `json:"cache"`
	Engine       string            `json:"engine,omitempty"`      // known by its pages
	Mode         epp.EngineMode    `json:"engine_mode,omitempty"` // as its pages say, or its labels let expect
	Ranks        *epp.Ranks        `json:"ranks,omitempty"`
	LoadAge      float64           `json:"load_age_seconds"` // -1 = never read
	Trust        float64           `json:"trust"`            // 0..1, in these numbers
	Requests     int               `json:"inflight_requests"`
	Tokens       int               `json:"inflight_tokens"`
	*epp.Further                   // of configured sources only
}

func (p *picker) debugEndpoints(w http.ResponseWriter, _ *http.Request) {
	snapshot, now := p.pool.Snapshot(), time.Now()
	state := struct {
		Snapshot  uint64          `json:"snapshot"`
		Endpoints []endpointState `json:"endpoints"`
	}{snapshot.Version, make([]endpointState, len(snapshot.Endpoints))}
	for i, e := range snapshot.Endpoints {
		load, inFlight := &snapshot.Loads[i], e.InFlight()
		candidate := epp.Candidate{Endpoint: e, Load: load}
		s := endpointState{Name: e.String(), Address: e.Address, Role: e.Role.String(), Labels: e.Labels, Cache: load.Cache,
			Engine: load.Engine, Mode: candidate.Mode(), Ranks: load.Ranks, LoadAge: -1, Trust: load.Trust(now, p.settings.Metrics.Stale), Requests: inFlight.Requests, Tokens: inFlight.Tokens, Further: load.Further}
		s.Signals = candidate.Readings()
		if !load.At.IsZero() {
			s.LoadAge = now.Sub(load.At).Seconds()
		}
		state.Endpoints[i] = s
	}
	writeJSON(w, state)
}

func (p *picker) debugConfig(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(p.inUse().config.YAML()) // it fails only if the client has left
}

// explain reads a request as a client sends it, with its path after /explain, and answers with the decision and its reasons.
func (p *picker) explain(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/explain")
	if path == "" || path == "/" {
		path = pd.APIChat.Path()
	}
	head := read.HeadOf(r, path)
	head.Reads = p.sched.Reads()
	if p.settings.Picking.PDHeader == "off" {
		head.Mode = nil
	}
	if p.settings.Picking.NoSubset {
		head.Subset = nil
	}
	reader := read.NewReader(p.hashes)
	reader.Reset(head, int64(p.settings.Listen.BodyLimit), p.sched.Needs())
	if err := copyBody(reader, r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var decision *epp.Decision
	request, err := reader.Close(p.rules.policy())
	if err == nil {
		err = request.RequireModel()
	}
	if err == nil {
		decision, err = p.sched.Explain(r.Context(), request)
	}
	x := epp.Explain(request, decision, err)
	if x.Decider.Name != "" {
		x.Decider.Parameters = p.inUse().built.Stages.Splitting().Decider.Decider
	}
	writeJSON(w, x)
}

// copyBody feeds a reader. A refusal of the reader is no error: Close returns it again, and it is explained.
func copyBody(reader *read.Reader, body io.Reader) error {
	for {
		chunk := make([]byte, 64<<10)
		n, err := body.Read(chunk)
		if n > 0 && reader.Write(chunk[:n]) != nil {
			return nil
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("reading the request: %w", err)
		}
	}
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
