package client

import (
	"io"
	"net/http"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tandem-serving/tandem/epp"
)

// Baseline is a minimal endpoint picker: it sends every request to the same endpoints without reading it, and returns every body
// unchanged. Benchmarks use it as the lower bound: a picker cannot cost less.
//
// Like a real picker, it answers the headers only when it has the complete request. If Envoy has sent the headers upstream and
// retries on another endpoint while the body is still on its way to the picker, and a second ext-proc filter follows, Envoy loses
// parts of the body silently.
type Baseline struct {
	// Endpoints are the pick for every request, ip:port[,ip:port…], best first.
	Endpoints string
	// Watch, if not nil, is called for every frame and for the end of every stream, on the stream's goroutine. An error ends the
	// stream; a reply goes to the client.
	Watch func(Event) (*Reply, error)

	extproc.UnimplementedExternalProcessorServer
	headers *extproc.ProcessingResponse
}

// Event is a frame that a Baseline received, or the end of a stream.
type Event struct {
	Mark   Mark
	End    bool // the stream has ended; the other fields are empty
	Kind   Kind
	Header http.Header // of headers and trailers, with pseudo-headers
	Body   []byte
	Served string // of response headers
}

// Register makes the baseline serve on g and report that it is healthy. Its fields must not change afterwards.
func (f *Baseline) Register(g grpc.ServiceRegistrar) {
	f.headers = &extproc.ProcessingResponse{
		Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{
			Response: &extproc.CommonResponse{HeaderMutation: &extproc.HeaderMutation{SetHeaders: []*core.HeaderValueOption{{
				Header:       &core.HeaderValue{Key: epp.HeaderDestination, RawValue: []byte(f.Endpoints)},
				AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
			}}}},
		}},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			epp.NamespaceLB: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				epp.HeaderDestination: structpb.NewStringValue(f.Endpoints),
			}}),
		}},
	}
	extproc.RegisterExternalProcessorServer(g, f)
	healthy := health.NewServer()
	healthy.SetServingStatus(extproc.ExternalProcessor_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(g, healthy)
}

// Process serves one stream. EOF and cancellation both end it.
func (f *Baseline) Process(stream grpc.BidiStreamingServer[extproc.ProcessingRequest, extproc.ProcessingResponse]) error {
	var mark Mark
	if values := metadata.ValueFromIncomingContext(stream.Context(), MetadataFilter); len(values) > 0 {
		mark = Mark(values[0])
	}
	if f.Watch != nil {
		defer f.Watch(Event{Mark: mark, End: true})
	}
	var pending []*extproc.ProcessingResponse // until the request is complete
	for {
		frame, err := stream.Recv()
		if err == io.EOF || status.Code(err) == codes.Canceled {
			return nil
		} else if err != nil {
			return err
		}
		var reply *Reply
		if f.Watch != nil {
			if reply, err = f.Watch(event(mark, frame)); err != nil {
				return err
			}
		}
		answer, last := f.answer(mark, frame)
		if reply != nil {
			pending, answer, last = nil, reply.wire(), true
		}
		pending = append(pending, answer)
		if !last {
			continue
		}
		for _, answer := range pending {
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
		pending = pending[:0]
	}
}

// answer returns the answer to a frame. last reports that it can be sent now, with those before it.
func (f *Baseline) answer(mark Mark, frame *extproc.ProcessingRequest) (answer *extproc.ProcessingResponse, last bool) {
	switch r := frame.Request.(type) {
	case *extproc.ProcessingRequest_RequestHeaders:
		if mark == MarkAcct {
			return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{}}, true
		}
		return f.headers, r.RequestHeaders.GetEndOfStream()
	case *extproc.ProcessingRequest_RequestBody:
		answer = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestBody{RequestBody: echo(r.RequestBody)}}
		return answer, r.RequestBody.GetEndOfStream()
	case *extproc.ProcessingRequest_RequestTrailers:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestTrailers{}}, true
	case *extproc.ProcessingRequest_ResponseHeaders:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseHeaders{}}, true
	case *extproc.ProcessingRequest_ResponseBody:
		answer = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseBody{ResponseBody: echo(r.ResponseBody)}}
		return answer, true
	default:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseTrailers{}}, true
	}
}

func echo(b *extproc.HttpBody) *extproc.BodyResponse {
	return &extproc.BodyResponse{Response: &extproc.CommonResponse{BodyMutation: &extproc.BodyMutation{
		Mutation: &extproc.BodyMutation_StreamedResponse{StreamedResponse: &extproc.StreamedBodyResponse{
			Body: b.GetBody(), EndOfStream: b.GetEndOfStream(),
		}},
	}}}
}

func event(mark Mark, frame *extproc.ProcessingRequest) Event {
	e := Event{Mark: mark}
	switch r := frame.Request.(type) {
	case *extproc.ProcessingRequest_RequestHeaders:
		e.Kind, e.Header = RequestHeaders, header(r.RequestHeaders.GetHeaders())
	case *extproc.ProcessingRequest_RequestBody:
		e.Kind, e.Body = RequestBody, r.RequestBody.GetBody()
	case *extproc.ProcessingRequest_RequestTrailers:
		e.Kind, e.Header = RequestTrailers, header(r.RequestTrailers.GetTrailers())
	case *extproc.ProcessingRequest_ResponseHeaders:
		e.Kind, e.Header = ResponseHeaders, header(r.ResponseHeaders.GetHeaders())
		lb := frame.GetMetadataContext().GetFilterMetadata()[epp.NamespaceLB]
		e.Served = lb.GetFields()[epp.HeaderServed].GetStringValue()
	case *extproc.ProcessingRequest_ResponseBody:
		e.Kind, e.Body = ResponseBody, r.ResponseBody.GetBody()
	case *extproc.ProcessingRequest_ResponseTrailers:
		e.Kind, e.Header = ResponseTrailers, header(r.ResponseTrailers.GetTrailers())
	}
	return e
}

func header(m *core.HeaderMap) http.Header {
	h := make(http.Header, len(m.GetHeaders()))
	for _, v := range m.GetHeaders() {
		h.Add(v.GetKey(), string(v.GetRawValue()))
	}
	return h
}
