package extproc

import (
	"cmp"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
)

// valueOf gives a header's value, "" of nil. Envoy uses raw_value only, others may not.
func valueOf(h *corev3.HeaderValue) string {
	if raw := h.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return h.GetValue()
}

// head is what matters of a request's headers.
type head struct {
	read.Head
	api      pd.API
	length   int64    // as declared; 0 = not
	internal []string // headers that end here, as sent: only Tandem's parts may set them, or they are for the picker alone
	trailers bool     // the client takes trailers
	trace    traceHeaders
	// What the picker of a pair said to its accountant.
	plan, destination, prefill string
}

// readHead goes through the headers of a request once. Gateways send names in lower case.
func readHead(m *corev3.HeaderMap) (h head) {
	var olds older
	for _, v := range m.GetHeaders() {
		switch name := v.GetKey(); name {
		case ":method":
			h.Method = valueOf(v)
		case ":path":
			h.Path = valueOf(v)
		case "content-type":
			h.ContentType = valueOf(v)
		case "content-length":
			h.length, _ = strconv.ParseInt(valueOf(v), 10, 64) // what is no number is the gateway's to refuse
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
		case epp.HeaderObjective:
			h.Objective = valueOf(v)
		case epp.HeaderObjectiveOld:
			olds.objective = valueOf(v)
		case epp.HeaderTarget:
			h.Target, h.internal = valueOf(v), append(h.internal, name)
		case epp.HeaderTargetOld:
			olds.target, h.internal = valueOf(v), append(h.internal, name)
		default:
			if pd.Internal(name) {
				h.readInternal(name, v)
			}
		}
	}
	h.api = h.API()
	h.Objective, h.Target = cmp.Or(h.Objective, olds.objective), cmp.Or(h.Target, olds.target)
	return h
}

// older are the headers under their older names, which count if the newer ones are not there.
type older struct{ objective, target string }

func (h *head) readInternal(name string, v *corev3.HeaderValue) {
	h.internal = append(h.internal, name)
	switch name {
	case pd.HeaderPlan:
		h.plan = valueOf(v)
	case epp.HeaderDestination:
		h.destination = valueOf(v)
	case pd.HeaderPrefill:
		h.prefill = valueOf(v)
	}
}

// generates reports whether the request is a call that generates: only those are planned, and told what was decided.
func (h *head) generates() bool { return h.api != pd.APIOther }

func takesTrailers(te string) bool {
	for coding := range strings.SplitSeq(te, ",") {
		name, _, _ := strings.Cut(coding, ";")
		if strings.EqualFold(strings.TrimSpace(name), "trailers") {
			return true
		}
	}
	return false
}

// report is what the headers, and later the trailers, of an answer say of it.
type report struct {
	status  int
	decided bool // pd.HeaderDecision is there
	timed   bool // pd.HeaderTiming is there
	closed  bool // pd.HeaderOutcome is there
	// content-type and content-encoding, nil = none. Few answers are asked for them.
	media, coding *corev3.HeaderValue
}

// readReport adds what an answer's headers or trailers say to the outcome. A value that cannot be read says nothing.
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

// addPhases adds the phases of one Server-Timing line. Streams report the last one in a trailer.
func addPhases(o *epp.Outcome, timing string) {
	said, err := pd.ParseTiming(timing)
	if err != nil {
		return
	}
	for ph := range pd.PhaseEPP + 1 {
		if took, ok := said.Get(ph); ok {
			if o.Phases == nil {
				o.Phases = new(pd.Phases)
			}
			o.Phases.Set(ph, took)
		}
	}
}
