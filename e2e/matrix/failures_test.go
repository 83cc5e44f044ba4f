package matrix

import (
	"slices"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim/fault"
)

// state is the state of a request when something goes wrong.
type state string

const (
	received      state = "received"               // its body is still coming
	prefilling    state = "prefilling"             // the prefill leg is under way
	handedOff     state = "handed off"             // prefill has finished, no decode leg was sent
	beforeHeaders state = "before the headers"     // the decode leg was sent, and has no answer yet
	beforeEvent   state = "before the first event" // decode's answer has headers, but no event or byte of the body
	streaming     state = "streaming"              // the client has a part of the answer
)

// action is what the test does once the request is in its state, besides the faults of the engines.
type action string

const (
	noAction action = ""
	leave    action = "leave"   // the client closes its connection
	outwait  action = "outwait" // the client closes its connection after patience
	cut      action = "cut"     // the sidecar's drain deadline passes
	shut     action = "shut"    // the decode engine accepts no more connections
	kill     action = "kill"    // the prefill engine dies
	freeze   action = "freeze"  // the prefill engine hangs, and the transfer with it
	tooOld   action = "too old" // the rest of the lease is too short
	answer   action = "answer"  // the decode engine answers, with the failure's status, before the hand-off is there
	end      action = "end"     // the decode engine dies
)

// form is the kind of answer that a failure applies to.
type form string

const (
	anyForm form = ""
	whole   form = "whole"
	stream  form = "stream"
)

// failure is one thing that goes wrong in one state.
type failure struct {
	protocol *protocol

	name   string
	state  state
	form   form
	effect effect
	// prefill and decode are the faults of the engines. Of two prefill engines only the first has them.
	prefill, decode fault.Fault
	action          action
	reason          pd.Reason // of a local prefill, or the code of the error event in a stream
	status          int       // of the engine's answer
	cause           string    // the label cause of tandem_retries_total
	lost            loss
	release         way  // overrides ways
	stray           bool // prefill may get a notice of a hand-off that it does not hold; see checkStrays
	either          bool // decode may have read the hand-off before it is released, or not: both results of the release are right
	decodeKeeps     bool // decode keeps blocks until it is restarted
	quick           bool // the sidecar's own deadlines are short
}

// loss is why a hand-off stays pinned until its lease ends. All other hand-offs are released at once.
type loss string

const (
	notLost loss = ""
	// answerLost: only the end of the prefill answer has the ids by which a hand-off is released.
	answerLost loss = "its ids were in the part of prefill's answer that never arrived"
	// decodeLost: without a keeper, only a decode engine can tell prefill.
	decodeLost loss = "decode is gone or refuses everything, and no other component can tell prefill"
	// decodeSilent: a decode engine that runs and does not answer may be reading. Prefill must not free blocks that are being
	// read.
	decodeSilent loss = "decode runs without answering, and may be reading: no other component may tell prefill"
	// misnamed: without the true ids, and an address to send them to, no component can release.
	misnamed loss = "the hand-off names another engine, request or port"
	// unfit: incomplete parameters end vLLM's decode engine, even in a request that it refuses.
	unfit loss = "it may crash a decode engine, even one that is only told to release it"
	// maybeRead: TensorRT-LLM's engines release nothing unread, and one that waits for MoRI-IO's write would wait for ever.
	maybeRead loss = "decode may have read it, and to read it again would keep blocks of decode"
	// killed: only the sidecar has read prefill's answer.
	killed loss = "only the sidecar knew it, and was killed"
)

// every is the prefix of failures whose fault applies to all requests of a leg, not only to the first.
const every = "every time: "

// nixlFailures lists everything that can go wrong in vLLM's protocol with NIXL.
func nixlFailures() []failure {
	return slices.Concat(
		in(received, bodyFailures),
		in(prefilling, prefillFailures, damageFailures()),
		in(handedOff, handoffFailures),
		in(beforeHeaders, headerFailures, againFailures()),
		in(beforeEvent, eventFailures),
		in(streaming, streamFailures),
	)
}

func in(at state, lists ...[]failure) []failure {
	all := slices.Concat(lists...)
	for i := range all {
		all[i].state = at
	}
	return all
}

// bodyFailures happen while the client sends its request.
var bodyFailures = []failure{
	{name: "client gone", action: leave, effect: clientLeft},
	{name: "drain deadline", action: cut, effect: drained},
	{name: "decode's port is closed", decode: fault.Fault{Fault: "refuse"}, effect: decodeUnreachable},
}

