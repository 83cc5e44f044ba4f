package extproc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
)

// This file reads what the gateway sends: the mark of its filter, how the filter is configured, headers, and metadata.

// filter is the place of a stream in the gateway's filter chain.
type filter uint8

const (
	filterOne filter = iota
	filterPicker
	filterAcct
	filters
)

// String returns the filter's name in metrics.
func (f filter) String() string {
	return [...]string{"one", string(client.MarkPicker), string(client.MarkAcct)}[f]
}

// filterOf reads the mark in a stream's metadata.
func filterOf(ctx context.Context) (filter, error) {
	marks := metadata.ValueFromIncomingContext(ctx, client.MetadataFilter)
	if len(marks) == 0 {
		return filterOne, nil
	}
	if len(marks) == 1 {
		switch client.Mark(marks[0]) {
		case client.MarkPicker:
			return filterPicker, nil
		case client.MarkAcct:
			return filterAcct, nil
		}
	}
	return 0, fmt.Errorf("grpc_service.initial_metadata %s must be %s or %s, or be left out for a single filter",
		client.MetadataFilter, client.MarkPicker, client.MarkAcct)
}

const (
	bodyNone   = modev3.ProcessingMode_NONE
	bodyDuplex = modev3.ProcessingMode_FULL_DUPLEX_STREAMED
)

// modes are how a gateway sends bodies on one stream.
type modes struct {
	known    bool // the gateway told its modes; one that does not is assumed to follow the picker protocol
	response modev3.ProcessingMode_BodySendMode
}

// noResponseBody reports that the gateway sends no part of an answer's body. Then a stream may end while the answer runs.
func (m modes) noResponseBody() bool { return m.known && m.response == bodyNone }

// modesOf reads the first frame. The error names the setting of the filter that must change.
func modesOf(f filter, first *procv3.ProcessingRequest) (modes, error) {
	if first.GetObservabilityMode() && f != filterAcct {
		return modes{}, errors.New("observability_mode is on, but a filter that only watches cannot pick: set it to false")
	}
	c := first.GetProtocolConfig()
	if c == nil {
		return modes{response: bodyDuplex}, nil
	}
	need := bodyDuplex
	if f == filterAcct {
		need = bodyNone
	}
	if got := c.GetRequestBodyMode(); got != need {
		return modes{}, fmt.Errorf("processing_mode.request_body_mode of filter %q is %s: set it to %s", f, got, need)
	}
	got := c.GetResponseBodyMode()
	if got != bodyNone && got != bodyDuplex {
		return modes{}, fmt.Errorf("processing_mode.response_body_mode of filter %q is %s: set it to %s, or to %s",
			f, got, bodyNone, bodyDuplex)
	}
	return modes{known: true, response: got}, nil
}

// valueOf returns a header's value, "" of nil. Envoy uses raw_value only; other gateways may use value.
func valueOf(h *corev3.HeaderValue) string {
	if raw := h.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return h.GetValue()
}

// head is the part of a request's headers that this package uses.
type head struct {
	read.Head
	api      pd.API
	length   int64    // as declared; 0 = not declared
	internal []string // headers that are removed here, as sent: pd.Internal, and those for the picker alone
	trailers bool     // the client accepts trailers
	trace    traceHeaders
	plan     string // that the picker of a pair sets for its accountant
}

// readHead reads the headers of a request in one pass. Gateways send names in lower case.
func readHead(m *corev3.HeaderMap, reads epp.APISet) (h head) {
	var olds older
	h.Headers = clientHeaders{m}
	for _, v := range m.GetHeaders() {
		switch name := v.GetKey(); name {
		case ":method":
			h.Method = valueOf(v)
		case ":path":
			h.Path = valueOf(v)
		case "content-type":
			h.ContentType = valueOf(v)
		case "content-length":
			h.length, _ = strconv.ParseInt(valueOf(v), 10, 64) // the gateway refuses a length that is not a number
		case "te":
			h.trailers = h.trailers || takesTrailers(valueOf(v))
		case "traceparent":
			h.trace.parent = valueOf(v)
		case "tracestate":
			h.trace.state = valueOf(v)
		case pd.HeaderRequestID:
			h.RequestID = valueOf(v)
		case pd.HeaderMode:
			h.Mode = append(h.Mode, valueOf(v))
		case epp.HeaderPrefer:
			h.IfAvailable = h.IfAvailable || epp.IfAvailable(valueOf(v))
		case epp.HeaderObjective:
			h.Objective = valueOf(v)
		case epp.HeaderObjectiveOld:
			olds.objective = valueOf(v)
		case pd.HeaderPlan:
			h.plan, h.internal = valueOf(v), append(h.internal, name)
		case epp.HeaderTarget:
			h.Target, h.internal = valueOf(v), append(h.internal, name)
		case epp.HeaderTargetOld:
			olds.target, h.internal = valueOf(v), append(h.internal, name)
		default:
			if pd.Internal(name) {
				h.internal = append(h.internal, name)
			}
		}
	}
	h.Reads = reads
	h.api = h.API()
	h.Objective, h.Target = cmp.Or(h.Objective, olds.objective), cmp.Or(h.Target, olds.target)
	return h
}

