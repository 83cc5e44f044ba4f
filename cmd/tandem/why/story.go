package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/recent"
)

// text tells all stories.
func (t *told) text() string {
	var b strings.Builder
	if len(t.Stories) > 1 {
		fmt.Fprintf(&b, "%d requests have had this id, the latest first\n\n", len(t.Stories))
	}
	for i := range t.Stories {
		if i > 0 {
			b.WriteByte('\n')
		}
		t.Stories[i].write(&b)
	}
	return b.String()
}

// write tells one story: first in short, then what the client got, then what each program did.
func (s *story) write(b *strings.Builder) {
	line := func(label, format string, args ...any) {
		fmt.Fprintf(b, "%-9s %s\n", label, fmt.Sprintf(format, args...))
	}
	line("request", "%s", s.head())
	line("in short", "%s", s.short())
	if s.Served != nil {
		line("client", "%s", client(s.Served))
	}
	switch {
	case s.Picked != nil:
		s.picker(line)
	default:
		line("picker", "not known: no picker that answered remembers the request, or none was asked")
	}
	switch {
	case s.Served != nil:
		s.sidecar(line)
	case !s.Picked.Own:
		line("sidecar", "not known: no sidecar that answered remembers the request%s", s.askThere())
	}
}

// head identifies the request.
func (s *story) head() string {
	if v := s.Served; v != nil {
		return fmt.Sprintf("%s, %s, x-tandem-pd: %s, began %s", v.ID, v.API, v.Mode, clock(v.Began))
	}
	return fmt.Sprintf("%s, %s, ended %s", cmp.Or(s.Picked.ID, "without an id"), s.Picked.API, clock(s.Picked.Ended))
}