// prefillFailures are the faults of a prefill pod. The sidecar asks the next candidate after each of them but a status that
// blames the client.
var prefillFailures = []failure{
	{name: "port closed", prefill: fault.Fault{Fault: "refuse"}, effect: candidateFails, cause: "connection"},
	{name: "refuse", prefill: onPrefill("refuse", ""), effect: candidateFails, cause: "connection"},
	{name: "reset-before", prefill: onPrefill("reset-before", ""), effect: candidateFails, cause: "connection"},
	{name: "reset-after", prefill: onPrefill("reset-after", ""), effect: candidateFails, cause: "connection", lost: answerLost},
	{name: "truncate", prefill: onPrefill("truncate", ""), effect: candidateFails, cause: "connection", lost: answerLost},
	{name: "slow", prefill: onPrefill("slow", "30000"), effect: candidateFails, cause: "timeout", quick: true},
	{name: "slow, stop", prefill: onPrefill("slow", "stop"), effect: candidateFails, cause: "timeout", quick: true},
	{name: "slow, stop, all of the engine", prefill: fault.Fault{Fault: "slow", Arg: "stop"}, effect: candidateFails, cause: "hung"},
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
	{name: "client gone", prefill: onPrefill("slow", "stop"), action: leave, effect: clientLeft},
	{name: "drain deadline", prefill: onPrefill("slow", "stop"), action: cut, effect: drained},
}

// damage is the consequence of a damaged hand-off.
type damage struct {
	effect  effect
	lost    loss
	release way
}

// damages are all damages of the simulator, by name. The sidecar rejects hand-offs that would crash a decode engine. It
// passes on those whose damage it cannot see.
var damages = map[string]damage{
	"missing-engine-id":  {candidateFails, unfit, byEffect},
	"missing-request-id": {candidateFails, unfit, byEffect},
	"missing-blocks":     {candidateFails, unfit, byEffect},
	"null-blocks":        {candidateFails, unfit, byEffect},
	"empty-blocks":       {candidateFails, unfit, byEffect},
	"empty-group":        {candidateFails, unfit, byEffect},
	"flat-blocks":        {candidateFails, unfit, byEffect},
	"string-blocks":      {candidateFails, unfit, byEffect},
	"only-flag":          {candidateFails, unfit, byEffect},
	"flag-false":         {candidateFails, unfit, byEffect},
	"string":             {candidateFails, unfit, byEffect},
	"list":               {candidateFails, unfit, byEffect},
	"empty":              {candidateFails, unfit, byEffect},
	"short-blocks":       {candidateFails, notLost, direct},
	"far-blocks":         {transferFails, notLost, asAnswered},
	"wrong-engine":       {transferFails, misnamed, byEffect},
	"wrong-port":         {transferFails, misnamed, byEffect},
	"wrong-request":      {served, misnamed, byEffect},
	"missing-cached":     {served, notLost, byEffect},
	"foreign":            {deceived, notLost, byEffect},
}

