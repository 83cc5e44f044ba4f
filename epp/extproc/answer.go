package extproc

import (
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// maxFrame bounds the body in one answer (bytes). The protocol advises 64 KiB for the whole message.
const maxFrame = 62_000

// The answers that change nothing. Streams share them, because sending does not change a message.
var (
	requestHeadersPass = &procv3.ProcessingResponse{Response: &procv3.ProcessingResponse_RequestHeaders{
		RequestHeaders: &procv3.HeadersResponse{}}}
	requestTrailersPass = &procv3.ProcessingResponse{Response: &procv3.ProcessingResponse_RequestTrailers{
		RequestTrailers: &procv3.TrailersResponse{}}}
	responseHeadersPass = &procv3.ProcessingResponse{Response: &procv3.ProcessingResponse_ResponseHeaders{
		ResponseHeaders: &procv3.HeadersResponse{}}}
	responseTrailersPass = &procv3.ProcessingResponse{Response: &procv3.ProcessingResponse_ResponseTrailers{
		ResponseTrailers: &procv3.TrailersResponse{}}}
)

// requestHeadersPassWithout is the answer that removes one header of the request.
func requestHeadersPassWithout(name string) *procv3.ProcessingResponse {
	return &procv3.ProcessingResponse{Response: &procv3.ProcessingResponse_RequestHeaders{RequestHeaders: &procv3.HeadersResponse{
		Response: &procv3.CommonResponse{HeaderMutation: &procv3.HeaderMutation{RemoveHeaders: []string{name}}}}}}
}

// set makes a mutation set a header, overwriting an existing one. Envoy reads raw_value only.
func set(m *procv3.HeaderMutation, name, value string) {
	h := &struct {
		option corev3.HeaderValueOption
		value  corev3.HeaderValue
	}{}
	h.value.Key, h.value.RawValue = name, []byte(value)
	h.option.Header, h.option.AppendAction = &h.value, corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD
	m.SetHeaders = append(m.SetHeaders, &h.option)
}

// requestHeadersAnswer changes headers of the request and tells the load balancer its destination.
func requestHeadersAnswer(m *procv3.HeaderMutation, destination string, clearRoute bool) *procv3.ProcessingResponse {
	return &procv3.ProcessingResponse{
		Response: &procv3.ProcessingResponse_RequestHeaders{RequestHeaders: &procv3.HeadersResponse{
			Response: &procv3.CommonResponse{HeaderMutation: m, ClearRouteCache: clearRoute},
		}},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			epp.NamespaceLB: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				epp.HeaderDestination: structpb.NewStringValue(destination),
			}}),
		}},
	}
}

// responseHeadersAnswer changes headers of the engine's answer.
func responseHeadersAnswer(m *procv3.HeaderMutation) *procv3.ProcessingResponse {
	return &procv3.ProcessingResponse{Response: &procv3.ProcessingResponse_ResponseHeaders{
		ResponseHeaders: &procv3.HeadersResponse{Response: &procv3.CommonResponse{HeaderMutation: m}},
	}}
}

// responseTrailersAnswer removes trailers of the engine's answer.
func responseTrailersAnswer(remove []string) *procv3.ProcessingResponse {
	return &procv3.ProcessingResponse{Response: &procv3.ProcessingResponse_ResponseTrailers{
		ResponseTrailers: &procv3.TrailersResponse{HeaderMutation: &procv3.HeaderMutation{RemoveHeaders: remove}},
	}}
}

// bodyAnswer is a message with a part of a body. All its nested messages are one allocation.
type bodyAnswer struct {
	message  procv3.ProcessingResponse
	request  procv3.ProcessingResponse_RequestBody
	response procv3.ProcessingResponse_ResponseBody
	body     procv3.BodyResponse
	common   procv3.CommonResponse
	mutation procv3.BodyMutation
	streamed procv3.BodyMutation_StreamedResponse
	part     procv3.StreamedBodyResponse
}