func clock(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05.000") + " UTC" }

// short is the whole story in a sentence or two.
func (s *story) short() string {
	if s.Served == nil {
		return s.shortOfPicker()
	}
	v := s.Served
	result, err := pd.ParseResult(v.Decision)
	if err != nil {
		return "it was not routed: " + cmp.Or(v.Error, v.Decision)
	}
	var b strings.Builder
	switch {
	case v.Status == 0 || v.Status == statusClientLeft:
		b.WriteString("the client left before it had an answer")
	case result.Verdict == pd.Refused && refusedByEngine(v):
		fmt.Fprintf(&b, "the engine %s refused it with status %d", s.pod(v.Prefill), v.Status)
	case result.Verdict == pd.Refused:
		fmt.Fprintf(&b, "the sidecar refused it with status %d, because %s", v.Status, because[result.Reason])
	case result.Verdict == pd.Remote:
		fmt.Fprintf(&b, "%s computed the prompt, and %s generated the answer, because %s", s.pod(v.Prefill), s.pod(v.Decode), because[result.Reason])
	case result.Reason.FallsBack():
		fmt.Fprintf(&b, "prefill on another pod was planned, but %s, so %s did all of it", because[result.Reason], s.pod(v.Decode))
	default:
		fmt.Fprintf(&b, "%s did all of it, because %s", s.pod(v.Decode), because[result.Reason])
	}
	if result.Verdict != pd.Refused && v.Status >= 500 {
		fmt.Fprintf(&b, "; the answer is an error, status %d", v.Status)
	}
	if phase, share, ok := longest(v.Timing); ok {
		fmt.Fprintf(&b, ". %.0f %% of the time passed in %s", 100*share, phase)
	}
	return b.String()
}

// refusedByEngine reports whether the answer is the error of a prefill engine that blames the client.
func refusedByEngine(v *recent.Served) bool {
	if len(v.Legs) == 0 {
		return false
	}
	last := v.Legs[len(v.Legs)-1]
	return last.Leg == "prefill" && last.Status == v.Status && v.Status >= 400 && v.Status < 500
}

// pod returns the name of a pod that the picker knows, or else its address.
func (s *story) pod(address string) string {
	if s.Picked != nil {
		for _, pick := range s.Picked.Picks {
			if i := slices.Index(pick.Endpoints, address); i >= 0 {
				return pick.Names[i]
			}
		}
	}
	return address
}

// statusClientLeft is the sidecar's status for a client that left before an answer.
const statusClientLeft = 499

// shortOfPicker is the story of a request that no sidecar remembers.
func (s *story) shortOfPicker() string {
	p := s.Picked
	result, err := pd.ParseResult(cmp.Or(p.Happened, p.Decision+";reason="+p.Reason))
	switch {
	case p.Own && err == nil:
		return fmt.Sprintf("the picker refused it with status %d, because %s", p.Status, because[result.Reason])
	case p.Status == 0:
		return "its answer never came: the client or the gateway ended it"
	case p.Happened == "":
		return fmt.Sprintf("it was answered with status %d, and the sidecar did not report what happened", p.Status)
	}
	return fmt.Sprintf("it was answered with status %d: %s", p.Status, p.Happened)
}

// longest returns the longest phase of a Server-Timing, and its share of all.
func longest(timing string) (name string, share float64, ok bool) {
	phases, err := pd.ParseTiming(timing)
	if err != nil {
		return "", 0, false
	}
	var most, sum time.Duration
	for _, phase := range []pd.Phase{pd.PhaseRecv, pd.PhaseEncode, pd.PhasePrefill, pd.PhaseHandoff, pd.PhaseFirst, pd.PhaseDecode} {
		took, _ := phases.Get(phase)
		if sum += took; took > most {
			most, name = took, during[phase]
		}
	}
	return name, float64(most) / float64(sum), sum > 0
}

// client says what the client got.
func client(v *recent.Served) string {
	var b strings.Builder
	switch {
	case v.Status == 0 || v.Status == statusClientLeft:
		fmt.Fprintf(&b, "left after %s", ms(v.Millis))
	default:
		fmt.Fprintf(&b, "got status %d after %s: %s", v.Status, ms(v.Millis), v.End)
	}
	var tokens []string
	for _, c := range []struct {
		n    int64
		what string
	}{{v.Tokens.Prompt, "in the prompt"}, {v.Tokens.Cached, "of these cached"}, {v.Tokens.Completion, "generated"}} {
		if c.n >= 0 {
			tokens = append(tokens, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	if len(tokens) > 0 {
		b.WriteString("; tokens: " + strings.Join(tokens, ", "))
	}
	if v.Error != "" {
		b.WriteString("; last failure: " + v.Error)
	}
	return b.String()
}

// picker tells what the picker decided.
func (s *story) picker(line func(label, format string, args ...any)) {
	p := s.Picked
	if p.Decision == "" {
		line("picker", "%s: another picker decided", s.Picker)
		return
	}
	line("picker", "%s: %s, because %s", s.Picker, p.Decision, because[pd.Reason(p.Reason)])
	if p.Picks == nil {
		if !p.Own {
			line("", "another picker decided, so what it saw is not known here")
		}
		return
	}
	line("", "about %d tokens in the prompt, %d of them cached on the decode pod; decided in %s", p.Tokens, p.Cached, ms(p.PickMs))
	for _, pick := range p.Picks {
		names := make([]string, len(pick.Endpoints))
		for i := range names {
			names[i] = pick.Names[i] + " " + pick.Endpoints[i]
		}
		line("", "%-8s %s", pick.Stage, strings.Join(names, ", then "))
	}
	for _, c := range p.Costs {
		line("", "cost     %s on %s: first token expected after %s", c.Verdict, c.Endpoint, ms(1000*c.Seconds))
	}
}

// event is a moment in the sidecar.
type event struct {
	at   float64 // milliseconds since the request began
	text string
}

// sidecar tells what the sidecar did, in the order of time, and how long each phase took.
func (s *story) sidecar(line func(label, format string, args ...any)) {
	v := s.Served
	line("sidecar", "%s: %s", s.Sidecar, v.Decision)
	events := []event{{v.Millis, ending(v)}}
	for _, leg := range v.Legs {
		events = append(events, event{leg.At, legText(leg)})
	}
	if v.LegsLeft > 0 {
		events = append(events, event{v.Legs[len(v.Legs)-1].At, fmt.Sprintf("and %d more legs", v.LegsLeft)})
	}
	for _, r := range v.Releases {
		events = append(events, event{r.At, strings.TrimSuffix(fmt.Sprintf("release of the KV cache on the prefill pod (%s): %s: %s", r.Way, r.Result, r.Error), ": ")})
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	for _, e := range events {
		line("", "%10s  %s", ms(e.at), e.text)
	}
	line("phases", "%s", v.Timing)
}

// stateStreaming is the sidecar's state of a request whose answer has begun.
const stateStreaming = "streaming"

// ending says how the request ended.
func ending(v *recent.Served) string {
	if v.State == stateStreaming {
		return "the answer ended: " + v.End
	}
	return "the request ended without an engine's answer; its state was " + v.State
}

// legText says what was sent where, and what came back.
func legText(leg recent.Leg) string {
	text := fmt.Sprintf("%s leg to %s: ", leg.Leg, leg.Engine)
	switch {
	case leg.Status == 0:
		text += fmt.Sprintf("no answer, given up after %s", ms(leg.Millis))
	case leg.Leg == "prefill":
		text += fmt.Sprintf("status %d after %s", leg.Status, ms(leg.Millis))
	default:
		text += fmt.Sprintf("status %d, headers after %s", leg.Status, ms(leg.Millis))
	}
	if leg.Error != "" {
		text += ": " + leg.Error
	}
	return text
}

// askThere says which sidecar would know more.
func (s *story) askThere() string {
	if at := s.Picked.Served; at != "" {
		return "; the request was served by " + at
	}
	if len(s.Picked.Picks) > 0 {
		return "; the request was sent to " + s.Picked.Picks[0].Endpoints[0]
	}
	return ""
}

func ms(millis float64) string {
	return (time.Duration(millis * float64(time.Millisecond))).Round(10 * time.Microsecond).String()
}
