package extproc

import (
	"context"
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
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
)

// Config is the settings of a Server. A time limit of 0 is none.
type Config struct {
	BodyLimit       int64         // bytes of one request's body; a larger one is answered 413
	BufferLimit     int64         // bytes of the bodies that are buffered until their pick, over all requests; more is answered 503
	BodyPause       time.Duration // longest wait between two frames of a request's body
	BodyRate        int64         // bytes per second that a body must arrive with on average, beyond BodyPause
	DecisionTimeout time.Duration // from a request's last byte to the pick
	PDHeader        bool          // clients may choose the P/D mode by pd.HeaderMode
	AllTakePlans    bool          // every endpoint gets the headers for Tandem's sidecar, whatever its Peer is
	Auth            func() string // returns the secret that is sent to sidecars in pd.HeaderAuth; nil = none
	Subset          bool          // pick only within the gateway's subset hint
	// SingleEndpoint sends only the best endpoint to the gateway: clusters of type ORIGINAL_DST take no list.
	SingleEndpoint bool
	// ClearRouteCache makes Envoy choose the route again. Only routes that match on the pick's header need it. It harms
	// others: a weighted route draws again, and may choose the pool of another picker.
	ClearRouteCache bool
	// Secret keys the hashes of prompts; nil: one of the process.
	Secret *read.Secret
	// Trailers says that a single filter has response_trailer_mode SEND, so that sidecars can report on streams in trailers.
	// The protocol does not transmit that setting. The pair always has it.
	Trailers bool
}

// Defaults returns the settings that suit the bootstrap of package envoyconf.
func Defaults() Config {
	return Config{
		BodyLimit: 64 << 20, BufferLimit: 1 << 30, BodyPause: 30 * time.Second, BodyRate: pd.BodyRate, DecisionTimeout: 30 * time.Second,
		PDHeader: true, Subset: true, AllTakePlans: true, Trailers: true,
	}
}

// Scheduler picks. Its methods are called from many goroutines. The error of Pick is a *pd.Refusal.
type Scheduler interface {
	Needs() epp.PromptSpec
	// Reads is the APIs whose requests are read.
	Reads() epp.APISet
	// Wait is for how long Pick may let a request wait for capacity. DecisionTimeout is for the rest.
	Wait() time.Duration
	// Stages are those of the configuration in use, nil if there is none.
	Stages() epp.Stages
	Pick(ctx context.Context, r *epp.Request) (*epp.Decision, error)
}

// Endpoints finds an endpoint by its address. An endpoint that has left the pool is found while requests to it run.
type Endpoints interface {
	Find(addr netip.AddrPort) (*epp.Endpoint, bool)
}

// Deps is what a Server needs. Only Await, Policy, Observers, Tracer and Propagator may be nil.
type Deps struct {
	Scheduler Scheduler
	Endpoints Endpoints
	Ledger    *epp.Ledger
	// Await is called for every request, and returns when the endpoints and the policy are known, or with an error when ctx has
	// ended. Gateways that have not noticed yet that a picker was restarted send it requests before it is ready.
	Await      func(ctx context.Context) error
	Policy     func() *epp.Policy // called for every request; nil, or a nil result, means no policy
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
	// frameSlack is the size (bytes) that a frame may have besides its body: headers, metadata and attributes.
	frameSlack = 64 << 10
	// maxMetadata bounds the metadata of a stream (bytes): gateways send a few hundred. gRPC's default is 16 MiB, which any client
	// that reaches the port could occupy with each of many streams, outside BufferLimit.
	maxMetadata = 64 << 10
	// maxStreams bounds the streams of one connection. Envoy opens one stream for each request, and two with the pair.
	maxStreams = 100_000
	// streamWindow and connWindow are the flow control windows (bytes): bodies of some 100 kB arrive without a round trip. The
	// server reads larger ones no faster than it scans them.
	streamWindow, connWindow = 1 << 20, 16 << 20
)

// ServerOptions returns the options that the gRPC server needs to serve this package: a message limit above Envoy's largest frame,
// which may contain a whole body, and keepalive, which ends the streams of a gateway that has vanished. security is nil for
// plaintext.
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
