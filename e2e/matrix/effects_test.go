package matrix

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim/fault"
)

// situation is the choice that the sidecar has left when something fails.
type situation int

const (
	another     situation = iota // a second prefill candidate works
	last                         // there is no other candidate
	forced                       // no other candidate, and decode must not prefill: x-tandem-pd: force
	budgetEmpty                  // no other candidate, and the fallback budget is empty
	situations
)

func (s situation) String() string {
	return [...]string{"another candidate", "last candidate", "forced", "budget empty"}[s]
}

// effect is a kind of failure by what it leads to. effects has the outcome of each in every situation.
type effect string

const (
	served            effect = "served"
	deceived          effect = "deceived"
	candidateFails    effect = "candidate fails"
	clientsFault      effect = "client's fault"
	comesLate         effect = "comes late"
	transferFails     effect = "transfer fails"
	decodeGone        effect = "decode is gone"
	decodeUnreachable effect = "decode unreachable"
	redoLost          effect = "redo lost"
	redoFails         effect = "redo fails"
	passedOn          effect = "passed on"
	drained           effect = "drained"
	breaksOff         effect = "breaks off"
	clientLeft        effect = "client left"
	leftWithin        effect = "left within"
)

// content is what the client reads.
type content string

const (
	rightTokens content = ""                    // those of an engine that does not fail
	wrongTokens content = "WRONG TOKENS"        // a prefill engine offered blocks of another prompt
	refusal     content = "refusal"             // Tandem's error object; its code is the reason
	engineError content = "the engine's error"  // unchanged
	errorEvent  content = "then an error"       // a stream gets an error event and [DONE]; the connection of a whole answer ends
	noClient    content = "no client to answer" // the client has left
)

// outcome is what must happen.
type outcome struct {
	status   int    // that the client gets, or that is counted if the client left. 0: the failure's
	decision string // as in x-tandem-pd-decision. "*": the failure's reason
	content  content
	decodes  int // decode legs that are sent
}

// forbidden, unaffordable and local are the outcomes when no prefill candidate is left, after so many decode legs.
func forbidden(decodes int) outcome {
	return outcome{502, "refused;reason=prefill-failed;attempts=1;candidate=0", refusal, decodes}
}

func unaffordable(decodes int) outcome {
	return outcome{503, "refused;reason=budget;attempts=1;candidate=0", refusal, decodes}
}

func local(status int, c content, decodes int) outcome {
	return outcome{status, "local;reason=*;attempts=1;candidate=0", c, decodes}
}

const servedRemote = "remote;reason=external;attempts=1;candidate=0"

// always returns the same outcome for all situations.
func always(o outcome) [situations]outcome { return [situations]outcome{o, o, o, o} }

