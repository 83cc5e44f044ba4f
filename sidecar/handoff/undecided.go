package handoff

import (
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/sidecar/relay"
)

// undecided is a stream of chat whose engine may parse what it generates, while no other engine can parse for this sidecar. If the engine does
// not, the stream goes on from its token ids. If it does, or has not generated text yet, the stream is generated again.
type undecided struct {
	fromIDs *ongoing
	again   *regenerating
}

// Event implements relay.Continuation. The first event with text decides.
func (u *undecided) Event(e body.Event) body.Event {
	out := u.again.Event(e)
	switch fromIDs, known := u.fromIDs.Decided(); {
	case !known:
	case fromIDs:
		u.again.Regeneration.Close()
		u.again.x.setOngoing(u.fromIDs)
	default:
		u.decideAgain()
	}
	return out
}

func (u *undecided) decideAgain() {
	u.fromIDs.OnlyStrips()
	u.again.x.setOngoing(u.again)
}

// Held implements relay.Continuation.
func (u *undecided) Held() []byte { return u.fromIDs.Held() }

// GoOn implements relay.Continuation.
func (u *undecided) GoOn(cause error) *relay.Answer {
	u.decideAgain()
	return u.again.GoOn(cause)
}

// Leave implements relay.Continuation.
func (u *undecided) Leave() *relay.Answer { return u.again.Leave() }

// Moves implements relay.Continuation.
func (u *undecided) Moves() int { return 0 }

func (u *undecided) begins(v *vigil, end func()) {
	u.fromIDs.begins(v, end)
	u.again.begins(v, end)
}

func (u *undecided) end() {
	u.fromIDs.end()
	u.again.end()
}

// SetCached says how many tokens of the prompt were cached.
func (u *undecided) SetCached(tokens int64) { u.fromIDs.SetCached(tokens) }