func newBodyAnswer(toRequest bool, part []byte, end bool) *procv3.ProcessingResponse {
	a := &bodyAnswer{}
	a.part.Body, a.part.EndOfStream = part, end
	a.streamed.StreamedResponse = &a.part
	a.mutation.Mutation = &a.streamed
	a.common.BodyMutation = &a.mutation
	a.body.Response = &a.common
	a.request.RequestBody, a.response.ResponseBody = &a.body, &a.body
	if toRequest {
		a.message.Response = &a.request
	} else {
		a.message.Response = &a.response
	}
	return &a.message
}

// readsTrailers reports whether this stream or the accountant's will see the answer's trailers. They always follow a duplex body.
func (st *stream) readsTrailers() bool {
	return st.filter == filterPicker || st.s.cfg.Trailers || st.modes.known && !st.modes.noResponseBody()
}

// headersAnswer returns the answer to the request's headers: it sets those of the decision and of the body, and removes those that
// a client may not send.
func (st *stream) headersAnswer(d *epp.Decision, span span) *procv3.ProcessingResponse {
	chosen, port := d.First(), d.Picks[0].Row.Port
	if st.s.cfg.SingleEndpoint || port != 0 { // the header names one rank, which only its own sidecar knows
		chosen = chosen[:1]
	}
	destination := destinations(chosen)
	m := &procv3.HeaderMutation{SetHeaders: make([]*corev3.HeaderValueOption, 0, 4)}
	if port != 0 {
		set(m, pd.HeaderRank, destination)
		destination = netip.AddrPortFrom(chosen[0].Addr.Addr(), port).String()
	}
	set(m, epp.HeaderDestination, destination)
	st.setPlan(m, d, st.s.peerOf(chosen))
	if r := &st.request; r.head.length > 0 && r.reader.Rewritten() {
		// Envoy drops the length where bodies come this way, unless it is told to keep it.
		set(m, "content-length", strconv.FormatInt(size(r.reader.Segments()), 10))
	}
	for name, value := range st.s.tracing.inject(span) {
		set(m, name, value)
	}
	for _, name := range st.request.head.internal {
		if !sets(m, name) {
			m.RemoveHeaders = append(m.RemoveHeaders, name)
		}
	}
	return requestHeadersAnswer(m, destination, st.s.cfg.ClearRouteCache)
}

// setPlan sets the headers about the plan. Only Tandem's sidecar gets its own: others would pass them on to engines, and the
// secret with them.
func (st *stream) setPlan(m *procv3.HeaderMutation, d *epp.Decision, peer epp.Peer) {
	planned, secret := st.outcome.Plan.ID != "", st.s.cfg.Auth != nil
	if planned && !(secret && peer == epp.PeerUnknown) { // without the secret Tandem's sidecar would refuse the request
		for i := range d.Picks[1:] {
			pick := &d.Picks[1+i]
			set(m, pick.Row.Header, destinations(pick.Endpoints))
		}
		if d.PullFrom != nil {
			set(m, pd.HeaderSource, d.PullFrom.Address)
		}
	}
	if planned && (peer == epp.PeerTandem || st.filter == filterPicker) { // the accountant needs it, and removes it
		plan := st.outcome.Plan
		if !all(d.First(), (*epp.Endpoint).TakesRanks) {
			plan.PrefillRanks, plan.DecodeRank = nil, 0
		}
		if !all(d.First(), (*epp.Endpoint).TakesSource) {
			plan.SourceTokens = 0
		}
		set(m, pd.HeaderPlan, plan.String())
	}
	if peer != epp.PeerTandem {
		m.RemoveHeaders = append(m.RemoveHeaders, pd.HeaderMode)
		return
	}
	if planned && secret {
		set(m, pd.HeaderAuth, st.s.cfg.Auth())
	}
	if st.request.rename != nil {
		set(m, pd.HeaderModel, st.request.rename.String())
	}
}

