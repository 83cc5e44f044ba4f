package pd

// Verdict says where a request was, or is to be, prefilled.
type Verdict uint8

// The verdicts.
const (
	Local   Verdict = iota + 1 // prefilled by the decode engine itself
	Remote                     // prefilled on another pod, the KV cache pulled over
	Refused                    // not served
)

// String is the verdict's token on the wire.
func (v Verdict) String() string {
	switch v {
	case Local:
		return "local"
	case Remote:
		return "remote"
	case Refused:
		return "refused"
	}
	return "unknown"
}

// Reason is the token that explains a verdict. The same tokens stand in headers, spans and metric labels; there are no
// others.
type Reason string

// Why a request went remote.
const (
	Uncached Reason = "uncached" // enough of the prompt is not cached on the decode pod
	Always   Reason = "always"   // the decider does not look
	Forced   Reason = "forced"   // the client said so
	External Reason = "external" // a picker that sends no plan said so
)

// Why a request stayed local.
const (
	BelowThreshold Reason = "below-threshold" // too little of the prompt is uncached to pay for a transfer
	ShortPrompt    Reason = "short-prompt"    // the prompt is under the minimum length, no cache was looked at
	Bypassed       Reason = "bypassed"        // the client said so
	NotSplittable  Reason = "not-splittable"  // the request cannot be handed from one engine to another
	NoPrefill      Reason = "no-prefill"      // no prefill pod was available
	PrefillFailed  Reason = "prefill-failed"  // every prefill candidate failed
	HandoffInvalid Reason = "handoff-invalid" // prefill answered without a hand-off that is safe to use
	HandoffLate    Reason = "handoff-late"    // the hand-off was too old to be trusted when decode was to be asked
	TransferFailed Reason = "transfer-failed" // decode could not load the KV cache
)

// Why a request was refused, besides NotSplittable, NoPrefill and PrefillFailed under a strict plan.
const (
	BadPDHeader   Reason = "bad-pd-header"
	BadRequest    Reason = "bad-request"
	DuplicateKey  Reason = "duplicate-key"
	TooLarge      Reason = "too-large"
	LongHeader    Reason = "long-header"
	SlowBody      Reason = "slow-body"
	UntrustedPeer Reason = "untrusted-peer"
	DeniedTarget  Reason = "denied-target"
	NoEndpoint    Reason = "no-endpoint"
	Saturated     Reason = "saturated"
	Budget        Reason = "budget"
	Busy          Reason = "busy" // buffered bodies have reached their limit
	Draining      Reason = "draining"
	Deadline      Reason = "deadline"
	InternalError Reason = "internal"
)

var (
	remoteReasons = []Reason{Uncached, Always, Forced, External}
	localReasons  = []Reason{BelowThreshold, ShortPrompt, Bypassed, NotSplittable, NoPrefill, PrefillFailed, HandoffInvalid,
		HandoffLate, TransferFailed}
)

// Reasons lists the tokens that may explain a verdict.
func Reasons(v Verdict) []Reason {
	switch v {
	case Remote:
		return remoteReasons
	case Local:
		return localReasons
	case Refused:
		all := make([]Reason, len(refusals))
		for i, r := range refusals {
			all[i] = r.reason
		}
		return all
	}
	return nil
}

// Explains reports whether r is one of the tokens for v.
func (r Reason) Explains(v Verdict) bool {
	for _, known := range Reasons(v) {
		if known == r {
			return true
		}
	}
	return false
}
