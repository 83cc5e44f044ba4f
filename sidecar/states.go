package sidecar

// state is where a request stands. Every failure is a question of which state it met.
type state uint8

const (
	received   state = iota // reading the request
	prefilling              // a prefill leg is under way
	handedOff               // prefill has finished: the lease runs, decode knows nothing
	decoding                // an engine leg is under way, nothing has gone to the client
	streaming               // the answer is going to the client
	done
	stateCount
)

// trouble is what can come between.
type trouble uint8

const (
	clientGone trouble = iota // the client closed its connection
	timedOut                  // a deadline of ours passed
	failed                    // the other side refused, broke off or answered with an error
	cutOff                    // the drain deadline passed
	troubleCount
)

// action is what is done about it. Actions of one cell are all done, in the order they are listed here.
type action uint8

const (
	cancelLeg      action = 1 << iota // close the running leg; its engine frees what it holds
	releaseHandoff                    // make decode give the finished hand-off back
	next                              // next prefill candidate; after the last one, redo
	redo                              // prefill locally, within the budget, if the plan allows it
	refuse                            // answer with an error
	endStream                         // end the stream with an error event
	nothing        action = 0
)

// reactions is what each state does on each trouble.
//
// A client that leaves while decode runs does not cancel a leg that was just written: an engine that reads a request and
// its end at once may never learn of the hand-off in it, and no engine would release it. releaseHandoff waits for that.
var reactions = [stateCount][troubleCount]action{
	//           clientGone            timedOut           failed      cutOff
	received:   {nothing, refuse, refuse, refuse},
	prefilling: {cancelLeg, cancelLeg | next, next, cancelLeg | refuse},
	handedOff:  {releaseHandoff, releaseHandoff | redo, releaseHandoff | redo, releaseHandoff | refuse},
	decoding:   {releaseHandoff, cancelLeg | releaseHandoff | redo, releaseHandoff | redo, releaseHandoff | refuse},
	streaming:  {cancelLeg, endStream, endStream, cancelLeg | endStream},
	done:       {nothing, nothing, nothing, nothing},
}

// on looks a reaction up.
func (s state) on(t trouble) action { return reactions[s][t] }

// has reports whether an action is among those of a cell.
func (a action) has(b action) bool { return a&b != 0 }

var stateNames = [...]string{"received", "prefilling", "handed-off", "decoding", "streaming", "done"}

func (s state) String() string { return stateNames[s] }
