package client

import (
	"net/http"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/tandem-serving/tandem/epp"
)

// Kind is what an answer answers.
type Kind uint8

// The kinds.
const (
	RequestHeaders Kind = iota
	RequestBody
	RequestTrailers
	ResponseHeaders
	ResponseBody
	ResponseTrailers
	Immediate // the server answers the client itself
)

// Answer is one frame of the server.
type Answer struct {
	Kind     Kind
	Mutation Mutation // of headers and trailers
	Body     []byte   // of bodies
	End      bool     // nothing follows this piece of a body
	// Endpoints is the pick as dynamic metadata says it, which Envoy looks at before the header; "" = none.
	Endpoints string
	Reply     *Reply // of an immediate answer
}

// Reply is an answer to the client that no upstream gave.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// take checks the place of a frame and reads it. skip: it says nothing that this client acts on.
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
			return a, false, spurious("a frame that answers nothing")
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

// parseReply reads an immediate answer. Envoy sends it as plain text unless a header says otherwise.
func parseReply(r *extproc.ImmediateResponse) *Reply {
	reply := &Reply{Status: int(r.GetStatus().GetCode()), Header: http.Header{}, Body: r.GetBody()}
	if len(reply.Body) > 0 {
		reply.Header.Set("Content-Type", "text/plain")
	}
	parseMutation(r.GetHeaders()).Apply(reply.Header, nil)
	if reply.Status < 200 || reply.Status > 599 {
		reply.Status = http.StatusOK // as Envoy takes a status that is unset
	}
	return reply
}

// wire is the reply as a server sends it.
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