// clientHeaders are the headers of a request as epp.Headers.
type clientHeaders struct{ *corev3.HeaderMap }

// Get implements epp.Headers.
func (h clientHeaders) Get(name string) string { return headerOf(h.HeaderMap, name) }

// older are the values of headers under their older names. They count if the newer header is missing.
type older struct{ objective, target string }

// headerOf returns the value of a header, "" if it is missing.
func headerOf(m *corev3.HeaderMap, name string) string {
	for _, v := range m.GetHeaders() {
		if v.GetKey() == name {
			return valueOf(v)
		}
	}
	return ""
}

// generates reports whether the request is a call that generates. Only such calls get a plan, and a decision in their answer.
func (h *head) generates() bool { return h.api.Generates() }

func takesTrailers(te string) bool {
	for coding := range strings.SplitSeq(te, ",") {
		name, _, _ := strings.Cut(coding, ";")
		if strings.EqualFold(strings.TrimSpace(name), "trailers") {
			return true
		}
	}
	return false
}

// report is what the headers, and later the trailers, of an answer say.
type report struct {
	status  int
	decided bool // pd.HeaderDecision is there
	timed   bool // pd.HeaderTiming is there
	closed  bool // pd.HeaderOutcome is there
	// content-type and content-encoding, nil = none. They are kept unread: few answers need them.
	media, coding *corev3.HeaderValue
}

// readReport adds what an answer's headers or trailers say to the outcome. It ignores values that cannot be parsed.
func readReport(m *corev3.HeaderMap, o *epp.Outcome) (r report) {
	for _, v := range m.GetHeaders() {
		switch v.GetKey() {
		case ":status":
			if code, err := strconv.Atoi(valueOf(v)); err == nil && code >= 100 && code <= 999 {
				r.status = code
			}
		case "content-type":
			r.media = v
		case "content-encoding":
			r.coding = v
		case pd.HeaderDecision:
			r.decided = true
			if d, err := pd.ParseResult(valueOf(v)); err == nil {
				o.Happened = &d
			}
		case pd.HeaderTiming:
			r.timed = true
			addPhases(o, valueOf(v))
		case pd.HeaderOutcome:
			r.closed = true
			if result, err := pd.ParseAnswerSummary(valueOf(v)); err == nil {
				o.Result = &result
			}
		}
	}
	return r
}

// addPhases adds the phases of one Server-Timing line. Streams report the last phase in a trailer.
func addPhases(o *epp.Outcome, timing string) {
	reported, err := pd.ParseTiming(timing)
	if err != nil {
		return
	}
	for ph := range pd.PhaseEPP + 1 {
		if took, ok := reported.Get(ph); ok {
			if o.Phases == nil {
				o.Phases = new(pd.Phases)
			}
			o.Phases.Set(ph, took)
		}
	}
}

// The key of Envoy's attributes, and the attribute with the address that served, for load balancers that do not tell it.
const (
	attributesKey   = "envoy.filters.http.ext_proc"
	upstreamAddress = "upstream.address"
)

// subsetOf reads the subset hint of a frame, nil if it has none. An empty hint allows no endpoint.
func subsetOf(f *procv3.ProcessingRequest) *epp.Subset {
	hint, ok := f.GetMetadataContext().GetFilterMetadata()[epp.NamespaceSubset].GetFields()[epp.HeaderSubset]
	if !ok {
		return nil
	}
	var texts []string
	if list := hint.GetListValue(); list != nil {
		for _, v := range list.GetValues() {
			texts = append(texts, v.GetStringValue())
		}
	} else {
		texts = append(texts, hint.GetStringValue())
	}
	return epp.NewSubset(epp.SplitList(texts...)...)
}

// servedBy reads, from the frame of the answer's headers, the ip:port that served the request; "" if the frame has none.
func servedBy(f *procv3.ProcessingRequest) string {
	if by := reportedBy(f); by != "" {
		return by
	}
	return text(f.GetAttributes()[attributesKey], upstreamAddress)
}

// reportedBy reads what the frame says in the protocol's own metadata.
func reportedBy(f *procv3.ProcessingRequest) string {
	return text(f.GetMetadataContext().GetFilterMetadata()[epp.NamespaceLB], epp.HeaderServed)
}

func text(s *structpb.Struct, key string) string { return s.GetFields()[key].GetStringValue() }

// find returns the endpoint at an ip:port, nil if there is none, and the ip:port in the form that endpoints have, "" if address
// is not an ip:port.
func (s *Server) find(address string) (e *epp.Endpoint, canonical string) {
	addr, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, ""
	}
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	e, _ = s.deps.Endpoints.Find(addr)
	return e, addr.String()
}
