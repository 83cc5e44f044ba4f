package matrix

import (
	"slices"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
)

// state is where a request stands when something goes wrong.
type state string

const (
	received      state = "received"               // its body is still coming
	prefilling    state = "prefilling"             // the prefill leg is under way
	handedOff     state = "handed off"             // prefill has finished, decode knows nothing
	beforeHeaders state = "before the headers"     // the decode leg is under way, without an answer
	beforeEvent   state = "before the first event" // the answer has headers, and no event or byte
	streaming     state = "streaming"              // some of the answer has gone to the client
)

// deed is what a test does itself once the request is in its state.
type deed string

const (
	nothing deed = ""
	leave   deed = "leave"   // the client closes its connection
	outwait deed = "outwait" // the client gives up after patience
	cut     deed = "cut"     // the sidecar's drain deadline passes
	shut    deed = "shut"    // the decode engine takes no connections any more
	kill    deed = "kill"    // the prefill engine dies
	freeze  deed = "freeze"  // the prefill engine stands still, and with it the transfer
	tooOld  deed = "too old" // what is left of the lease is too short
)

// form says what kind of answer a strike is for.
type form string

const (
	anyForm form = ""
	whole   form = "whole"
	stream  form = "stream"
)

// strike is one thing going wrong in one state.
type strike struct {
	name   string
	state  state
	form   form
	effect effect
	// prefill and decode are the faults that stand at the engines. Of two prefill engines only the first has them.
	prefill, decode sim.Fault
	deed            deed
	reason          pd.Reason // the token that explains a local prefill, or the error within a stream
	status          int       // that the engine answers with
	cause           string    // of the metric that counts legs sent again
	lost            loss
	told            way  // if not as the effect has it
	stray           bool // prefill may hear of a hand-off that it does not hold, or no more; see judgeStrays
	quick           bool // the sidecar's own deadlines are short
}

// loss is why a hand-off stays with its prefill engine until the lease ends. Everything else is given back at once.
type loss string

const (
	saved loss = ""
	// answerLost: the ids by which a hand-off is released stand in the prefill answer alone, at its end.
	answerLost loss = "its ids were in the part of prefill's answer that never came"
	// decodeLost: without a keeper, only a decode engine can tell prefill.
	decodeLost loss = "decode is gone or refuses everything, and nobody else can tell prefill"
	// decodeMute: who lives, and says nothing about what it was asked to read, may be reading. What it reads must not be
	// given to others meanwhile.
	decodeMute loss = "decode lives and answers nothing, and nobody else may tell prefill"
	// misnamed: without the true ids, and an address to send them to, no component can release.
	misnamed loss = "the hand-off names another engine, request or port"
	// unfit: incomplete parameters end vLLM's decode engine, even in a request that it refuses.
	unfit loss = "a decode engine may die of it, even if it is only told to release it"
	// killed: no other component has read prefill's answer.
	killed loss = "the sidecar was killed with the only word of it"
)

// every has a fault strike all requests of a leg, not only the first.
const every = "every time: "

// strikes lists all that can go wrong, by state.
func strikes() []strike {
	return slices.Concat(
		in(received, bodyStrikes),
		in(prefilling, prefillStrikes, damageStrikes()),
		in(handedOff, handoffStrikes),
		in(beforeHeaders, headerStrikes, againStrikes()),
		in(beforeEvent, eventStrikes),
		in(streaming, streamStrikes),
	)
}

func in(at state, lists ...[]strike) []strike {
	all := slices.Concat(lists...)
	for i := range all {
		all[i].state = at
	}
	return all
}

// bodyStrikes strike while the client sends.
var bodyStrikes = []strike{
	{name: "client gone", deed: leave, effect: clientLeft},
	{name: "drain deadline", deed: cut, effect: drained},
	{name: "decode's port is closed", decode: sim.Fault{Fault: "refuse"}, effect: nobodyThere},
}

