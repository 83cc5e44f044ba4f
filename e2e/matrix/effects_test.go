package matrix

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
)

// situation is what the sidecar may still do about it.
type situation int

const (
	another situation = iota // there is a second, sound prefill candidate
	last                     // there is none
	forced                   // there is none, and decode must not prefill: x-tandem-pd: force
	broke                    // there is none, and the fallback budget is empty
	situations
)

func (s situation) String() string {
	return [...]string{"another candidate", "last candidate", "forced", "budget empty"}[s]
}

// effect is what a strike comes to.
type effect string

const (
	served         effect = "served"
	deceived       effect = "deceived"
	candidateFails effect = "candidate fails"
	clientsFault   effect = "client's fault"
	comesLate      effect = "comes late"
	transferFails  effect = "transfer fails"
	decodeGone     effect = "decode is gone"
	nobodyThere    effect = "nobody there"
	redoLost       effect = "redo lost"
	redoFails      effect = "redo fails"
	believed       effect = "believed"
	drained        effect = "drained"
	breaksOff      effect = "breaks off"
	clientLeft     effect = "client left"
	leftWithin     effect = "left within"
)

// content is what the client gets to read.
type content string

const (
	rightTokens content = ""                   // those of an undisturbed engine
	wrongTokens content = "WRONG TOKENS"       // the price of a prefill engine that lies
	refusal     content = "refusal"            // the API's error object; its code is the reason
	engineWord  content = "the engine's error" // as it came
	errorEvent  content = "then an error"      // of a stream: an error event and [DONE]; of a whole answer: the connection's end
	nobody      content = "nobody to answer"   // the client has left
)

// outcome is what is promised.
type outcome struct {
	status   int    // to the client; of one that left, what is counted. 0: the strike's
	decision string // as in x-tandem-pd-decision. "*": the strike's reason
	content  content
	decodes  int // legs to the decode engine
}

// The three ways out when no prefill pod is left, after so many decode legs.
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

// always is for what no situation changes.
func always(o outcome) [situations]outcome { return [situations]outcome{o, o, o, o} }

// effects are the promises.
var effects = map[effect][situations]outcome{
	// Nothing the client notices but the time.
	served: always(outcome{200, servedRemote, rightTokens, 1}),
	// Prefill offers blocks that hold something else. No bystander can tell, and decode does not look.
	deceived: always(outcome{200, servedRemote, wrongTokens, 1}),
	// The next candidate; then decode itself, if it may and can afford it.
	candidateFails: {
		another: {200, "remote;reason=external;attempts=2;candidate=1", rightTokens, 1},
		last:    local(200, rightTokens, 1),
		forced:  forbidden(0),
		broke:   unaffordable(0),
	},
	// No other engine would say anything else.
	clientsFault: always(outcome{0, "refused;reason=bad-request;attempts=1;candidate=0", engineWord, 0}),
	// The hand-off is not read; no other candidate is asked, because another prefill would take as long again.
	comesLate: {another: local(200, rightTokens, 1), last: local(200, rightTokens, 1), forced: forbidden(0), broke: unaffordable(0)},
	// Decode prefills itself, in a second leg.
	transferFails: {another: local(200, rightTokens, 2), last: local(200, rightTokens, 2), forced: forbidden(1), broke: unaffordable(1)},
	// The decode engine is looked for before prefill works for it.
	nobodyThere: always(outcome{503, "refused;reason=no-endpoint", refusal, 0}),
	// It is looked for again before a second leg: another pod's turn, whatever the budget.
	decodeGone: {
		another: {503, "refused;reason=no-endpoint;attempts=1;candidate=0", refusal, 1},
		last:    {503, "refused;reason=no-endpoint;attempts=1;candidate=0", refusal, 1},
		forced:  forbidden(1),
		broke:   {503, "refused;reason=no-endpoint;attempts=1;candidate=0", refusal, 1},
	},
	// It takes the second leg, and does not answer either.
	redoLost: {
		another: {503, "refused;reason=no-endpoint;attempts=1;candidate=0", refusal, 2},
		last:    {503, "refused;reason=no-endpoint;attempts=1;candidate=0", refusal, 2},
		forced:  forbidden(1),
		broke:   unaffordable(1),
	},
	// That leg gets the engine's error.
	redoFails: {another: local(0, engineWord, 2), last: local(0, engineWord, 2), forced: forbidden(1), broke: unaffordable(1)},
	// The engine's error is one that a redo would meet as well.
	believed: always(outcome{0, servedRemote, engineWord, 1}),
	drained:  always(outcome{503, "refused;reason=draining;attempts=1;candidate=0", refusal, 0}),
	// Nothing is sent twice once something has gone out.
	breaksOff:  always(outcome{200, servedRemote, errorEvent, 1}),
	clientLeft: always(outcome{499, servedRemote, nobody, 0}),
	leftWithin: always(outcome{200, servedRemote, nobody, 1}),
}

// expected looks a strike's outcome up.
func (s strike) expected(in situation) outcome {
	o := effects[s.effect][in]
	if o.status == 0 {
		o.status = s.status
	}
	o.decision = strings.Replace(o.decision, "*", string(s.explains()), 1)
	switch {
	case s.effect != drained && s.effect != clientLeft:
	case s.state == received: // no engine was called
		o.decision, _, _ = strings.Cut(o.decision, ";attempts")
	case s.state == beforeHeaders, s.state == beforeEvent:
		o.decodes = 1
	}
	return o
}

// explains is the reason of a local prefill.
func (s strike) explains() pd.Reason {
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

// retry reports whether a proxy may try another decode pod: nothing was sent, and the status is not about the request.
func (o outcome) retry() bool {
	return (o.content == refusal || o.content == engineWord) && (o.status == http.StatusBadGateway || o.status == http.StatusServiceUnavailable)
}

// retryAfter is the header Retry-After: a client that is refused for lack of capacity or parts is told when to try again,
// also where the engine, which never says, has turned him away.
func (o outcome) retryAfter() string {
	switch {
	case o.content == refusal && o.retry(), o.content == engineWord && (o.status == 429 || o.status == 503):
		return "1"
	}
	return ""
}

// attempts is how many prefill legs were sent, as the decision tells.
func (o outcome) attempts() int {
	d, err := pd.ParseResult(o.decision)
	if err != nil {
		panic(err) // the table is wrong
	}
	return d.Attempts
}

// String is the outcome in the table for people.
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
	case engineWord, errorEvent, wrongTokens:
		text += ", " + string(o.content)
	case nobody:
		text = fmt.Sprintf("(counted as %d)", o.status)
	}
	if o.retry() {
		text += ", retry"
	}
	return text
}

func statusOf(f sim.Fault) int {
	code, err := strconv.Atoi(f.Arg)
	if err != nil {
		panic(err) // the table is wrong
	}
	return code
}
