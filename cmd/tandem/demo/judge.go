package demo

import (
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// wantKV is how many bytes of KV have to move for a request: all blocks of the prompt, of which the last may not be full.
func (x *exchange) wantKV(blockBytes int64) int64 {
	if !x.remote {
		return 0
	}
	return int64((len(x.reference.prompt)+blockSize-1)/blockSize) * blockBytes
}

// equal tells whether both engines generated the same.
func (x *exchange) equal() bool {
	return x.failure == nil && len(x.generated) == answerTokens && slices.Equal(x.generated, x.reference.generated)
}

// asPlanned tells whether the sidecar did what it was told to, at the first attempt.
func (x *exchange) asPlanned() bool {
	want := pd.Decision{Verdict: x.plan().Verdict, Reason: x.plan().Reason}
	if x.remote {
		want.Attempts = 1
	}
	return x.failure == nil && x.decision == want
}

// wantPhase tells whether a request goes through a phase, by what happened to it.
func wantPhase(d pd.Decision, ph pd.Phase) bool {
	switch ph {
	case pd.PhasePrefill:
		return d.Attempts > 0
	case pd.PhaseHandoff:
		return d.Verdict == pd.Remote
	}
	return true
}

// wellTimed tells whether the phases are those that the request went through, and no more than was measured here. The
// sidecar prints microseconds, so each may be half of one too long.
func (x *exchange) wellTimed() bool {
	for ph := range pd.Phase(pd.PhaseCount) {
		if _, ok := x.phases.Get(ph); ok != wantPhase(x.decision, ph) {
			return false
		}
	}
	return x.failure == nil && x.phases.Sum() <= x.took+time.Duration(pd.PhaseCount)*time.Microsecond
}

// minAttributed is the share of the measured time that the phases have to cover, all requests together. The rest is the
// way between client and sidecar, and a machine that is busy with something else: 1 % on a quiet one, 18 % on one with four
// times the work it has cores for.
const minAttributed = 0.6

// judge holds what was seen against what was promised.
func judge(seen evidence) report {
	r := report{rows: seen.exchanges, blockBytes: seen.blockBytes}
	r.count("decisions as planned", (*exchange).asPlanned)
	r.count("tokens equal to an undisturbed engine's", (*exchange).equal)
	r.judgeKV()
	r.judgeStranded(&seen)
	r.judgePhases()
	r.judgeEnd(seen.ended)
	return r
}

func (r *report) promise(name string, kept bool, format string, args ...any) {
	r.Promises = append(r.Promises, promise{name, kept, fmt.Sprintf(format, args...)})
}

// count is a promise that every request keeps by itself.
func (r *report) count(name string, kept func(*exchange) bool) {
	n := 0
	for i := range r.rows {
		if kept(&r.rows[i]) {
			n++
		}
	}
	r.promise(name, n == len(r.rows), "%d of %d", n, len(r.rows))
}

func (r *report) judgeKV() {
	var moved, want int64
	prompts, right := 0, 0
	for i := range r.rows {
		x := &r.rows[i]
		moved += x.kvBytes
		want += x.wantKV(r.blockBytes)
		if x.kvBytes == x.wantKV(r.blockBytes) {
			right++
		}
		if x.remote {
			prompts++
		}
	}
	relation := "="
	if moved != want {
		relation = "instead of"
	}
	r.promise("KV bytes moved", right == len(r.rows) && want > 0, "%d %s %d blocks × %d bytes of %d remote prompts; right: %d of %d",
		moved, relation, want/r.blockBytes, r.blockBytes, prompts, right, len(r.rows))
}

// judgeStranded counts the blocks that nobody came for: those that are still held, and those whose lease had to run out.
func (r *report) judgeStranded(seen *evidence) {
	held := seen.prefill.Blocks.Used + seen.decode.Blocks.Used + seen.reference.Blocks.Used
	r.promise("blocks stranded", held == 0 && seen.prefill.Expired == 0,
		"%d still held; %d hand-offs released, %d expired", held, seen.prefill.Released, seen.prefill.Expired)
}

func (r *report) judgePhases() {
	var attributed, measured time.Duration
	timed := 0
	for i := range r.rows {
		x := &r.rows[i]
		attributed += x.phases.Sum()
		measured += x.took
		if x.wellTimed() {
			timed++
		}
	}
	share := attributed.Seconds() / max(measured, 1).Seconds()
	r.promise("phases add up to the measured time", timed == len(r.rows) && share >= minAttributed,
		"%.1f %% of %s ms, at least %.0f %%; not above it: %d of %d", 100*share, millis(measured), 100*minAttributed, timed, len(r.rows))
}

func (r *report) judgeEnd(err error) {
	if err != nil {
		r.promise("everything started has ended", false, "%v", err)
		return
	}
	r.promise("everything started has ended", true, "3 engines and the sidecar, each when asked")
}
