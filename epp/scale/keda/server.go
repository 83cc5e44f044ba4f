package keda

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/epp/scale"
)

// Service is the name of KEDA's service.
const Service = "externalscaler.ExternalScaler"

// Keys of a trigger's metadata that say which size is meant. One suffices.
const (
	KeyRole    = "role"
	KeyVariant = "variant"
)

const (
	maxMessage = 256 << 10 // bytes of a request: a trigger's metadata
	// maxStreams is how many calls of one KEDA operator run at once: a stream for each push trigger, and some questions.
	maxStreams = 1000
	// handshake bounds the time until a connection is set up.
	handshake = 5 * time.Second
)

// NewServer returns a gRPC server of KEDA's service. security nil: plaintext. The caller serves and stops it; Stop ends all streams.
func NewServer(source scale.Source, security credentials.TransportCredentials) *grpc.Server {
	if security == nil {
		security = insecure.NewCredentials()
	}
	server := grpc.NewServer(grpc.Creds(security), grpc.ForceServerCodecV2(codec{}), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshake), grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
	server.RegisterService(&service, &scaler{source})
	return server
}

// service describes KEDA's service. StreamMetricSpec is left out.
var service = grpc.ServiceDesc{
	ServiceName: Service,
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		unary("IsActive", (*scaler).isActive),
		unary("GetMetricSpec", (*scaler).metricSpec),
		unary("GetMetrics", (*scaler).metrics),
	},
	Streams:  []grpc.StreamDesc{{StreamName: "StreamIsActive", Handler: streamIsActive, ServerStreams: true}},
	Metadata: "externalscaler.proto",
}

// unary returns the description of a method with one request and one answer.
func unary[Q, A any](name string, answer func(*scaler, *Q) (*A, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(s any, ctx context.Context, read func(any) error, around grpc.UnaryServerInterceptor) (any, error) {
		asked := new(Q)
		if err := read(asked); err != nil {
			return nil, err
		}
		if around == nil {
			return answer(s.(*scaler), asked)
		}
		info := &grpc.UnaryServerInfo{Server: s, FullMethod: "/" + Service + "/" + name}
		return around(ctx, asked, info, func(_ context.Context, asked any) (any, error) { return answer(s.(*scaler), asked.(*Q)) })
	}}
}

// scaler answers KEDA.
type scaler struct{ source scale.Source }

// size returns the size that a trigger means.
func (s *scaler) size(of *ref) (scale.Size, error) {
	role, variant := of.metadata[KeyRole], of.metadata[KeyVariant]
	if role == "" && variant == "" {
		return scale.Size{}, status.Errorf(codes.InvalidArgument, "the trigger of %s/%s has neither %s nor %s in its metadata: %s is prefill or decode",
			of.namespace, of.name, KeyRole, KeyVariant, KeyRole)
	}
	sizes, err := s.source.Sizes()
	if err != nil {
		return scale.Size{}, status.Error(codes.Unavailable, err.Error())
	}
	one, err := scale.Of(sizes, role, variant)
	if err != nil {
		return scale.Size{}, status.Errorf(codes.NotFound, "the trigger of %s/%s: %v", of.namespace, of.name, err)
	}
	return one, nil
}

func (s *scaler) isActive(of *ref) (*active, error) {
	one, err := s.size(of)
	if err != nil {
		return nil, err
	}
	return &active{one.Desired > 0}, nil
}

// metricSpec answers also while sizes are not known: KEDA makes no autoscaler without.
func (s *scaler) metricSpec(of *ref) (*spec, error) {
	if _, err := s.size(of); err != nil && status.Code(err) != codes.Unavailable {
		return nil, err
	}
	return &spec{"desired-replicas-" + cmp.Or(of.metadata[KeyRole], of.metadata[KeyVariant]), 1}, nil
}

// metrics answers with the size, under the name that KEDA asks for.
func (s *scaler) metrics(q *question) (*value, error) {
	one, err := s.size(&q.of)
	if err != nil {
		return nil, err
	}
	return &value{q.metric, float64(one.Desired)}, nil
}

// streamIsActive tells whether any replica is wanted: first, and whenever that changes. While sizes are not known it tells nothing, but a
// trigger that means no size ends with an error.
func streamIsActive(server any, stream grpc.ServerStream) error {
	s, of := server.(*scaler), new(ref)
	if err := stream.RecvMsg(of); err != nil {
		return err
	}
	var told *active
	for {
		changed := s.source.Changed() // before the sizes, so that no change is missed
		now, err := s.isActive(of)
		switch {
		case status.Code(err) == codes.Unavailable:
		case err != nil:
			return err
		case told == nil || *told != *now:
			if err := stream.SendMsg(now); err != nil {
				return err
			}
			told = now
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}
