package why

import "github.com/tandem-serving/tandem/pd"

// because has the reasons of decisions, each to follow the word "because" or "but".
var because = map[pd.Reason]string{
	pd.Uncached:       "enough of the prompt was not cached on the decode pod",
	pd.Always:         "the decider chooses another pod for every prompt",
	pd.LowerCost:      "it was expected to cost less than the alternative",
	pd.Forced:         "the client forced it (x-tandem-pd: force)",
	pd.External:       "a picker that sends no plan named a prefill pod",
	pd.DecodeOnly:     "the decode engine cannot compute prompts",
	pd.BelowThreshold: "too little of the prompt was uncached to pay for a transfer",
	pd.ShortPrompt:    "the prompt is shorter than the threshold",
	pd.Bypassed:       "the client asked for that (x-tandem-pd: bypass)",
	pd.NotSplittable:  "requests of this kind cannot be split",
	pd.Unplanned:      "a picker that sends no plan, or none at all, named no prefill pod",
	pd.NoMedia:        "the prompt has no image, audio or video",
	pd.NoPrefill:      "no prefill pod was available",
	pd.PrefillFailed:  "every prefill pod that was tried failed",
	pd.HandoffInvalid: "the prefill pod answered without a hand-off that is safe to use",
	pd.HandoffLate:    "the hand-off was too old to be used",
	pd.TransferFailed: "decode could not load the KV cache",
	pd.WrongProtocol:  "an engine speaks another hand-off protocol than the sidecar (--kv-connector)",
	pd.BadPDHeader:    "its x-tandem-pd has a value that does not exist",
	pd.BadRequest:     "it cannot be read, or names no model",
	pd.DuplicateKey:   "its body has a member twice, and engines disagree which one counts",
	pd.TooLarge:       "its body is larger than --body-limit",
	pd.LongHeader:     "its headers are too long",
	pd.SlowBody:       "its body came too slowly (--body-timeout)",
	pd.UntrustedPeer:  "its prefill header came without the shared secret",
	pd.DeniedTarget:   "its prefill header names an address outside --prefill-allow, or of no pod of --inference-pool",
	pd.NotCached:      "it asked for an answer only if a part of its prompt is cached, and none was",
	pd.NoEndpoint:     "no decode pod was available",
	pd.Saturated:      "every endpoint of a stage was full",
	pd.QueueFull:      "every endpoint of a stage was full, and so was the queue",
	pd.QueueTimeout:   "no endpoint had capacity for it before its time in the queue ended",
	pd.Evicted:        "more important requests took its place in the queue",
	pd.Budget:         "too many requests that were planned remote would have been prefilled locally (the fallback budget is spent)",
	pd.Busy:           "as many request bodies were buffered as --buffer-limit allows",
	pd.Draining:       "the component was shutting down",
	pd.Deadline:       "there was no time left to serve it",
	pd.InternalError:  "of a fault of Tandem's, of which its log has more",
}

// during has the phases, each to follow the word "in".
var during = map[pd.Phase]string{
	pd.PhaseRecv:    "recv, while the request arrived",
	pd.PhaseEncode:  "encode, while images, audio and video were encoded on other pods",
	pd.PhasePrefill: "prefill, until there was a usable hand-off",
	pd.PhaseHandoff: "handoff, between the two legs",
	pd.PhaseFirst:   "first, until the engine sent the first byte of its answer",
	pd.PhaseDecode:  "decode, while the engine sent its answer",
}