// effects says what must happen, by effect and situation.
var effects = map[effect][situations]outcome{
	// The client notices no more than a delay.
	served: always(outcome{200, servedRemote, rightTokens, 1}),
	// Prefill offers blocks of another prompt. The sidecar cannot see that, and decode does not check it.
	deceived: always(outcome{200, servedRemote, wrongTokens, 1}),
	// The next candidate is asked; after the last one decode prefills, if the P/D mode and the fallback budget allow it.
	candidateFails: {
		another:     {200, "remote;reason=external;attempts=2;candidate=1", rightTokens, 1},
		last:        local(200, rightTokens, 1),
		forced:      forbidden(0),
		budgetEmpty: unaffordable(0),
	},
	// Every other engine would answer the same.
	clientsFault: always(outcome{0, "refused;reason=bad-request;attempts=1;candidate=0", engineError, 0}),
	// Decode does not read the hand-off. No other candidate is asked, because another prefill would take as long again.
	comesLate: {another: local(200, rightTokens, 1), last: local(200, rightTokens, 1), forced: forbidden(0), budgetEmpty: unaffordable(0)},
	// Decode prefills itself, in a second leg.
	transferFails: {another: local(200, rightTokens, 2), last: local(200, rightTokens, 2), forced: forbidden(1), budgetEmpty: unaffordable(1)},
	// The sidecar checks that its decode engine is reachable before it sends a prefill leg.
	decodeUnreachable: always(outcome{503, "refused;reason=no-endpoint", refusal, 0}),
	// The sidecar checks it again before a second decode leg. Another decode pod must serve the request, whatever the budget.
	decodeGone: {
		another:     {503, "refused;reason=no-endpoint;attempts=1;candidate=0", refusal, 1},
		last:        {503, "refused;reason=no-endpoint;attempts=1;candidate=0", refusal, 1},
		forced:      forbidden(1),
		budgetEmpty: {503, "refused;reason=no-endpoint;attempts=1;candidate=0", refusal, 1},
	},
	// The decode engine accepts the second leg too, and does not answer it.
	redoLost: {
		another:     {503, "refused;reason=no-endpoint;attempts=1;candidate=0", refusal, 2},
		last:        {503, "refused;reason=no-endpoint;attempts=1;candidate=0", refusal, 2},
		forced:      forbidden(1),
		budgetEmpty: unaffordable(1),
	},
	// The second decode leg gets an error of the engine.
	redoFails: {another: local(0, engineError, 2), last: local(0, engineError, 2), forced: forbidden(1), budgetEmpty: unaffordable(1)},
	// A second decode leg would get the same error, so the client gets the first.
	passedOn: always(outcome{0, servedRemote, engineError, 1}),
	drained:  always(outcome{503, "refused;reason=draining;attempts=1;candidate=0", refusal, 0}),
	// Nothing is sent again once the client has a part of the answer.
	breaksOff:  always(outcome{200, servedRemote, errorEvent, 1}),
	clientLeft: always(outcome{499, servedRemote, noClient, 0}),
	leftWithin: always(outcome{200, servedRemote, noClient, 1}),
}

// expected returns the outcome of a failure in a situation.
func (s failure) expected(in situation) outcome {
	o := s.protocol.effects[s.effect][in]
	if o.status == 0 {
		o.status = s.status
	}
	o.decision = strings.Replace(o.decision, "*", string(s.expectedReason()), 1)
	switch {
	case s.effect != drained && s.effect != clientLeft:
	case s.state == received: // no leg was sent
		o.decision, _, _ = strings.Cut(o.decision, ";attempts")
	case s.state == beforeHeaders, s.state == beforeEvent, s.protocol.meets():
		o.decodes = 1
	}
	return o
}

// expectedReason returns the reason in the result of a local prefill.
func (s failure) expectedReason() pd.Reason {
	switch {
	case s.reason != "":
		return s.reason
	case s.effect == candidateFails:
		return pd.PrefillFailed
	case s.effect == comesLate:
		return pd.HandoffLate
	}
	return pd.TransferFailed
}

// retry reports whether a proxy may try another decode pod: the client has nothing of the answer, and the request is not
// what failed.
func (o outcome) retry() bool {
	return (o.content == refusal || o.content == engineError) && (o.status == http.StatusBadGateway || o.status == http.StatusServiceUnavailable)
}

// retryAfter returns the value of Retry-After. The sidecar sets it on its own refusals that a retry can help, and adds it to
// the engine's 429 and 503, which lack it.
func (o outcome) retryAfter() string {
	switch {
	case o.content == refusal && o.retry(), o.content == engineError && (o.status == 429 || o.status == 503):
		return "1"
	}
	return ""
}

// attempts returns how many prefill legs are sent, as the result says.
func (o outcome) attempts() int {
	d, err := pd.ParseResult(o.decision)
	if err != nil {
		panic(err) // the table is wrong
	}
	return d.Attempts
}

// String returns the outcome as testdata/matrix.txt shows it.
func (o outcome) String() string {
	d, err := pd.ParseResult(o.decision)
	if err != nil {
		panic(err) // the table is wrong
	}
	text := fmt.Sprintf("%d %s %s", o.status, d.Verdict, d.Reason)
	if d.Attempts > 1 {
		text += ", from candidate " + strconv.Itoa(d.Candidate)
	}
	switch o.content {
	case engineError, errorEvent, wrongTokens:
		text += ", " + string(o.content)
	case noClient:
		text = fmt.Sprintf("(counted as %d)", o.status)
	}
	if o.retry() {
		text += ", retry"
	}
	return text
}

func statusOf(f fault.Fault) int {
	code, err := strconv.Atoi(f.Arg)
	if err != nil {
		panic(err) // the table is wrong
	}
	return code
}