func damageFailures() (list []failure) {
	for _, name := range fault.Damages() {
		d := damages[name]
		s := failure{name: "bad-handoff " + name, prefill: onPrefill("bad-handoff", name), effect: d.effect, lost: d.lost, release: d.release, stray: d.lost == misnamed}
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

// handoffFailures happen between the two legs.
var handoffFailures = []failure{
	{name: "client gone", prefill: at("headers", onPrefill("slow", "stop")), action: leave, effect: clientLeft},
	{name: "drain deadline", prefill: at("headers", onPrefill("slow", "stop")), action: cut, effect: drained},
	{name: "decode's port closes", prefill: at("headers", onPrefill("slow", "stop")), action: shut, effect: decodeGone, cause: "failed", lost: decodeLost},
	// The rest of the lease is too short for a notice, too.
	{name: "hand-off too old", action: tooOld, effect: comesLate, cause: "late", release: byDecode},
}

// headerFailures happen to the decode leg before its answer, once: a second leg meets an engine that works, if it still runs.
var headerFailures = []failure{
	{name: "refuse", decode: onDecode("refuse", ""), effect: transferFails, cause: "failed"},
	{name: "reset-before", decode: onDecode("reset-before", ""), effect: transferFails, cause: "failed"},
	{name: "reset-after, before its headers", decode: at("headers", onDecode("reset-after", "")), effect: transferFails, cause: "failed", stray: true},
	{name: "truncate, before its headers", decode: at("headers", onDecode("truncate", "")), effect: transferFails, cause: "failed", stray: true},
	{name: "slow", decode: onDecode("slow", slowly), effect: served, quick: true},
	{name: "slow, stop", decode: onDecode("slow", "stop"), action: outwait, effect: clientLeft, quick: true, lost: decodeSilent},
	{name: "crash", decode: onDecode("crash", ""), effect: decodeGone, cause: "failed", lost: decodeLost},
	{name: "crash, when it has finished", form: whole, decode: at("headers", onDecode("crash", "")), effect: decodeGone, cause: "failed", stray: true},
	{name: "status 400", decode: onDecode("status", "400"), effect: passedOn, status: 400},
	{name: "status 404", decode: onDecode("status", "404"), effect: passedOn, status: 404},
	{name: "status 408", decode: onDecode("status", "408"), effect: passedOn, status: 408},
	{name: "status 429", decode: onDecode("status", "429"), effect: passedOn, status: 429},
	{name: "status 500", decode: onDecode("status", "500"), effect: transferFails, cause: "failed", release: direct},
	{name: "status 502", decode: onDecode("status", "502"), effect: transferFails, cause: "failed", release: direct},
	{name: "status 503", decode: onDecode("status", "503"), effect: passedOn, status: 503, release: notReleased},
	{name: "status 504", decode: onDecode("status", "504"), effect: transferFails, cause: "failed", release: direct},
	{name: "prefill crashes", decode: onDecode("slow", "stop"), action: kill, effect: transferFails, cause: "failed"},
	{name: "prefill stands still", action: freeze, effect: transferFails, cause: "timeout", quick: true, stray: true},
	{name: "client gone", decode: at("headers", onDecode("slow", "stop")), action: leave, effect: clientLeft},
	{name: "drain deadline", decode: at("headers", onDecode("slow", "stop")), action: cut, effect: drained},
}

// againFailures returns the headerFailures that a second decode leg, and a release, meet again.
func againFailures() (list []failure) {
	for _, s := range headerFailures {
		switch {
		case s.name == "refuse", s.name == "reset-before":
			s.effect, s.lost = redoLost, decodeSilent
		case s.decode.Fault != "status":
			continue
		case s.effect == transferFails:
			s.effect, s.lost = redoFails, decodeLost
			s.status = statusOf(s.decode)
		case s.status != 503: // an engine that refuses for lack of capacity releases the hand-off itself
			s.lost = decodeLost
		}
		s.name = every + s.name
		s.decode.Count = 0
		list = append(list, s)
	}
	return list
}

// eventFailures happen when the decode engine's answer has begun, and the client cannot have any of it.
var eventFailures = []failure{
	{name: "reset-after", decode: at("body", onDecode("reset-after", "")), effect: transferFails, cause: "failed", stray: true},
	{name: "truncate", decode: at("body", onDecode("truncate", "")), effect: transferFails, cause: "failed", stray: true},
	{name: "slow", form: stream, decode: at("body", onDecode("slow", slowly)), effect: transferFails, cause: "timeout", quick: true, stray: true},
	{name: "slow", form: whole, decode: at("body", onDecode("slow", slowly)), effect: served, quick: true},
	{name: "slow, stop", form: stream, decode: at("body", onDecode("slow", "stop")), effect: transferFails, cause: "timeout", quick: true, stray: true},
	{name: "slow, stop", form: whole, decode: at("body", onDecode("slow", "stop")), action: outwait, effect: clientLeft, quick: true},
	{name: "crash", form: whole, decode: at("body", onDecode("crash", "")), effect: decodeGone, cause: "failed", stray: true},
	{name: "client gone", decode: at("body", onDecode("slow", "stop")), action: leave, effect: clientLeft},
	{name: "drain deadline", decode: at("body", onDecode("slow", "stop")), action: cut, effect: drained},
}

// streamFailures happen when the client has a part of the answer.
var streamFailures = []failure{
	{name: "reset-after", decode: at(firstToken, onDecode("reset-after", "")), effect: breaksOff, reason: pd.InternalError},
	{name: "truncate", decode: at(firstToken, onDecode("truncate", "")), effect: breaksOff, reason: pd.InternalError},
	{name: "slow", decode: at(firstToken, onDecode("slow", slowly)), effect: served, quick: true},
	{name: "slow, stop", decode: at(firstToken, onDecode("slow", "stop")), action: outwait, effect: leftWithin, quick: true},
	{name: "crash", decode: at(firstToken, onDecode("crash", "")), effect: breaksOff, reason: pd.InternalError},
	{name: "client gone", decode: at(firstToken, onDecode("slow", "stop")), action: leave, effect: leftWithin},
	{name: "drain deadline", decode: at(firstToken, onDecode("slow", "stop")), action: cut, effect: breaksOff, reason: pd.Draining},
}

// onPrefill returns a fault of the first prefill engine.
func onPrefill(kind, arg string) fault.Fault {
	return fault.Fault{Leg: "prefill", Fault: kind, Arg: arg}
}

// onDecode returns a fault that the decode engine has once.
func onDecode(kind, arg string) fault.Fault {
	return fault.Fault{Leg: "decode", Fault: kind, Arg: arg, Count: 1}
}

// firstToken is the point of an answer after the event with its first token. Each API has its own number of events up to it.
const firstToken = "first token"

// at moves a fault to a point of the answer: before its headers, before its body, or after its first token.
func at(point string, f fault.Fault) fault.Fault { f.At = point; return f }
