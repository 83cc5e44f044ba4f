package extproc

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Config says how requests are read and answered. A time limit of 0 is none.
type Config struct {
	BodyLimit       int64         // bytes of a request's body; more is answered 413
	BufferLimit     int64         // bytes of the bodies that are buffered until their pick, over all requests; more is answered 503
	BodyPause       time.Duration // between two frames of a request's body
	BodyRate        int64         // bytes a second that a body comes with on average, beyond BodyPause
	DecisionTimeout time.Duration // from the last byte to the decision
	PDHeader        bool          // obey pd.HeaderMode
	Auth            func() string // gives the secret in pd.HeaderAuth that sidecars ask for; nil = none is sent
	Subset          bool          // obey the gateway's subset hint
	// SingleEndpoint names the best endpoint only: clusters of type ORIGINAL_DST take no list.
	SingleEndpoint bool
	// ClearRouteCache makes Envoy choose the route again, which only routes that match on the pick's header need. Others
	// are harmed by it: a weighted route draws again, and may leave for the pool of another picker.
	ClearRouteCache bool
	// Trailers tells that a single filter has response_trailer_mode SEND, so that sidecars may be asked for their report
	// on streams. The protocol does not tell. The pair always has it.
	Trailers bool
}

// Defaults are the settings that suit the bootstrap of this package.
func Defaults() Config {
	return Config{
		BodyLimit: 64 << 20, BufferLimit: 1 << 30, BodyPause: 30 * time.Second, BodyRate: pd.BodyRate, DecisionTimeout: 30 * time.Second,
		PDHeader: true, Subset: true, Trailers: true,
	}
}

// Scheduler picks. Both methods are called from many goroutines. The error of Pick is a *pd.Refusal.
type Scheduler interface {
	Blocks() epp.BlockSpec
	Pick(r *epp.Request) (*epp.Decision, error)
}

// Endpoints finds an endpoint by its address, also one that has left the pool while requests to it run.
type Endpoints interface {
	Find(addr netip.AddrPort) (*epp.Endpoint, bool)
}

// Deps is what a Server works with. Only Policy, Observers, Tracer and Propagator may be nil.
type Deps struct {
	Scheduler  Scheduler
	Endpoints  Endpoints
	Ledger     *epp.Ledger
	Policy     func() *epp.Policy // asked for every request; nil, or one that gives nil: there is none
	Observers  []epp.Observer
	Log        *slog.Logger
	Metrics    prometheus.Registerer
	Tracer     trace.Tracer
	Propagator propagation.TextMapPropagator
}

func (d *Deps) check() error {
	if d.Scheduler == nil || d.Endpoints == nil || d.Ledger == nil || d.Log == nil || d.Metrics == nil {
		return errors.New("making the ext-proc server: scheduler, endpoints, ledger, log and metrics are needed")
	}
	return nil
}

func (c *Config) check() error {
	if c.BodyLimit <= 0 {
		return fmt.Errorf("making the ext-proc server: a body limit of %d bytes lets no request in", c.BodyLimit)
	}
	if c.BufferLimit < c.BodyLimit {
		return fmt.Errorf("making the ext-proc server: the body limit of %d bytes exceeds the buffer limit of %d", c.BodyLimit, c.BufferLimit)
	}
	return nil
}

const (
	// frameSlack is what a frame has besides its body: headers, metadata and attributes.
	frameSlack = 64 << 10
	// maxMetadata is how large the metadata of a stream may be (bytes): gateways send some hundred. gRPC's own 16 MiB, which
	// anybody who reaches the port could have kept for each of many streams, would count nowhere.
	maxMetadata = 64 << 10
	// maxStreams is of one connection. Envoy opens one stream for each request, and one more in the pair.
	maxStreams = 100_000
	// window is the flow control window of streams and connections: bodies of some 100 kB arrive without a round trip.
	// Above it the picker does not read faster than it scans.
	streamWindow, connWindow = 1 << 20, 16 << 20
)

// ServerOptions are what the gRPC server must be told to serve this package: a message limit above Envoy's largest frame,
// which may hold a whole body, and keepalive, which ends the streams of a gateway that vanished without a word. security is nil
// for plaintext.
func ServerOptions(c Config, security credentials.TransportCredentials) []grpc.ServerOption {
	if security == nil {
		security = insecure.NewCredentials()
	}
	return []grpc.ServerOption{
		grpc.Creds(security),
		grpc.MaxRecvMsgSize(int(c.BodyLimit) + frameSlack),
		grpc.MaxHeaderListSize(maxMetadata),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
}