// prefillStrikes are the faults of a prefill pod. Whatever it does, short of blaming the client, the next one is asked.
var prefillStrikes = []strike{
	{name: "port closed", prefill: sim.Fault{Fault: "refuse"}, effect: candidateFails, cause: "connection"},
	{name: "refuse", prefill: onPrefill("refuse", ""), effect: candidateFails, cause: "connection"},
	{name: "reset-before", prefill: onPrefill("reset-before", ""), effect: candidateFails, cause: "connection"},
	{name: "reset-after", prefill: onPrefill("reset-after", ""), effect: candidateFails, cause: "connection", lost: answerLost},
	{name: "truncate", prefill: onPrefill("truncate", ""), effect: candidateFails, cause: "connection", lost: answerLost},
	{name: "slow", prefill: onPrefill("slow", "30000"), effect: candidateFails, cause: "timeout", quick: true},
	{name: "slow, stop", prefill: onPrefill("slow", "stop"), effect: candidateFails, cause: "timeout", quick: true},
	{name: "slow, stop, all of the engine", prefill: sim.Fault{Fault: "slow", Arg: "stop"}, effect: candidateFails, cause: "timeout", quick: true},
	{name: "slow, stop, when it has finished", prefill: at("headers", onPrefill("slow", "stop")), effect: candidateFails, cause: "timeout", quick: true, lost: answerLost},
	{name: "crash", prefill: onPrefill("crash", ""), effect: candidateFails, cause: "status"},
	{name: "crash, when it has finished", prefill: at("headers", onPrefill("crash", "")), effect: candidateFails, cause: "connection"},
	{name: "status 400", prefill: onPrefill("status", "400"), effect: clientsFault, status: 400},
	{name: "status 404", prefill: onPrefill("status", "404"), effect: clientsFault, status: 404},
	{name: "status 408", prefill: onPrefill("status", "408"), effect: candidateFails, cause: "status"},
	{name: "status 429", prefill: onPrefill("status", "429"), effect: candidateFails, cause: "status"},
	{name: "status 500", prefill: onPrefill("status", "500"), effect: candidateFails, cause: "status"},
	{name: "status 502", prefill: onPrefill("status", "502"), effect: candidateFails, cause: "status"},
	{name: "status 503", prefill: onPrefill("status", "503"), effect: candidateFails, cause: "status"},
	{name: "status 504", prefill: onPrefill("status", "504"), effect: candidateFails, cause: "status"},
	{name: "no-handoff", prefill: onPrefill("no-handoff", ""), effect: candidateFails, cause: "invalid", reason: pd.HandoffInvalid},
	{name: "stale", prefill: onPrefill("stale", ""), effect: deceived, stray: true},
	{name: "client gone", prefill: onPrefill("slow", "stop"), deed: leave, effect: clientLeft},
	{name: "drain deadline", prefill: onPrefill("slow", "stop"), deed: cut, effect: drained},
}

// damage is what comes of a damaged hand-off.
type damage struct {
	effect effect
	lost   loss
	told   way
}

// damages by their names. Those that would end a decode engine never reach it; those that nobody can tell from sound ones do.
var damages = map[string]damage{
	"missing-engine-id":  {candidateFails, unfit, usual},
	"missing-request-id": {candidateFails, unfit, usual},
	"missing-blocks":     {candidateFails, unfit, usual},
	"null-blocks":        {candidateFails, unfit, usual},
	"empty-blocks":       {candidateFails, unfit, usual},
	"empty-group":        {candidateFails, unfit, usual},
	"flat-blocks":        {candidateFails, unfit, usual},
	"string-blocks":      {candidateFails, unfit, usual},
	"only-flag":          {candidateFails, unfit, usual},
	"flag-false":         {candidateFails, unfit, usual},
	"string":             {candidateFails, unfit, usual},
	"list":               {candidateFails, unfit, usual},
	"empty":              {candidateFails, unfit, usual},
	"short-blocks":       {candidateFails, saved, direct},
	"far-blocks":         {transferFails, saved, asAnswered},
	"wrong-engine":       {transferFails, misnamed, usual},
	"wrong-port":         {transferFails, misnamed, usual},
	"wrong-request":      {served, misnamed, usual},
	"missing-cached":     {served, saved, usual},
	"foreign":            {deceived, saved, usual},
}

func damageStrikes() (list []strike) {
	for _, name := range sim.Damages() {
		d := damages[name]
		s := strike{name: "bad-handoff " + name, prefill: onPrefill("bad-handoff", name), effect: d.effect, lost: d.lost, told: d.told, stray: d.lost == misnamed}
		switch d.effect {
		case candidateFails:
			s.reason, s.cause = pd.HandoffInvalid, "invalid"
		case transferFails:
			s.cause = "failed"
		}
		list = append(list, s)
	}
	return list
}

// handoffStrikes strike between the two legs.
var handoffStrikes = []strike{
	{name: "client gone", prefill: at("headers", onPrefill("slow", "stop")), deed: leave, effect: clientLeft},
	{name: "drain deadline", prefill: at("headers", onPrefill("slow", "stop")), deed: cut, effect: drained},
	{name: "decode's port closes", prefill: at("headers", onPrefill("slow", "stop")), deed: shut, effect: decodeGone, cause: "failed", lost: decodeLost},
	// What is left of it is too short for any notice as well.
	{name: "hand-off too old", deed: tooOld, effect: comesLate, cause: "late", told: byDecode},
}

