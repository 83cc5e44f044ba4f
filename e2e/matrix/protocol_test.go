package matrix

import (
	"maps"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/madeup"
)

// protocol is a hand-off protocol, with the tables that its rows are checked by.
type protocol struct {
	name    string          // in the names of rows; "" for vLLM's
	dialect dialect.Dialect // nil: vLLM's with NIXL
	pushes  bool            // vLLM's simulated engines push
	tested  bool            // the sidecar has the decode engine answer a request of its own when it starts
	notices bool            // the sidecar can tell prefill engines itself that a hand-off is not read
	text    string          // the file that shows the tables
	head    string          // its first paragraphs
	list    func() []failure
	effects map[effect][situations]outcome
	ways    map[effect]way
	apis    []pd.API
	// start serves an engine for a role, or, for both roles, one that serves whole requests; nil: vLLM's, with what makes it speak a made-up
	// protocol.
	start func(t *testing.T, r row, role pd.Role) *engine
	// configure sets what the sidecar needs to know of the engines; nil: nothing but the dialect.
	configure func(*sidecar.Config, *fixture)
	// firstEvents is how many events a stream has up to its first token.
	firstEvents map[pd.API]int
}

// protocols are vLLM's, with three connectors, SGLang's, TensorRT-LLM's two, and two that no engine speaks: one of each shape, for which the sidecar
// has no code.
var protocols = []*protocol{nixl, push, moriioRead, moriioWritten, sglangPair, contextFirst, generationFirst, serial, concurrent}

var (
	nixl       = &protocol{notices: true, text: "testdata/matrix.txt", head: nixlHead, list: nixlFailures, effects: effects, ways: ways, apis: apis, firstEvents: firstEvents}
	serial     = &protocol{name: "serial", dialect: madeup.Ticket{}, text: "testdata/serial.txt", head: serialHead, list: serialFailures, effects: effects, ways: ways, apis: apis, firstEvents: firstEvents}
	concurrent = &protocol{name: "concurrent", dialect: madeup.Meeting{}, text: "testdata/concurrent.txt", head: concurrentHead, list: concurrentFailures,
		effects: concurrentEffects(), ways: concurrentWays, apis: apis, firstEvents: firstEvents}
)

// failures lists everything that can go wrong, by state.
func (p *protocol) failures() []failure {
	list := p.list()
	for i := range list {
		list[i].protocol = p
	}
	return list
}

// meets reports whether both legs are sent at once.
func (p *protocol) meets() bool { return p.dialect != nil && p.dialect.Shape() == dialect.Concurrent }

// serialFailures are those of vLLM's protocol that do not depend on its own parameters, leases and notices.
func serialFailures() []failure {
	return withoutNotices(slices.Concat(
		in(received, bodyFailures),
		in(prefilling, prefillFailures, unseenDamages()),
		in(handedOff, without("hand-off too old", handoffFailures)),
		in(beforeHeaders, headerFailures, againFailures()),
		in(beforeEvent, eventFailures),
		in(streaming, streamFailures),
	))
}

// concurrentFailures happen to two legs that are sent at once. "prefilling" and "handed off" are states of both then: decode
// waits for the KV cache.
func concurrentFailures() []failure {
	return withoutNotices(slices.Concat(
		in(received, bodyFailures),
		in(prefilling, prefillFailures, unseenDamages(), meetingFailures),
		in(handedOff, without("hand-off too old", handoffFailures)),
		in(beforeHeaders, headerFailures, againFailures()),
		in(beforeEvent, eventFailures),
		in(streaming, streamFailures),
	))
}

// meetingFailures happen to a decode engine that waits for the KV cache.
var meetingFailures = []failure{
	{name: "decode answers 400", prefill: onPrefill("slow", "stop"), action: answer, effect: passedOn, status: 400},
	{name: "decode answers 429", prefill: onPrefill("slow", "stop"), action: answer, effect: passedOn, status: 429},
	{name: "decode answers 503", prefill: onPrefill("slow", "stop"), action: answer, effect: passedOn, status: 503},
	{name: "decode answers 500", prefill: onPrefill("slow", "stop"), action: answer, effect: transferFails, status: 500, cause: "failed"},
	{name: "decode dies", prefill: onPrefill("slow", "stop"), action: end, effect: decodeGone, cause: "failed"},
}

// unseenDamages are those of the simulator's hand-offs that no sidecar can see. The others break the rules of vLLM's protocol,
// which is the simulator's.
func unseenDamages() []failure {
	return slices.DeleteFunc(damageFailures(), func(s failure) bool { return s.effect == candidateFails })
}

// without leaves one failure out.
func without(name string, list []failure) []failure {
	return slices.DeleteFunc(slices.Clone(list), func(s failure) bool { return s.name == name })
}

// withoutNotices removes what vLLM's protocol with NIXL says of a failure, and others do not: that a status shows whether decode
// has noted the hand-off, and that only decode may tell prefill to release it while decode does not answer. The made-up
// engines take a returned ticket, or an abort, whatever they do at the time. They cannot tell whether a leg that was cancelled
// had read the hand-off.
func withoutNotices(list []failure) []failure {
	for i := range list {
		s := &list[i]
		s.release = byEffect
		switch s.action {
		case outwait:
			s.lost = notLost
			s.stray = true
		case leave, cut:
			s.stray = true
		}
	}
	return list
}

// concurrentEffects are the same for clients. Each attempt has a decode leg.
func concurrentEffects() map[effect][situations]outcome {
	m := maps.Clone(effects)
	m[candidateFails] = [situations]outcome{
		another:     {200, "remote;reason=external;attempts=2;candidate=1", rightTokens, 2},
		last:        local(200, rightTokens, 2),
		forced:      forbidden(1),
		budgetEmpty: unaffordable(1),
	}
	m[clientsFault] = always(outcome{0, "refused;reason=bad-request;attempts=1;candidate=0", engineError, 1})
	return m
}

// concurrentWays says that both engines are asked to abort every attempt that is given up.
var concurrentWays = map[effect]way{
	candidateFails: byAbort,
	clientsFault:   byAbort,
	transferFails:  byAbort,
	decodeGone:     byAbort,
	redoLost:       byAbort,
	redoFails:      byAbort,
	passedOn:       byAbort,
	drained:        byAbort,
	breaksOff:      byAbort,
	clientLeft:     byAbort,
	leftWithin:     byAbort,
}

// unabortable reports whether one of the engines may not be there to be asked to abort a leg, because it has died, or its port
// is closed.
func (s failure) unabortable() bool {
	return s.effect == decodeGone || s.action == kill || s.prefill.Fault == "crash" || s.decode.Fault == "crash" ||
		s.prefill == fault.Fault{Fault: "refuse"}
}
