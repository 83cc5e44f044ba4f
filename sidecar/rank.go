package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/handoff"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/passthrough"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// rank is one data-parallel rank of the local engine: an engine at a port of its own. All else is common to the ranks: the
// fallback budget, the buffers, the knowledge of prefill pods, metrics, and the records of requests.
type rank struct {
	engine      transport.Engine
	legs        *handoff.Legs
	passthrough http.Handler
}

// makeRanks makes the ranks of the local engine.
func (s *Server) makeRanks(t Telemetry) []*rank {
	ranks := make([]*rank, s.cfg.Engine.Ranks)
	legs := handoff.New(s.legsConfig(t))
	for i := range ranks {
		r := &rank{engine: s.decodeEngine(i), legs: legs}
		if i > 0 {
			r.legs = legs.ForRank(r.engine, s.cfg.Engine.Port+i)
		}
		r.passthrough = passthrough.New(r.engine, s.grpc, s.intake, s.strips, t.Log)
		ranks[i] = r
	}
	return ranks
}

// legs returns the legs of the first rank, for what is the same of all.
func (s *Server) legs() *handoff.Legs { return s.ranks[0].legs }

// healthy fails if a rank of the local engine does not answer.
func (s *Server) healthy(ctx context.Context) error {
	return s.everyRank(func(e transport.Engine) error { return e.Healthy(ctx) })
}

// everyRank asks all ranks of the local engine, and joins what is wrong with them. They are asked at the same time, because probes have
// little time.
func (s *Server) everyRank(ask func(transport.Engine) error) error {
	errs := make([]error, len(s.ranks))
	var asking sync.WaitGroup
	for i, r := range s.ranks {
		asking.Go(func() {
			if err := ask(r.engine); err != nil {
				errs[i] = fmt.Errorf("asking the decode engine%s: %w", s.nameRank(i), err)
			}
		})
	}
	asking.Wait()
	return errors.Join(errs...)
}

// nameRank returns which rank of the engine is meant, "" if there is one only.
func (s *Server) nameRank(i int) string {
	if len(s.ranks) == 1 {
		return ""
	}
	return fmt.Sprintf(" of rank %d", i)
}

// rankOf returns the rank that a request to a data port is for. With a refusal it is the first one.
type rankOf func(http.Header) (*rank, *pd.Refusal)

// Handlers returns the handlers of the data ports, one for each rank, from the port first on. At the first port a request
// may name another rank (see intake.ReadRank), for gateways that reach only one port of a pod; at the other ports it is for
// the rank of the port.
func (s *Server) Handlers(first int) []http.Handler {
	s.firstPort.Store(int32(first))
	handlers := make([]http.Handler, len(s.ranks))
	for i, r := range s.ranks {
		of := func(http.Header) (*rank, *pd.Refusal) { return r, nil }
		if i == 0 && len(s.ranks) > 1 {
			of = func(h http.Header) (*rank, *pd.Refusal) {
				named, refusal := intake.ReadRank(h, first, len(s.ranks))
				return s.ranks[named], refusal
			}
		}
		handlers[i] = s.handler(of)
	}
	return handlers
}

// rankAt returns the rank of another pod's engine, by the port of its sidecar or, if that is none, the first: all pods have the same ports.
func (s *Server) rankAt(port uint16) int {
	if s.ownsPort(port) {
		return int(port) - int(s.firstPort.Load())
	}
	return 0
}

// ownsPort reports whether a port is one of the data ports.
func (s *Server) ownsPort(port uint16) bool {
	rank := int(port) - int(s.firstPort.Load())
	return rank >= 0 && rank < len(s.ranks)
}

// pulls returns from where engines may fetch blocks of prompts.
func (s *Server) pulls() handoff.Pulls {
	d := &net.Dialer{KeepAlive: transport.KeepAlive, ControlContext: s.routes.Allow.ControlHost}
	return handoff.Pulls{Dial: d.DialContext, Rank: s.rankAt, Self: s.cfg.Prefill.PodIP, Lease: s.cfg.Fallback.Lease}
}

// passthrough returns the handler of all calls but generate calls.
func (s *Server) passthrough(of rankOf) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rank, refusal := of(r.Header)
		if refusal != nil {
			s.intake.Refuse(w, r, refusal)
			return
		}
		if err := rank.legs.Hung(); err != nil { // a picker that reads the metrics page learns of it
			s.intake.Refuse(w, r, transport.Unreachable(err))
			return
		}
		rank.passthrough.ServeHTTP(w, r)
	})
}
