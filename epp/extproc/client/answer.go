package client

import (
	"net/http"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/tandem-serving/tandem/epp"
)

// Kind is the kind of frame that an answer belongs to.
type Kind uint8

// The kinds.
const (
	RequestHeaders Kind = iota
	RequestBody
	RequestTrailers
	ResponseHeaders
	ResponseBody
	ResponseTrailers
	Immediate // the server replies to the client itself
)

// Answer is one frame from the server.
type Answer struct {
	Kind     Kind
	Mutation Mutation // of headers and trailers
	Body     []byte   // of bodies
	End      bool     // this is the last chunk of a body
	// Endpoints is the pick in the dynamic metadata, which Envoy reads before the header; "" = none.
	Endpoints string
	Reply     *Reply // only of an immediate answer
}

// Reply is an answer that the server gives to the client in place of an upstream.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// take checks the position of a frame and reads it. skip reports that the frame has no effect on this client.
func (o *order) take(frame *extproc.ProcessingResponse) (a Answer, skip bool, err error) {
	switch r := frame.Response.(type) {
	case *extproc.ProcessingResponse_RequestHeaders:
		a, err = o.request.headersAnswer(RequestHeaders, r.RequestHeaders)
	case *extproc.ProcessingResponse_ResponseHeaders:
		a, err = o.response.headersAnswer(ResponseHeaders, r.ResponseHeaders)
	case *extproc.ProcessingResponse_RequestBody:
		a, err = o.request.bodyAnswer(RequestBody, r.RequestBody)
	case *extproc.ProcessingResponse_ResponseBody:
		a, err = o.response.bodyAnswer(ResponseBody, r.ResponseBody)
	case *extproc.ProcessingResponse_RequestTrailers:
		a, err = o.request.trailersAnswer(RequestTrailers, r.RequestTrailers)
	case *extproc.ProcessingResponse_ResponseTrailers:
		a, err = o.response.trailersAnswer(ResponseTrailers, r.ResponseTrailers)
	case *extproc.ProcessingResponse_ImmediateResponse:
		a = Answer{Kind: Immediate, Reply: parseReply(r.ImmediateResponse)}
	case nil:
		if frame.OverrideMessageTimeout == nil {
			return a, false, spurious("a frame without an answer")
		}
		return a, true, nil
	default:
		return a, false, spurious("an answer of type %T", r)
	}
	if fields := frame.GetDynamicMetadata().GetFields()[epp.NamespaceLB].GetStructValue().GetFields(); fields != nil {
		a.Endpoints = fields[epp.HeaderDestination].GetStringValue()
	}
	return a, false, err
}

func (s *side) headersAnswer(kind Kind, r *extproc.HeadersResponse) (Answer, error) {
	common := r.GetResponse()
	if common.GetStatus() == extproc.CommonResponse_CONTINUE_AND_REPLACE {
		return Answer{}, spurious("CONTINUE_AND_REPLACE with a streamed body")
	}
	return Answer{Kind: kind, Mutation: parseMutation(common.GetHeaderMutation())}, s.takeHeaders()
}

func (s *side) bodyAnswer(kind Kind, r *extproc.BodyResponse) (Answer, error) {
	streamed := r.GetResponse().GetBodyMutation().GetStreamedResponse()
	if streamed == nil {
		return Answer{}, spurious("a body answer without streamed_response")
	}
	end := streamed.GetEndOfStream()
	return Answer{Kind: kind, Body: streamed.GetBody(), End: end}, s.takeBody(end)
}

func (s *side) trailersAnswer(kind Kind, r *extproc.TrailersResponse) (Answer, error) {
	return Answer{Kind: kind, Mutation: parseMutation(r.GetHeaderMutation())}, s.takeTrailers()
}

// parseReply reads an immediate answer. Envoy sends it as plain text unless it sets a content type.
func parseReply(r *extproc.ImmediateResponse) *Reply {
	reply := &Reply{Status: int(r.GetStatus().GetCode()), Header: http.Header{}, Body: r.GetBody()}
	if len(reply.Body) > 0 {
		reply.Header.Set("Content-Type", "text/plain")
	}
	parseMutation(r.GetHeaders()).Apply(reply.Header, nil)
	if reply.Status < 200 || reply.Status > 599 {
		reply.Status = http.StatusOK // Envoy's default for an unset status
	}
	return reply
}

// wire returns the reply as an ext-proc message.
func (r *Reply) wire() *extproc.ProcessingResponse {
	m := &extproc.HeaderMutation{}
	for name, values := range r.Header {
		for _, v := range values {
			h := &core.HeaderValue{Key: name, RawValue: []byte(v)}
			m.SetHeaders = append(m.SetHeaders, &core.HeaderValueOption{Header: h})
		}
	}
	code := &envoytype.HttpStatus{Code: envoytype.StatusCode(r.Status)}
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extproc.ImmediateResponse{Status: code, Headers: m, Body: r.Body},
	}}
}