// headerStrikes strike the decode leg before its answer, once: a redo meets a sound engine again, if it still runs.
var headerStrikes = []strike{
	{name: "refuse", decode: onDecode("refuse", ""), effect: transferFails, cause: "failed"},
	{name: "reset-before", decode: onDecode("reset-before", ""), effect: transferFails, cause: "failed"},
	{name: "reset-after, before its headers", decode: at("headers", onDecode("reset-after", "")), effect: transferFails, cause: "failed", stray: true},
	{name: "truncate, before its headers", decode: at("headers", onDecode("truncate", "")), effect: transferFails, cause: "failed", stray: true},
	{name: "slow", decode: onDecode("slow", slowly), effect: served, quick: true},
	{name: "slow, stop", decode: onDecode("slow", "stop"), deed: outwait, effect: clientLeft, quick: true, lost: decodeMute},
	{name: "crash", decode: onDecode("crash", ""), effect: decodeGone, cause: "failed", lost: decodeLost},
	{name: "crash, when it has finished", form: whole, decode: at("headers", onDecode("crash", "")), effect: decodeGone, cause: "failed", stray: true},
	{name: "status 400", decode: onDecode("status", "400"), effect: believed, status: 400},
	{name: "status 404", decode: onDecode("status", "404"), effect: believed, status: 404},
	{name: "status 408", decode: onDecode("status", "408"), effect: believed, status: 408},
	{name: "status 429", decode: onDecode("status", "429"), effect: believed, status: 429},
	{name: "status 500", decode: onDecode("status", "500"), effect: transferFails, cause: "failed", told: direct},
	{name: "status 502", decode: onDecode("status", "502"), effect: transferFails, cause: "failed", told: direct},
	{name: "status 503", decode: onDecode("status", "503"), effect: believed, status: 503, told: nowise},
	{name: "status 504", decode: onDecode("status", "504"), effect: transferFails, cause: "failed", told: direct},
	{name: "prefill crashes", decode: onDecode("slow", "stop"), deed: kill, effect: transferFails, cause: "failed"},
	{name: "prefill stands still", deed: freeze, effect: transferFails, cause: "timeout", quick: true, stray: true},
	{name: "client gone", decode: at("headers", onDecode("slow", "stop")), deed: leave, effect: clientLeft},
	{name: "drain deadline", decode: at("headers", onDecode("slow", "stop")), deed: cut, effect: drained},
}

// againStrikes are those that a redo, and a release, meet again.
func againStrikes() (list []strike) {
	for _, s := range headerStrikes {
		switch {
		case s.name == "refuse", s.name == "reset-before":
			s.effect, s.lost = redoLost, decodeMute
		case s.decode.Fault != "status":
			continue
		case s.effect == transferFails:
			s.effect, s.lost = redoFails, decodeLost
			s.status = statusOf(s.decode)
		case s.status != 503: // admission lets the hand-off go by itself
			s.lost = decodeLost
		}
		s.name = every + s.name
		s.decode.Count = 0
		list = append(list, s)
	}
	return list
}

// eventStrikes strike when the decode engine's answer has begun, and nothing of it can have gone to the client.
var eventStrikes = []strike{
	{name: "reset-after", decode: at("body", onDecode("reset-after", "")), effect: transferFails, cause: "failed", stray: true},
	{name: "truncate", decode: at("body", onDecode("truncate", "")), effect: transferFails, cause: "failed", stray: true},
	{name: "slow", form: stream, decode: at("body", onDecode("slow", slowly)), effect: transferFails, cause: "timeout", quick: true, stray: true},
	{name: "slow", form: whole, decode: at("body", onDecode("slow", slowly)), effect: served, quick: true},
	{name: "slow, stop", form: stream, decode: at("body", onDecode("slow", "stop")), effect: transferFails, cause: "timeout", quick: true, stray: true},
	{name: "slow, stop", form: whole, decode: at("body", onDecode("slow", "stop")), deed: outwait, effect: clientLeft, quick: true},
	{name: "crash", form: whole, decode: at("body", onDecode("crash", "")), effect: decodeGone, cause: "failed", stray: true},
	{name: "client gone", decode: at("body", onDecode("slow", "stop")), deed: leave, effect: clientLeft},
	{name: "drain deadline", decode: at("body", onDecode("slow", "stop")), deed: cut, effect: drained},
}

// streamStrikes strike when some of the answer has gone to the client.
var streamStrikes = []strike{
	{name: "reset-after", decode: at("2", onDecode("reset-after", "")), effect: breaksOff, reason: pd.InternalError},
	{name: "truncate", decode: at("2", onDecode("truncate", "")), effect: breaksOff, reason: pd.InternalError},
	{name: "slow", decode: at("2", onDecode("slow", slowly)), effect: served, quick: true},
	{name: "slow, stop", decode: at("2", onDecode("slow", "stop")), deed: outwait, effect: leftWithin, quick: true},
	{name: "crash", decode: at("2", onDecode("crash", "")), effect: breaksOff, reason: pd.InternalError},
	{name: "client gone", decode: at("2", onDecode("slow", "stop")), deed: leave, effect: leftWithin},
	{name: "drain deadline", decode: at("2", onDecode("slow", "stop")), deed: cut, effect: breaksOff, reason: pd.Draining},
}

// onPrefill is a fault that stands at the first prefill engine.
func onPrefill(fault, arg string) sim.Fault { return sim.Fault{Leg: "prefill", Fault: fault, Arg: arg} }

// onDecode is a fault that strikes the decode engine once.
func onDecode(fault, arg string) sim.Fault {
	return sim.Fault{Leg: "decode", Fault: fault, Arg: arg, Count: 1}
}

// at moves a fault to a point of the answer.
func at(point string, f sim.Fault) sim.Fault { f.At = point; return f }
