package extproc

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/loglimit"
)

// Server serves ext-proc streams.
type Server struct {
	procv3.UnimplementedExternalProcessorServer
	cfg      Config
	deps     Deps
	metrics  *metrics
	tracing  tracing
	warnings warnings
	readers  sync.Pool         // of *read.Reader
	buffered *pd.BufferedBytes // request bodies

	mu       sync.Mutex           // guards idle and draining
	idle     map[*stream]struct{} // streams that only wait for the end of an answer
	draining bool
}

// New makes a server and registers its metrics. The error names a missing dependency or an invalid setting.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := deps.check(); err != nil {
		return nil, err
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	buffered := pd.NewBufferedBytes(cfg.BufferLimit)
	m, err := newMetrics(deps.Metrics, buffered)
	if err != nil {
		return nil, fmt.Errorf("registering the metrics of the ext-proc server: %w", err)
	}
	return &Server{
		cfg: cfg, deps: deps, metrics: m, tracing: newTracing(deps.Tracer, deps.Propagator), warnings: warnings{log: deps.Log},
		readers:  sync.Pool{New: func() any { return read.NewReader(cfg.Secret) }},
		buffered: buffered,
		idle:     make(map[*stream]struct{}),
	}, nil
}

// policy returns the current policy, nil if there is none.
func (s *Server) policy() *epp.Policy {
	if s.deps.Policy == nil {
		return nil
	}
	return s.deps.Policy()
}

// Register adds the service to a gRPC server, which must have been made with ServerOptions.
func (s *Server) Register(g *grpc.Server) { procv3.RegisterExternalProcessorServer(g, s) }

// Process implements the ext-proc service: one call is one HTTP request.
func (s *Server) Process(g procv3.ExternalProcessor_ProcessServer) error {
	f, err := filterOf(g.Context())
	if err != nil {
		return s.unserved("filter-mark", err)
	}
	st := &stream{s: s, grpc: g, filter: f, began: time.Now()}
	s.metrics.streams[f].Inc()
	defer st.close()
	return st.run()
}

// unserved ends a stream of a gateway whose configuration must change.
func (s *Server) unserved(cause string, why error) error {
	s.metrics.violation(cause)
	s.warnings.warn(cause, "the gateway's ext_proc filter cannot be served: change its configuration", "problem", why.Error())
	return status.Error(codes.FailedPrecondition, why.Error())
}

// Drain ends, from now on, every stream that only waits for the end of an answer. Envoy then continues without the stream, and the
// load of its request is no longer counted. Requests that are not yet answered, and new ones, are served. Call Drain together
// with the gRPC server's GracefulStop, which refuses new requests and waits for the rest.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for st := range s.idle {
		st.dismiss()
	}
}

// addIdle registers a stream that only waits for the end of an answer. It reports false if the server drains: the stream must end.
func (s *Server) addIdle(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	s.idle[st] = struct{}{}
	return true
}

func (s *Server) removeIdle(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.idle, st)
}

// finisher is the part of gRPC's transport stream that ends it while its handler waits in Recv, which then returns. The
// alternative is a second goroutine per stream that reads. That takes twice the stacks, and one channel operation per frame,
// for an event that happens once in the life of a server.
type finisher interface {
	WriteStatus(*status.Status) error
}

var statusOK = status.New(codes.OK, "")

// finish ends a stream from outside its handler, as if the handler had returned nil.
func finish(g procv3.ExternalProcessor_ProcessServer) {
	if f, can := grpc.ServerTransportStreamFromContext(g.Context()).(finisher); can {
		_ = f.WriteStatus(statusOK) // fails only for streams that have ended
	}
}

// causeOf returns why a stream cannot be read, as a label, and "" if the request is over, which is how every stream ends: by EOF,
// cancellation or a lost connection.
func causeOf(err error) string {
	if err == io.EOF {
		return ""
	}
	switch status.Code(err) {
	case codes.ResourceExhausted:
		return "frame-too-large"
	case codes.Internal, codes.Unknown, codes.Unimplemented:
		return "unreadable"
	}
	return ""
}

// warnings limits the log of events that can happen to every request at once: the first of each cause, and then one a minute.
type warnings struct {
	log      *slog.Logger
	mu       sync.Mutex // guards limiters
	limiters map[string]*loglimit.Limiter
}

const warningInterval = time.Minute

func (w *warnings) warn(cause, msg string, args ...any) {
	w.mu.Lock()
	limiter := w.limiters[cause]
	if limiter == nil {
		if w.limiters == nil {
			w.limiters = make(map[string]*loglimit.Limiter)
		}
		limiter = loglimit.New(w.log, warningInterval)
		w.limiters[cause] = limiter
	}
	w.mu.Unlock()
	limiter.Warn(msg, args...)
}