// all reports whether the sidecars of all these endpoints take something. Only their metrics pages tell which optional members of plans
// they read: others refuse such a plan.
func all(endpoints []*epp.Endpoint, takes func(*epp.Endpoint) bool) bool {
	return !slices.ContainsFunc(endpoints, func(e *epp.Endpoint) bool { return !takes(e) })
}

// peerOf returns what takes a request at all of these endpoints: PeerTandem only if all are known to have Tandem's sidecar.
func (s *Server) peerOf(endpoints []*epp.Endpoint) epp.Peer {
	if s.cfg.AllTakePlans {
		return epp.PeerTandem
	}
	peer := epp.PeerTandem
	for _, e := range endpoints {
		switch e.Peer() {
		case epp.PeerUnknown:
			return epp.PeerUnknown
		case epp.PeerOther:
			peer = epp.PeerOther
		}
	}
	return peer
}

// size returns the length of a body.
func size(segments [][]byte) (n int64) {
	for _, s := range segments {
		n += int64(len(s))
	}
	return n
}

// immediateAnswer returns the answer to a refused request. took is the picker's own time. Clients of gRPC get a status in the headers
// of an answer without a body. The gateway is told the code too: without it, it would make one from the status of HTTP.
func immediateAnswer(r *pd.Refusal, request *head, took time.Duration) *procv3.ProcessingResponse {
	var phases pd.Phases
	phases.Set(pd.PhaseEPP, took)
	m := &procv3.HeaderMutation{}
	set(m, pd.HeaderDecision, r.Result().String())
	set(m, pd.HeaderTiming, string(phases.AppendTiming(nil, pd.PhaseEPP)))
	if pd.WellFormedRequestID(request.RequestID) {
		set(m, pd.HeaderRequestID, request.RequestID)
	}
	if after := r.RetryAfter(); after != "" {
		set(m, "retry-after", after)
	}
	if r.Queue != nil {
		set(m, pd.HeaderQueue, r.Queue.String())
	}
	if dropped := r.Dropped(); dropped != "" {
		set(m, pd.HeaderDropped, dropped)
	}
	answer := &procv3.ImmediateResponse{Headers: m, Details: "tandem_" + string(r.Result().Reason)}
	if request.GRPC() {
		set(m, "content-type", "application/grpc")
		set(m, "grpc-status", strconv.Itoa(r.GRPCCode()))
		set(m, "grpc-message", r.GRPCMessage())
		answer.Status, answer.GrpcStatus = &typev3.HttpStatus{Code: typev3.StatusCode_OK}, &procv3.GrpcStatus{Status: uint32(r.GRPCCode())}
	} else {
		set(m, "content-type", "application/json")
		answer.Status, answer.Body = &typev3.HttpStatus{Code: typev3.StatusCode(r.Status())}, r.JSON(request.api)
	}
	return &procv3.ProcessingResponse{Response: &procv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: answer}}
}

// destinations returns the addresses of endpoints as a header's value.
func destinations(endpoints []*epp.Endpoint) string {
	if len(endpoints) == 1 {
		return endpoints[0].Address
	}
	var list []byte
	for i, e := range endpoints {
		if i > 0 {
			list = append(list, ',')
		}
		list = append(list, e.Address...)
	}
	return string(list)
}

// planID prints 64 random bits: no client can guess the id, and two pickers do not make the same one.
func planID(bits uint64) string {
	const digits = 16
	id := strconv.AppendUint(make([]byte, 0, digits), bits, 16)
	var padded [digits]byte
	for i := range padded {
		padded[i] = '0'
	}
	copy(padded[digits-len(id):], id)
	return string(padded[:])
}

// sets reports whether a mutation sets a header.
func sets(m *procv3.HeaderMutation, name string) bool {
	for _, o := range m.GetSetHeaders() {
		if o.GetHeader().GetKey() == name {
			return true
		}
	}
	return false
}
