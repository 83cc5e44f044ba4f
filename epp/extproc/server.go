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
)

// Server serves ext-proc streams.
type Server struct {
	procv3.UnimplementedExternalProcessorServer
	cfg     Config
	deps    Deps
	metrics *metrics
	tracing tracing
	quiet   quiet
	readers sync.Pool         // of *read.Reader
	held    *pd.BufferedBytes // request bodies

	mu       sync.Mutex           // guards what follows
	idle     map[*stream]struct{} // streams that only wait for the end of an answer
	draining bool
}

// New makes a server and registers its metrics. The error says what of the configuration, or of what it needs, is missing.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := deps.check(); err != nil {
		return nil, err
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	held := pd.NewBufferedBytes(cfg.BufferLimit)
	m, err := newMetrics(deps.Metrics, held)
	if err != nil {
		return nil, fmt.Errorf("registering the metrics of the ext-proc server: %w", err)
	}
	return &Server{
		cfg: cfg, deps: deps, metrics: m, tracing: newTracing(deps.Tracer, deps.Propagator), quiet: quiet{log: deps.Log},
		readers: sync.Pool{New: func() any { return new(read.Reader) }},
		held:    held,
		idle:    make(map[*stream]struct{}),
	}, nil
}

// policy is what holds for requests that are decided on now; nil is none.
func (s *Server) policy() *epp.Policy {
	if s.deps.Policy == nil {
		return nil
	}
	return s.deps.Policy()
}

// Register adds the service to a gRPC server, which was made with ServerOptions.
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

// unserved ends a stream whose gateway must be configured otherwise.
func (s *Server) unserved(cause string, why error) error {
	s.metrics.violation(cause)
	s.quiet.warn(cause, "the gateway's ext_proc filter cannot be served: change its configuration", "problem", why.Error())
	return status.Error(codes.FailedPrecondition, why.Error())
}

// Drain ends, from now on, every stream that only waits for the end of an answer, which Envoy takes for "go on without
// me"; the load of its request is no longer counted. Requests that are not yet answered, and new ones, are served. Call
// it together with the gRPC server's GracefulStop, which keeps new requests away and waits for the rest.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for st := range s.idle {
		st.dismiss()
	}
}

// rest notes that a stream only waits for the end of an answer. It reports false if it should not: the server drains.
func (s *Server) rest(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	s.idle[st] = struct{}{}
	return true
}

func (s *Server) unrest(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.idle, st)
}

// finisher is the part of gRPC's transport that ends a stream while its handler waits in Recv, which then returns. The
// alternative is a goroutine per stream that reads, so that the handler can wait for two things: twice the stacks, and a
// hand-over per frame, for something that happens once in the life of a server.
type finisher interface {
	WriteStatus(*status.Status) error
}

var statusOK = status.New(codes.OK, "")

// finish ends a stream from outside its handler, as if the handler had returned nil.
func finish(g procv3.ExternalProcessor_ProcessServer) {
	if f, can := grpc.ServerTransportStreamFromContext(g.Context()).(finisher); can {
		_ = f.WriteStatus(statusOK) // it fails only for streams that are over
	}
}

// causeOf tells what is wrong with a stream that cannot be read: nothing ("") if the request is over, which is how every
// stream ends. EOF, cancellation and a lost connection are all the same.
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

// quiet logs what may happen to every request at once: the first of each cause, and then one a minute.
type quiet struct {
	log  *slog.Logger
	mu   sync.Mutex // guards last
	last map[string]time.Time
}

const quietEvery = time.Minute

func (q *quiet) warn(cause, msg string, args ...any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if last, said := q.last[cause]; said && now.Sub(last) < quietEvery {
		return
	}
	if q.last == nil {
		q.last = make(map[string]time.Time)
	}
	q.last[cause] = now
	q.log.Warn(msg, args...)
}
