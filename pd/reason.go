package pd

// Verdict says where a request's prompt was, or is to be, computed.
type Verdict uint8

// The verdicts.
const (
	Local   Verdict = iota + 1 // prefilled by the decode engine itself
	Remote                     // prefilled on another pod, from which decode pulls the KV cache
	Refused                    // not served
)

// String returns the verdict's token on the wire.
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

// Reason is the token that explains a verdict. Headers, spans and metric labels have the same tokens, and no others.
type Reason string

// Why a request went remote.
const (
	Uncached Reason = "uncached" // enough of the prompt is not cached on the decode pod
	Always   Reason = "always"   // the decider chooses remote for every request
	Forced   Reason = "forced"   // the client sent HeaderMode with force
	External Reason = "external" // a picker that sends no plan named a prefill pod
	// DecodeOnly: the request would have stayed local, but the decode engine cannot compute prompts. Also why such a request was
	// refused, if no prefill pod could compute its prompt either.
	DecodeOnly Reason = "decode-only"
	// LowerCost: the decider has compared what local and remote prefill cost. Also why a request stayed local.
	LowerCost Reason = "lower-cost"
)

// Why a request stayed local.
const (
	BelowThreshold Reason = "below-threshold" // too little of the prompt is uncached to pay for a transfer
	ShortPrompt    Reason = "short-prompt"    // the prompt is shorter than the threshold, whatever is cached
	Bypassed       Reason = "bypassed"        // the client sent HeaderMode with bypass
	NotSplittable  Reason = "not-splittable"  // one hand-off cannot carry the request
	Unplanned      Reason = "unplanned"       // a picker that sends no plan, or none at all, named no prefill pod
	NoMedia        Reason = "no-media"        // the prompt has no image, audio or video, and the decider is about these
	NoPrefill      Reason = "no-prefill"      // no prefill pod was available
	PrefillFailed  Reason = "prefill-failed"  // every prefill candidate failed
	HandoffInvalid Reason = "handoff-invalid" // prefill answered without a hand-off that is safe to use
	HandoffLate    Reason = "handoff-late"    // the hand-off was too old to be used
	TransferFailed Reason = "transfer-failed" // decode could not load the KV cache
	WrongProtocol  Reason = "wrong-protocol"  // an engine speaks another hand-off protocol than the sidecar
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
	NotCached     Reason = "not-cached" // the client wants an answer only if a part of the prompt is cached
	NoEndpoint    Reason = "no-endpoint"
	Saturated     Reason = "saturated"
	QueueFull     Reason = "queue-full"    // as many requests wait for capacity as may
	QueueTimeout  Reason = "queue-timeout" // no capacity came in time
	Evicted       Reason = "evicted"       // from the queue or from its engine, for a more important request
	Budget        Reason = "budget"
	Busy          Reason = "busy" // buffered bodies have reached their limit
	Draining      Reason = "draining"
	Deadline      Reason = "deadline"
	InternalError Reason = "internal"
)

var (
	remoteReasons = []Reason{Uncached, Always, LowerCost, Forced, External, DecodeOnly}
	localReasons  = []Reason{BelowThreshold, ShortPrompt, LowerCost, Bypassed, NotSplittable, Unplanned, NoMedia, NoPrefill, PrefillFailed, HandoffInvalid,
		HandoffLate, TransferFailed, WrongProtocol}
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

// FallsBack reports whether r says that the local engine prefilled because remote prefill did not work.
func (r Reason) FallsBack() bool {
	return r == PrefillFailed || r == HandoffInvalid || r == HandoffLate || r == TransferFailed || r == WrongProtocol
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
